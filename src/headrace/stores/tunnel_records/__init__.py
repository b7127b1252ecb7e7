"""Batches and clients of tunnels, as rows in tables that the embedded store and the PostgreSQL store both have."""
