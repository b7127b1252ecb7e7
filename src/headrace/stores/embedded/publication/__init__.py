"""Publication of batches in the embedded store: staged rows and markers."""
