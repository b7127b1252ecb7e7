"""The thin binding to Spark: data sources, sinks, session, listener."""
