"""An object store with the part of S3's protocol that small objects need, in memory."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        old = self.server.objects.get(self._key)
        expected, absent = self.headers.get("If-Match"), self.headers.get("If-None-Match") == "*"
        if (absent and old is not None) or (expected and (old is None or _tag(old) != expected)):
            self._reply(412)
            return
        self.server.objects[self._key] = data
        self._reply(200, tag=_tag(data))

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self._reply(200, self._listing(query.get("prefix", [""])[0]))
            return
        data = self.server.objects.get(self._key)
        if data is None:
            self._reply(404)
        else:
            self._reply(200, data, tag=_tag(data))

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        self.server.objects.pop(self._key, None)
        self._reply(204)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path)

    def _listing(self, prefix: str) -> bytes:
        bucket = self._key.rstrip("/") + "/"
        keys = sorted(key.removeprefix(bucket) for key in self.server.objects if key.startswith(bucket + prefix))
        contents = "".join(f"<Contents><Key>{escape(key)}</Key></Contents>" for key in keys)
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()

    def _reply(self, status: int, body: bytes = b"", tag: str | None = None) -> None:
        self.send_response(status)
        if tag is not None:
            self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Server(http.server.ThreadingHTTPServer):
    # `server_close` waits for the threads of connections.
    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


@contextmanager
def serving_s3() -> Iterator[str]:
    """Serve an empty object store, and yield its address."""
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
