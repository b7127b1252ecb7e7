"""Publication of batches in a YTsaurus cluster: staged rows and markers."""
