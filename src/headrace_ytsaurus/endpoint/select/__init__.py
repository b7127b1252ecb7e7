"""The query language of select_rows."""
