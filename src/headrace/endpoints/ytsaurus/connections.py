"""Connections of YTsaurus' clients, whose parameters, queries among them, are headers."""

from __future__ import annotations

from headrace.endpoints.connections import ClientConnection
from headrace.endpoints.ytsaurus.answers import failed
from headrace.endpoints.ytsaurus.errors import refused

HEAD_BYTES = 256 << 10
"""A request may have so many bytes of headers: some 10000 keys in a query."""


class YtConnection(ClientConnection):
    """A connection on which what is no request is answered as any other error is.

    Clients take an answer without an error of YTsaurus for a broken proxy, and ask again for minutes.
    """

    head_bytes = HEAD_BYTES

    def send_400_response(self, msg: str) -> None:
        if self._head_bytes > self.head_bytes:
            error = refused("The headers of the request are too long", valid=f"at most {self.head_bytes} bytes")
        else:
            error = refused("This is no request that can be read", received=msg.rstrip("."))
        response = failed(error)
        headers = {**response.headers, "content-length": str(len(response.body)), "connection": "close"}
        lines = ["HTTP/1.1 400 Bad Request", *(f"{name}: {value}" for name, value in headers.items())]
        self.transport.write("\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + response.body)
        self.transport.close()
