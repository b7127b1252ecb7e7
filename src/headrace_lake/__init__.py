"""Lake tables for headrace: the store of a directory of Delta Lake tables."""
