"""Rows: reads, writes, filters, and how cells are stored in typed columns."""
