"""Queries that follow tables: the target has what the same SELECT would give over the current rows."""
