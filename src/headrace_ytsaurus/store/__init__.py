"""The store of a YTsaurus cluster, over its HTTP API and its official client."""
