"""The base of all servers: limits of connections, requests and bytes; threads; start and stop."""
