"""Tables that are derived from others: followed queries, mirrors, and ``MERGE``.

From a change to the result of a query that follows tables:

`spark/stream_reader` → `follow/scans` → `follow/batches` → `state/group_states` or `last_rows` → `spark/batch_tasks` →
`sinks/batch_writer`.

1. `FollowedPlan.read` splits the query's text (`follow/split`) and lets Spark analyse the parts
   (`follow/plan`). `check_key` compares the key of the target with the groups, or with the key of the scan.
   headrace's own columns in the parts have the prefix of `own_names`, which no column of a user can have.
2. At the start, `read_static_tables` reads the static tables of joins, and computes their fingerprints. Executors keep
   the rows; a batch that lacks some reads the table again (`read_again`), and compares the fingerprint. The streaming
   query has one DataFrame: the scan, or the tagged union of several.
3. In each batch, `FollowedJobs.begin` checks that the target has this job and no other, that the job's settings and
   query are those of its record, and that its tables are the recorded ones (`Table.identity`). A job begins in batch
   0, with an empty target or one that it replaces. Mirrors have a row in the same registry, and `MERGE` reads it.
4. Each change gets a sign: 1 for an insert and a post-image, -1 for a pre-image and a delete. Spark runs the rows SQL.
5. Without aggregates, `last_rows` puts the last row of each key of the target, or deletes the key. A key's rows are in
   one task in their order, because a channel is a task; after a join they are gathered and sorted.
6. With aggregates, Spark partitions the rows by group. `GroupStates.merge` merges them with the state of their groups,
   and yields results and new state. Spark runs the result SQL over them: items and HAVING.
7. Tasks stage the target's puts and deletes and those of the state. The driver publishes all with the marker in one
   transaction. So the state is always that of the published batches, and a repeated batch reads the state that it read
   before. In a store without such a transaction, each state row also has what it was before the last batch.
"""
