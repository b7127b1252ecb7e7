"""Growth of an embedded store: time and memory of single steps against the size of what they work on."""
