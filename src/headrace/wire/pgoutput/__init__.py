"""The messages of PostgreSQL's logical replication plugin ``pgoutput``: decoded into Arrow columns. No I/O."""
