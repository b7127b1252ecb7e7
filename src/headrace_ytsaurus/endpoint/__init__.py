"""YTsaurus' HTTP API over an embedded store: an ASGI application, and a server that runs it."""
