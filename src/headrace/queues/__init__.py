"""Values and rules of queues and consumers, the same for every store. Pure: no I/O, and no store."""
