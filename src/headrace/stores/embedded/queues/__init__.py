"""Queues, consumers and producers of the embedded store."""
