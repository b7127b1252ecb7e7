"""SQLite connections for everything that keeps a database: embedded stores and workspaces of streaming SQL."""
