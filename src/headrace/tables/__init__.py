"""Values and rules of tables, the same for every store. Pure: no I/O, and no store."""
