"""The conformance tests. Each module is one subject."""
