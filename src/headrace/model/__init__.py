"""Values and rules of tables, tunnels and queues: columns, changes, positions. Nothing here reads or writes."""
