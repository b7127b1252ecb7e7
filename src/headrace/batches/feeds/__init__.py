"""Reading tunnels and queues in batches, without Spark: offsets, plans, limits, replay, commit."""
