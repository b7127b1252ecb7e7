"""SQLite connections of embedded stores and of workspaces of streaming SQL."""
