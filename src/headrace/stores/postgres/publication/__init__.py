"""Publication of batches in a PostgreSQL database: staged rows and markers."""
