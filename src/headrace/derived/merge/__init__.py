"""``MERGE INTO`` of a stream: Spark evaluates the clauses, and tasks read and write the target by key.

1. `statement` is the statement and its grammar; `stream.merge` reads and checks one.
2. `plan` finds the key of the target in ON, and the columns that the clauses need; `queries` writes the SQL of a batch.
3. `batches`: Spark adds the key to each row, tasks look up the rows of the target, Spark evaluates the clauses, and
   tasks stage the rows to put and the keys to delete.
"""
