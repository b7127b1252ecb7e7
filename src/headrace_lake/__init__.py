"""Lake tables for headrace: directories of Delta Lake tables, and DuckLakes in PostgreSQL databases."""
