"""The language: from the text of a script to statements, and from the time functions to Spark SQL. No I/O, no Spark."""
