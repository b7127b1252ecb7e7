"""Checks of the invariants of an embedded store, and repairs of what can be repaired without losing data."""
