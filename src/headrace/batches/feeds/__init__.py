"""Reading tunnels and queues in batches, without Spark: offsets, plans, limits, replay, commit.

From a row of a queue to a sink:

1. An append assigns row indexes in one transaction, and writes the rows as chunks, in the same form as change logs.
2. `QueueFeed.latest` reads the bounds of all partitions, divides the limits, and returns offsets: the first unread row
   of each partition. A batch is the rows between two offsets; no other record is needed.
3. Ranges of rows become tasks: small ranges are combined, large ones are split. Tasks read pages by row index.
4. Tasks of the sink stage rows; for a queue they stage chunks. The driver reads from the checkpoint which queues of
   this store the batch covers with a consumer (`spark.checkpoint.BatchOffsets`). It publishes rows, marker and the
   consumers' advances in one transaction.
5. When Spark asks for the next offset, the feed advances consumers that no publication has advanced.
"""
