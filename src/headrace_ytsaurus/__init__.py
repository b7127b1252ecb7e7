"""YTsaurus for headrace: the store of a cluster, format ``yt``, the HTTP API, and an endpoint that serves it."""
