"""Streaming logic over any store's ports, without Spark: offsets, batches, limits, replay, commit."""
