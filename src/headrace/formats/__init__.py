"""The data source formats: their options, columns and stores, as values."""
