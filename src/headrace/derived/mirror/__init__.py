"""Mirrors: a table, or its history, copied into a table of another store."""
