"""Values and rules of queues and consumers, the same for all stores. No I/O."""
