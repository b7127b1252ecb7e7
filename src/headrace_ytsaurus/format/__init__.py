"""Format ``yt``: the option names and columns of SPYT, for queues and tables of any store. Names are paths."""
