"""Read-only SQL over the tables and queues of a store, by DuckDB, without Spark.

1. `statements` parses the statement, and `names` finds the tables and queues that it names.
2. `datasets` shows each of them to DuckDB as a dataset. DuckDB passes the columns and the comparisons of a query to the
   dataset, and takes rows from it as it needs them.
3. `filters` translates the comparisons into conditions of headrace, which the store evaluates.
4. `engine` runs the statement within limits: seconds, memory, rows and bytes of the result.
"""
