"""Results that follow a table: the state of aggregates from signed rows, kept in tables of a store. No Spark."""
