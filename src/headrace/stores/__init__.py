"""The stores, one folder each, found lazily by the scheme of a URL."""
