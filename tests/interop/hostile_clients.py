"""The three servers in processes with few descriptors, hostile clients, and a client with a credential."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

from headrace_tablestore.wire.signatures import Credentials, request_headers
from tests.python_messages import without_end_of_python

KINDS = ("checkpoints", "tablestore", "ytsaurus")
DESCRIPTORS = 256
"""The descriptors of a server's process: a quarter for connections, and half of these for anonymous ones."""
CONNECTIONS = DESCRIPTORS // 4
PATIENCE = 30.0
_KEY = Credentials("LTAItest", "hush-hush")
_TOKEN = "token-of-the-tests"
_SECRETS = {
    "HEADRACE_ACCESS_KEY_ID": _KEY.access_key_id,
    "HEADRACE_ACCESS_KEY_SECRET": _KEY.access_key_secret,
    "HEADRACE_YT_TOKEN": _TOKEN,
}
# A process that serves and, in another thread, opens files on request, as a driver does.
_SERVE = """
import json, os, resource, sys, threading
from dataclasses import replace
from pathlib import Path

kind, root, host, port, seconds = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
if seconds:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from headrace.http.application import Application
from headrace.http.logs import log_as_json
log_as_json()

def shorter(limits):
    if not seconds:
        return limits
    return replace(
        limits, head_seconds=seconds, anonymous_seconds=seconds, reading_seconds=seconds, drain_seconds=seconds,
        stopping_seconds=seconds,
    )

def open_files():
    for line in sys.stdin:
        files = [open(os.devnull) for _ in range(int(line))]
        for file in files:
            file.close()
        print(json.dumps({"opened": len(files)}), flush=True)

def ready(at, bound, **more):
    print(json.dumps({"host": at, "port": bound, **more}), flush=True)

threading.Thread(target=open_files, daemon=True).start()
if kind == "checkpoints":
    import signal
    import headrace
    from headrace.checkpoint_server import app, server
    app.CheckpointApp.limits = shorter(app.LIMITS)
    store = headrace.open(root / "store", create=True, synchronous="off")
    serving, url = server.serve(store, "/checkpoints/job", host)
    ready("127.0.0.1" if host == "localhost" else host, serving.port, secret=serving.access.refresh_token)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.pause()
elif kind == "tablestore":
    from headrace_tablestore.endpoint.configuration import Configuration
    from headrace_tablestore.endpoint.declaration import ENDPOINT
    from headrace.http.limits import Limits
    configuration = Configuration.load(root, None, environ=os.environ)
    ENDPOINT.serve(configuration, port, host=host, ready=ready, limits=shorter(Limits()))
else:
    from headrace_ytsaurus.endpoint.app import HEAD_BYTES
    from headrace_ytsaurus.endpoint.configuration import Configuration
    from headrace_ytsaurus.endpoint.declaration import ENDPOINT
    from headrace.http.limits import Limits
    configuration = Configuration.load(root, None, cluster_name="primary", environ=os.environ)
    ENDPOINT.serve(configuration, port, host=host, ready=ready, limits=shorter(Limits(head_bytes=HEAD_BYTES)))
"""


@dataclass
class Victim:
    """A server in its own process.

    Attributes:
        kind: one of `KINDS`.
        others: its open descriptors without connections and files of the store.
    """

    kind: str
    process: subprocess.Popen[str]
    host: str
    port: int
    secret: str = ""
    others: int = 0

    @property
    def idle(self) -> int:
        """The open descriptors without connections. Each thread has two of the store, and keeps them."""
        return self.others + self.files_of_the_store()

    def files_of_the_store(self) -> int:
        files = [Path(each.path).name for each in psutil.Process(self.process.pid).open_files()]
        return sum(map(files.count, ("db", "db-wal", "db-shm")))

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), PATIENCE)

    def client(self) -> KnownClient:
        return KnownClient(self)

    def descriptors(self) -> int:
        return int(psutil.Process(self.process.pid).num_fds())

    def memory(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def opens(self, count: int) -> bool:
        """Let the process open files; return whether it could."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return bool(json.loads(self.process.stdout.readline() or "{}").get("opened") == count)

    def anonymous(self) -> bytes:
        """Return the start of a request that needs a credential, up to its headers."""
        lines = {
            "checkpoints": "PUT /webhdfs/v1/a?op=CREATE&data=true",
            "tablestore": "POST /ListTable",
            "ytsaurus": "PUT /api/v4/set",
        }
        return f"{lines[self.kind]} HTTP/1.1\r\nHost: x\r\n".encode()


class KnownClient:
    """A client with a credential and one connection, which its first request opens."""

    def __init__(self, server: Victim) -> None:
        self._server = server
        self._connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE)
        self._token = ""

    def is_served(self) -> bool:
        """Send a request. Errors of the connection are raised."""
        match self._server.kind:
            case "checkpoints":
                return self._ask("GET", "/webhdfs/v1/?op=GETFILESTATUS", self._bearer())
            case "tablestore":
                return self._ask("POST", "/ListTable", request_headers("/ListTable", b"", _KEY, "shop"))
        parameters = json.dumps({"path": "//tmp"})
        headers = {"Authorization": f"OAuth {_TOKEN}", "X-YT-Parameters": parameters, "X-YT-Header-Format": "json"}
        return self._ask("GET", "/api/v4/exists", headers)

    def stays(self) -> None:
        """Do not reconnect when the server closes the connection."""
        self._connection.auto_open = 0

    def close(self) -> None:
        self._connection.close()

    def _bearer(self) -> dict[str, str]:
        if not self._token:
            form = {"client_id": "headrace", "grant_type": "refresh_token", "refresh_token": self._server.secret}
            self._connection.request("POST", "/oauth2/token", urlencode(form))
            self._token = json.loads(self._connection.getresponse().read())["access_token"]
        return {"Authorization": f"Bearer {self._token}"}

    def _ask(self, method: str, target: str, headers: Any) -> bool:
        self._connection.request(method, target, headers=headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status == 200


@contextmanager
def victim(kind: str, root: Path, *, host: str | None = None, port: int = 0, seconds: float = 0.5) -> Iterator[Victim]:
    """Start a server with few descriptors and time limits of ``seconds``; 0 keeps the default limits.

    It has to end without a traceback within some seconds after SIGTERM, unless it was killed.
    """
    root.mkdir(parents=True, exist_ok=True)
    log = root / "log"
    host = host or ("localhost" if kind == "checkpoints" else "127.0.0.1")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, kind, str(root), host, str(port), str(seconds)],
            env={**os.environ, **_SECRETS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, log.read_text()
        server = Victim(kind, process, **json.loads(line))
        with contextlib.closing(server.client()) as first:
            assert first.is_served()
        server.others = server.descriptors() - server.files_of_the_store()
        yield server
        if process.poll() is None:
            process.terminate()
            assert process.wait(PATIENCE) == 0
        printed = without_end_of_python(log.read_text())
        assert "raceback" not in printed, printed
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
