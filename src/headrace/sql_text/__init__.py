"""Texts in Spark SQL without Spark: tokens, expressions, scripts, and the blocks of a query."""
