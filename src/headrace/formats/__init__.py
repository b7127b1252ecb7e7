"""The data source formats. Each is a `Format` value in a folder of its own; `registry` lists them."""
