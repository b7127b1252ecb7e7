"""Publication of batches: staged rows, and the markers of published batches of the embedded store."""
