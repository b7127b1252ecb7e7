"""Tables of the embedded store."""
