"""Format ``headrace``: tables, tunnels and queues of any store, with headrace's own option names."""
