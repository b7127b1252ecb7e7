"""Publication of batches in a Tablestore instance: staged rows and markers."""
