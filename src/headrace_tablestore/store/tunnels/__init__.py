"""Tunnels of a Tablestore instance."""
