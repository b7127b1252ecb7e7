"""An endpoint in a separate process, with the official client and plain HTTP requests."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yt.wrapper

TOKEN = "only-for-tests"
PATIENCE = 30.0
_IMPATIENT = """
import os, sys
from headrace_ytsaurus.endpoint.app import HEAD_BYTES, Bounds
from headrace_ytsaurus.endpoint.configuration import Configuration
from headrace_ytsaurus.endpoint.declaration import ENDPOINT
from headrace.http.limits import Limits
from headrace.http.logs import log_as_json
log_as_json()
configuration = Configuration.load(sys.argv[1], None, cluster_name="primary", environ=os.environ)
ready = lambda host, port: print('{"host": "%s", "port": %d}' % (host, port), flush=True)
limits = Limits(
    head_bytes=HEAD_BYTES, head_seconds=0.5, reading_seconds=0.5, drain_seconds=0.5, stopping_seconds=0.5,
    grace_seconds=1, stop_seconds=2.0,
)
ENDPOINT.serve(configuration, 0, ready=ready, bounds=Bounds(workers=2, waiting=2, silent_seconds=0.5), limits=limits)
"""


@dataclass(frozen=True)
class Reply:
    """A response of the server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> int:
        """The code of the error in the headers, 0 if there is none."""
        return int(json.loads(self.headers.get("x-yt-error", '{"code": 0}'))["code"])


class YtServer:
    """A process that serves a directory as a YTsaurus cluster."""

    def __init__(self, process: subprocess.Popen[str], host: str, port: int, log: Path, root: Path) -> None:
        self.process = process
        self.address = (host, port)
        self.url = f"http://{host}:{port}"
        self.root = root
        self._log = log

    def client(self, token: str = TOKEN, **config: Any) -> yt.wrapper.YtClient:
        """Return the official client in its default configuration, with the given changes."""
        return yt.wrapper.YtClient(proxy=self.url, token=token, config=config or None)

    def log(self) -> str:
        return self._log.read_text()

    def call(
        self,
        method: str,
        command: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a command with its parameters as JSON: in the body if it is a POST, else in a header."""
        sent = {"Authorization": f"OAuth {TOKEN}", "X-YT-Header-Format": "json"}
        if parameters is not None and method == "POST" and body is None:
            body, sent["Content-Type"] = json.dumps(parameters).encode(), "application/json"
        elif parameters is not None:
            sent["X-YT-Parameters"] = json.dumps(parameters)
        return self.ask(method, f"/api/v4/{command}", body=body, headers={**sent, **(headers or {})})

    def ask(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send a request over a new connection."""
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE)
        try:
            connection.request(method, path, body=body, headers=dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, PATIENCE)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


@contextmanager
def serving(root: Path, *, impatient: bool = False, first: str = "") -> Iterator[YtServer]:
    """Serve a directory.

    Args:
        impatient: use short time limits, and allow few waiting requests.
        first: Python code that an impatient server runs before it serves.

    The log must not contain an error when the process has ended.
    """
    arguments = ["-c", first + _IMPATIENT, str(root)]
    if not impatient:
        arguments = ["-m", "headrace.cli.main", "serve", "--ytsaurus", "0", "--root", str(root), "--json"]
    root.mkdir(parents=True, exist_ok=True)
    log = root / f"log-{len(list(root.glob('log-*')))}"
    environment = {**os.environ, "HEADRACE_YT_TOKEN": TOKEN}
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        told = json.loads(line)
        yield YtServer(process, told["host"], told["port"], log, root)
        if process.poll() is None:
            process.terminate()
            assert process.wait(PATIENCE) == 0
        assert "traceback" not in log.read_text(), log.read_text()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
