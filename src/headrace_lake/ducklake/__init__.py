"""DuckLake tables whose catalog is in a PostgreSQL database.

A DuckLake is about 30 tables of a database, the *catalog*, and Parquet files. A commit is a row of
``ducklake_snapshot`` with the rows of its changes. So rows of DuckLake tables, rows of the database's own tables,
headrace's state and the marker of a batch change in one transaction.

From a batch to the catalog:

1. Tasks stage rows as for every table of a PostgreSQL database.
2. `publisher` runs `writing` in the transaction of the database's own publisher.
3. `writing` takes the next snapshot, which excludes other writers; finds the old rows of the written keys; and writes
   the new rows, a few into the catalog (*inlined*), more into a data file.

`catalog` has the statements, `columns` and `values` the types, `statistics` the bounds that readers skip files by.
"""
