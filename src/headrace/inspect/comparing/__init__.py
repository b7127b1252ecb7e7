"""Comparing tables, also of different stores: rows that differ, and checksums of key ranges."""
