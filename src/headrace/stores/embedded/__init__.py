"""The embedded store: one directory with a SQLite database."""
