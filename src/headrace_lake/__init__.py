"""Lake tables for headrace: directories of Delta Lake tables, DuckLakes in PostgreSQL, Iceberg tables."""
