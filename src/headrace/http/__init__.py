"""The base of all servers: connections, requests and bytes within limits, start and stop."""
