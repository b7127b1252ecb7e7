"""The language: scripts as statements, and the time functions as Spark SQL. No I/O, no Spark."""
