"""Tables of a YTsaurus cluster."""
