"""Tablestore for headrace: the store of an instance, format ``tablestore``, the HTTP API, and an endpoint for it."""
