"""Tunnels of a PostgreSQL database."""
