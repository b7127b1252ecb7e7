"""Queries that follow tables: their target holds what the same SELECT would give over the current rows."""
