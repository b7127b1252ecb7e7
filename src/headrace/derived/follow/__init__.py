"""Queries that follow tables: the target has what the same SELECT would give over the current rows.

From CREATE STREAM over a scan with readAs = 'table' to a published aggregate, in the order of reading:

1. `streaming_sql/streams` finds the kind of the statement, and `streaming_sql/kinds/follow` gives its text, its scans
   and its target to `stream.followed_stream`, as `headrace.follow` does.
2. `scans`: `FollowedScan.of` checks that a DataFrame is a reader of one table, or of the tables of a tunnel, and notes
   its table and its key.
3. `planning`: `read_plan` splits the query, lets Spark analyse the parts over empty views (`analysis`), and refuses
   expressions that are not deterministic (`determinism`). `plan` is the answer, with the rules for the target's key.
4. `split` makes of the text the rows SQL, the aggregates and the result SQL. `relations` carries the sign and the order
   from the scans up to the result; `items` replaces aggregates and groups by columns. Both read `sql_text`.
5. `stream`: `followed_stream` puts the values of variables into the text before all this, notes the settings on which
   the answer depends (`settings`), and makes the `FollowedStream`. Its `start` reads static tables (`static_tables`),
   checks the target, and notes the functions that the query calls (`determinism`). The query has one DataFrame: the
   scan, or the union of several sources; scans of one tunnel are one source (`sources`).
6. `batches`: before each batch, `FollowedBatches` asks `batches/sinks/jobs` whether the target has this job and no
   other. A job begins in batch 0, with an empty target or one that it replaces. Mirrors are in the same registry, and
   `MERGE` reads it.
7. `FollowedBatch.run` (`batch_content`): each change gets a sign from its scan (`scans`), 1 for an insert and a
   post-image, -1 for a pre-image and a delete. Spark runs the rows SQL over them.
8. `FollowedRows` (`signed_batches`), without aggregates: `derived/last_rows` puts the last row of each key of the
   target, or deletes the key. A key's rows are in one task in their order, because a channel is a task; after a join
   they are gathered and sorted.
9. `FollowedGroups`, with aggregates: Spark partitions the rows by group. `derived/state/group_states` merges them with
   the state of their groups (`state_tables`), and yields results and new state. Spark runs the result SQL over the
   results, unless it only copies columns.
10. `spark/batch_tasks` and `batches/sinks/batch_writer`: tasks stage the puts and deletes of the target and of the
    state, and the driver publishes all with the marker in one transaction. So the state is always that of the published
    batches, and a repeated batch reads the state that it read before. In a store without such a transaction, each state
    row also has what it was before the last batch.

The query is five values on this way: `FollowedQuery` is its text in parts, `FollowedPlan` has what Spark says about
it, `FollowedStream` its target, and `BatchQuery` with `GroupQuery` what a batch runs.

A query that starts with another text and ``replace`` first has step 11: `replacement` computes its result over the rows
of the last batch, which `layouts` finds beside the target, or `table_positions` in the tables.

A query that step 4 cannot split, such as a join of two scans, has the same way with two other steps: `gathered` finds
with `headrace.derived.gathering` which rows a batch must read, and `gathered_batches` evaluates the query over these
rows before the batch and after it, or once if it only joins and filters. If its last SELECT has aggregates that are
kept by group, only the rows below them are evaluated so, and the driver merges their difference with the groups.

Where such a query would read whole tables, `planning` looks for inner queries with kept aggregates (`inner_queries`).
Each is a `FollowedPlan` of its own: its groups are a table in the state, which the text around it reads. A batch
evaluates the inner queries first, and the changes of their groups are changes of a table for the next ones.
"""
