"""Tables that are derived from others: ``follow`` a query, ``mirror`` a table, ``merge`` a stream.

Each starts in its ``stream``; ``mirror`` and ``merge`` also have the grammar of their statements.
`headrace.streaming_sql.kinds` has the stream of each statement. They share

- `own_names`: the names of headrace's own columns and views in queries, which no column of a user can have (``follow``
  and ``mirror``);
- `last_rows`: from signed rows to the rows to put and the keys to delete;
- `headrace.batches.sinks.jobs`: one job for each target, which each publication of ``follow`` and ``mirror`` checks;
- `headrace.spark.batch_tasks`: tasks stage, and the driver publishes a batch once.

``state`` keeps the aggregates of groups in tables of the target's store, and ``gathering`` the rows of followed tables
that a query needs besides its changes. Only ``follow`` has state.
"""
