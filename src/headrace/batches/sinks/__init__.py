"""Writing the rows of a batch into tables and queues of a store, without Spark: check, stage, publish."""
