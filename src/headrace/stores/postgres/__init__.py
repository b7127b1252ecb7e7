"""The store of a PostgreSQL database."""
