"""Publication of batches in a PostgreSQL database: staged rows and markers.

From staged rows to the database:

1. Tasks stage rows as Arrow IPC in one unlogged table (`publication/staging`). A table for each batch, filled by ADBC,
   was measured beside it and took the same time; it needs DDL in each batch, and types for rows that may not fit their
   table.
2. `publication/publisher` writes the marker, loads the staged rows in pieces, and applies each piece with
   `tables/writing.apply`, which puts and updates of `Table` use too: all in one transaction of ADBC.
"""
