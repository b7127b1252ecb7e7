"""Queues, consumers and producers: commands, attributes and trimming."""
