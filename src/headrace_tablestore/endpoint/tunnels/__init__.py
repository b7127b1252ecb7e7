"""Tunnels: their operations, their clients, and changes as records."""
