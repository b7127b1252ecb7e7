"""Batches of streams, between stores and Spark: ``feeds`` reads them, ``sinks`` writes them, without Spark."""
