"""A client of the checkpoint server that sends the WebHDFS requests of Hadoop's client one by one."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from headrace.checkpoint_server.server import CheckpointServer


@dataclass
class Reply:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def exception(self) -> str:
        """The Java class of the exception in the client."""
        assert self.status >= 400, self
        return str(self.json["RemoteException"]["javaClassName"]).rpartition(".")[2]


class Client:
    """One connection to a server, with a token."""

    def __init__(self, server: CheckpointServer, root: str) -> None:
        self.server = server
        self.root = root
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        self.token = self.post_token(server.access.refresh_token).json["access_token"]

    def post_token(self, secret: str, client: str = "headrace", grant: str = "refresh_token") -> Reply:
        form = urlencode({"client_id": client, "grant_type": grant, "refresh_token": secret})
        return self.send("POST", "/oauth2/token", form.encode(), token=None)

    def send(self, method: str, target: str, body: Any = None, *, token: str | None = "") -> Reply:
        headers = {} if token is None else {"Authorization": f"Bearer {token or self.token}"}
        self.connection.request(method, target, body, headers, encode_chunked=False)
        answer = self.connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, headers, answer.read())

    def call(self, method: str, operation: str, path: str, **parameters: Any) -> Reply:
        """Send a request for a path below the served directory."""
        query = urlencode({"op": operation, **parameters})
        return self.send(method, f"/webhdfs/v1{quote(self.root + path)}?{query}")

    def create(self, path: str, content: bytes, *, overwrite: bool = False) -> Reply:
        """Write a file by two requests, as Hadoop's client does."""
        first = self.call("PUT", "CREATE", path, overwrite=str(overwrite).lower())
        if first.status != 307:
            return first
        return self.send("PUT", self.target(first), content)

    def open(self, path: str, **parameters: Any) -> Reply:
        """Read a file by two requests."""
        first = self.call("GET", "OPEN", path, **parameters)
        return first if first.status != 307 else self.send("GET", self.target(first))

    def target(self, redirect: Reply) -> str:
        """Return the target of a redirect, which must be this server."""
        parts = urlsplit(redirect.headers["location"])
        assert (parts.hostname, parts.port) == ("127.0.0.1", self.server.port)
        return f"{parts.path}?{parts.query}"

    def rename(self, source: str, destination: str, **parameters: Any) -> Reply:
        return self.call("PUT", "RENAME", source, destination=self.root + destination, **parameters)

    def exists(self, path: str) -> bool:
        return self.call("GET", "GETFILESTATUS", path).status == 200
