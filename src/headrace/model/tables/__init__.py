"""Values and rules of tables, the same for all stores. No I/O."""
