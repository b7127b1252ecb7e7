"""Protocols of stores as pure functions over values, without I/O: shared by clients and endpoints."""
