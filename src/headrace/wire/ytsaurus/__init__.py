"""What YTsaurus' HTTP API speaks of: column types, errors, paths. Pure values, no sockets."""
