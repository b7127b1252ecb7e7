"""The data source formats. Each is a `Format` value in its own folder; `registry` lists them."""
