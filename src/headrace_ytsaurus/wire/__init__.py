"""Values of YTsaurus' HTTP API: column types, errors, paths."""
