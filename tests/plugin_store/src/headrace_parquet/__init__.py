"""Tables as Parquet files in a directory: a store that headrace finds by its entry point."""
