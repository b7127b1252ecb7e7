"""Queues, consumers and producers of a YTsaurus cluster."""
