"""A server of a test, and clients that send valid and invalid HTTP byte by byte."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from google.protobuf.message import Message

from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.plainbuffer.rows import encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, Row
from headrace_tablestore.wire.signatures import Credentials, content_md5, request_headers
from tests.descriptors import without_databases
from tests.interop.programs import ACCESS_KEY_ID, ACCESS_KEY_SECRET
from tests.python_messages import without_end_of_python

CREDENTIALS = Credentials(ACCESS_KEY_ID, ACCESS_KEY_SECRET)
INSTANCE = "shop"
PATIENCE = 30.0
_IGNORE = pb.Condition(row_existence=pb.IGNORE)
_IMPATIENT = """
import os, sys
from pathlib import Path
from headrace_tablestore.endpoint.app import Bounds
from headrace_tablestore.endpoint.configuration import Configuration
from headrace_tablestore.endpoint.declaration import ENDPOINT
from headrace.http.limits import Limits
from headrace.http.logs import log_as_json
log_as_json()
configuration = Configuration.load(Path(sys.argv[1]), None, environ=os.environ)
ready = lambda host, port: print('{"host": "%s", "port": %d}' % (host, port), flush=True)
# A server that waits for requests to end when it stops does not end in time.
limits = Limits(
    head_seconds=0.5, reading_seconds=0.5, drain_seconds=0.5, stopping_seconds=0.5, grace_seconds=600, stop_seconds=600,
)
ENDPOINT.serve(configuration, 0, ready=ready, bounds=Bounds(workers=2, waiting=2, body_seconds=0.5), limits=limits)
"""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return "OK" if self.status == 200 else pb.Error.FromString(self.body).code

    @property
    def result(self) -> tuple[int, str]:
        return self.status, self.code


class Server:
    """A server process."""

    def __init__(self, process: subprocess.Popen[str], host: str, port: int, log: Path) -> None:
        self.process = process
        self.address = (host, port)
        self._log = log

    def log(self) -> str:
        return without_end_of_python(self._log.read_text())

    def usage(self) -> tuple[int, int]:
        """Return the number of descriptors without those of databases, and the resident bytes."""
        return without_databases(self.process.pid), psutil.Process(self.process.pid).memory_info().rss

    def knows(self, connection: socket.socket) -> bool:
        """Return whether the server keeps its side of a connection open."""
        port = connection.getsockname()[1]
        return any(
            other.raddr and other.raddr.port == port
            for other in psutil.Process(self.process.pid).net_connections("tcp4")
        )

    def connect(self, **settings: int) -> socket.socket:
        connection = socket.socket()
        for name, value in settings.items():
            connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        connection.settimeout(PATIENCE)
        connection.connect(self.address)
        return connection

    def ask(self, data: bytes) -> Answer:
        """Send bytes over a new connection and return the response."""
        with self.connect() as connection:
            connection.sendall(data)
            return read_answer(connection)

    def send(self, path: str, request: Message | bytes, **changed: Any) -> Answer:
        return self.ask(packed(path, request, **changed))

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE)


@contextmanager
def serving(root: Path, *, impatient: bool = False) -> Iterator[Server]:
    """Serve a directory. ``impatient`` lowers the time limits and the number of waiting requests.

    Asserts at the end that the log has no failure.
    """
    arguments = ["-c", _IMPATIENT, str(root)]
    if not impatient:
        arguments = ["-m", "headrace.cli.main", "serve", "--tablestore", "0", "--root", str(root), "--json"]
    keys = {"HEADRACE_ACCESS_KEY_ID": ACCESS_KEY_ID, "HEADRACE_ACCESS_KEY_SECRET": ACCESS_KEY_SECRET}
    log = root / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, *arguments], env=os.environ | keys, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, log.read_text()
        at = json.loads(line)
        server = Server(process, at["host"], at["port"], log)
        yield server
        if process.poll() is None:
            assert server.stop() == 0
        assert process.returncode == 0
        assert "traceback" not in server.log().lower()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def until(holds: Callable[[], bool]) -> bool:
    """Wait until a condition is true; return whether it is."""
    ends = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)
    return True


# -- requests, valid except for the given fault ------------------------------------------------------


def packed(
    path: str,
    request: Message | bytes,
    *,
    instance: str = INSTANCE,
    credentials: Credentials = CREDENTIALS,
    headers: Mapping[str, str | None] | None = None,
    length: int | None = None,
    chunks: int | None = None,
    **signing: Any,
) -> bytes:
    """Return a signed request as bytes.

    Args:
        headers: replace signed headers; None omits one.
        length: the declared length of the body, which can be wrong.
        chunks: send the body in chunks of this number of bytes, without a length.
    """
    body = request if isinstance(request, bytes) else request.SerializeToString()
    return head(path, body, instance, credentials, headers or {}, length, chunks, signing) + (
        body if chunks is None else chunked(body, chunks)
    )


def head(
    path: str,
    body: bytes,
    instance: str,
    credentials: Credentials,
    changed: Mapping[str, str | None],
    length: int | None,
    chunks: int | None,
    signing: Mapping[str, Any],
) -> bytes:
    fields: dict[str, str | None] = {"Host": "localhost"}
    fields |= request_headers(path, body, credentials, instance, **signing)
    if chunks is None:
        fields["Content-Length"] = str(len(body) if length is None else length)
    else:
        fields["Transfer-Encoding"] = "chunked"
    lines = [f"{name}: {value}" for name, value in (fields | dict(changed)).items() if value is not None]
    return "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode("latin-1")


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def table_request(name: str) -> pb.CreateTableRequest:
    """Return the request for a table with the key (pk STRING)."""
    request = pb.CreateTableRequest(table_options=pb.TableOptions(time_to_live=-1, max_versions=1))
    request.table_meta.table_name = name
    request.table_meta.primary_key.add(name="pk", type=pb.STRING)
    request.reserved_throughput.capacity_unit.read = 0
    request.reserved_throughput.capacity_unit.write = 0
    return request


def row(key: str, **values: Any) -> bytes:
    return encode_row(Row((("pk", key),), tuple(Cell(name, value) for name, value in values.items())))


def put_request(table: str, data: bytes) -> pb.PutRowRequest:
    return pb.PutRowRequest(table_name=table, row=data, condition=_IGNORE)


def batch_request(table: str, rows: list[bytes]) -> pb.BatchWriteRowRequest:
    request = pb.BatchWriteRowRequest()
    part = request.tables.add(table_name=table)
    for data in rows:
        part.rows.add(type=pb.PUT, row_change=data, condition=_IGNORE)
    return request


def get_request(table: str, key: str) -> pb.GetRowRequest:
    return pb.GetRowRequest(table_name=table, primary_key=row(key), max_versions=1)


# -- responses ------------------------------------------------------------------------------------------------


def read_answer(connection: socket.socket) -> Answer:
    """Read one complete response. Raise AssertionError if the connection ends before."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _received(connection)
    start, body = data.split(b"\r\n\r\n", 1)
    status, headers = _head(start)
    while len(body) < int(headers["content-length"]):
        body += _received(connection)
    return _checked(status, headers, body)


async def read_answer_of(reader: asyncio.StreamReader) -> Answer:
    status, headers = _head((await reader.readuntil(b"\r\n\r\n"))[:-4])
    return _checked(status, headers, await reader.readexactly(int(headers["content-length"])))


def is_closed(connection: socket.socket) -> bool:
    """Wait until the other side closes. Return False if it sends bytes or does not close."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    assert data, "the connection was closed before the answer was complete"
    return data


def _head(start: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = start.decode("latin-1").split("\r\n")
    pairs = (line.split(": ", 1) for line in lines)
    return int(first.split(" ")[1]), {name.lower(): value for name, value in pairs}


def _checked(status: int, headers: dict[str, str], body: bytes) -> Answer:
    if "x-ots-contentmd5" in headers:
        assert headers["x-ots-contentmd5"] == content_md5(body)
    return Answer(status, headers, body)
