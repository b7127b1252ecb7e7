"""Storms over a matrix of victims, queries and stores, with a log that a later run continues: docs/reliability.md."""
