"""Tunnels of the embedded store."""
