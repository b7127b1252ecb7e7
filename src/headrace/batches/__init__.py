"""Batches of streams, between stores and Spark: ``feeds`` reads them, ``sinks`` writes them, without Spark.

From a change in a table to a row in a sink:

To the plan of a batch: `spark/data_sources` → `spark/stream_reader` → `formats/source`, and the source of the format,
such as `formats/headrace/source` → `feeds/feed` → `feeds/tunnel_feed` (`model/tunnels/channels`, `feeds/limits`,
`model/tunnels/records`) → `STORE/tunnels/tunnel`, its records of batches (`stores/shared/tunnel_batches`). In a task:
`spark/stream_reader` → `formats/source` → `feeds/channel_reading` → `STORE/tunnels/tunnel` →
`model/tables/change_columns`.

To a sink: `spark/write_stream` (`spark/outputs`, `spark/batched_stream`) → `spark/batch_tasks`, or
`spark/native_sinks` → `sinks/batch_writer` → `sinks/targets` → `rows/from_user` → `STORE/publication/publisher`,
`STORE/publication/staging`. `spark/checkpoint` finds the job, and reads the consumers' progress and the batch's content
from Spark's checkpoint.

1. A writer's transaction changes rows of a table and appends the changes to the log of their partition, with one
   commit version and timestamp.
2. A tunnel divides the table into channels: key ranges of a snapshot (base data), then the logs of the partitions. A
   channel opens when all its parents are finished and committed. The function `channel_states` is the only
   implementation of that rule.
3. Spark asks the reader (`StreamReader`) for the latest offset. `FeedPlanner.latest` waits while there are no
   commits. `TunnelFeed.latest` looks for unread changes, divides the limits among the channels (`feeds.limits`), and
   creates a batch id (a UUID). It saves the plan of the batch in the store *before* Spark writes the id into its
   offset log.
4. Spark asks for the tasks of the batch (`TunnelFeed.tasks`). Each task reads one channel from its planned start
   (`feeds.channel_reading.read_channel`) and records the channel's end if none is recorded. Every later reader of the
   batch reads exactly up to the recorded end. A `Shape` makes Spark's rows of the changes.
5. Tasks of the sink stage Arrow batches in the store, invisibly (`BatchWriter.stage`, for `write_stream`, native sinks
   and batch writes alike). A `Target` checks the columns, and converts the rows. The driver publishes the whole batch
   with the marker (job, batch id), in one transaction if the store has such (`Publisher.publish`). A batch with a
   marker changes nothing. `write_stream` runs both in `foreachBatch` (`spark/batch_tasks`); Spark runs a native sink's
   `write` in tasks, and its `commit` in the driver.
6. When Spark asks for the next offset (`TunnelFeed.latest` again), the previous batch is complete. The feed commits
   the position of every channel to the tunnel, which opens children, and deletes batches beyond the retained ones.

Plan and ends determine a batch from its first read on. The marker shows whether it is published. A crash between the
two repeats work and changes no result.
"""
