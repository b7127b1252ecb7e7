"""Read-only SQL over the tables and queues of a store, by DuckDB, without Spark.

1. `engine` runs a statement within limits: seconds, memory, rows and bytes of the result.
2. `process` starts the process of a query, reads the rows of tables that it asks for, and ends it at the limits.
   `messages` has what the two processes say to each other.
3. `worker` is that process. `statements` parses the statement, and `names` finds the tables and queues that it names.
4. `datasets` shows each of them to DuckDB as a dataset. DuckDB passes the columns and the comparisons of a query to the
   dataset, and takes rows from it as it needs them.
5. `filters` translates the comparisons into conditions of headrace, which the store evaluates.
"""
