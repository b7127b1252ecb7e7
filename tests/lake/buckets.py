"""Buckets of a local object store, moto's server, which refuses a put of an object that exists, if it is asked to."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

import headrace
from headrace.model.tables.changes import RowChange
from headrace.ports import Store
from headrace.support import failpoints
from tests.lake.jobs import write

# Older ones than 5.2.5 do not end the uploads of Arrow: not any one of the machine.
PROGRAM = os.environ.get("HEADRACE_MOTO_SERVER") or shutil.which("moto_server", path=Path(sys.executable).parent)
SECRET = "a-secret-key"
URL = "delta+s3://lake/some where"


@dataclass(frozen=True)
class TestBucket:
    """A store in a bucket: its URL, the service, and the home of the store."""

    __test__ = False
    url: str
    endpoint: str
    home: Path

    @property
    def options(self) -> dict[str, Any]:
        """The options of `headrace.open`."""
        keys = {"access_key_id": "key", "secret_access_key": SECRET, "region": "us-east-1"}
        return {"endpoint": self.endpoint, "home": str(self.home), **keys}

    @property
    def spark_options(self) -> dict[str, str]:
        """The options of Spark and SQL."""
        return {
            "deltaHome": str(self.home),
            "deltaEndpoint": self.endpoint,
            "deltaRegion": "us-east-1",
            "deltaAccessKeyId": "key",
            "deltaSecretAccessKey": SECRET,
        }

    @property
    def storage_options(self) -> dict[str, str]:
        """The options of deltalake, for another program."""
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": SECRET, "aws_region": "us-east-1"}
        return {"aws_endpoint": self.endpoint, "aws_allow_http": "true", **keys}

    def foreign(self, table: str) -> DeltaTable:
        """Return a table as another program opens it."""
        return DeltaTable(f"{self.url.removeprefix('delta+')}/{table}", storage_options=self.storage_options)

    def open(self) -> Store:
        """Open the store."""
        headrace.open(self.home, create=True, synchronous="off").close()
        return headrace.open(self.url, **self.options)


@contextmanager
def bucket(directory: Path) -> Iterator[TestBucket]:
    """Start a server with a bucket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert PROGRAM is not None
    with (directory / "moto.log").open("wb") as log:
        server = subprocess.Popen([PROGRAM, "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _create(f"{endpoint}/lake")
        yield TestBucket(URL, endpoint, directory / "home")
    finally:
        server.terminate()
        server.wait()


def _create(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def put_rows(place: TestBucket, writer: int, count: int) -> None:
    """Put rows, each in a commit of its own."""
    with place.open() as store:
        for number in range(count):
            store.table("t").put({"id": 100 * writer + number, "name": "x"})


def publish(place: TestBucket, first: int, end: int, point: str | None = None) -> None:
    """Publish batches into two tables, and be killed at a failpoint."""
    with place.open() as store:
        publisher = store.publisher("job", "sink")
        failpoints.arm(point)
        for batch in range(first, end):
            if publisher.resume(batch):
                continue
            row = {"id": batch, "name": f"job {batch}"}
            writes = [write(store, publisher, batch, table, [row], RowChange.PUT) for table in ("t", "u")]
            if batch:
                writes.append(write(store, publisher, batch, "u", [{"id": batch - 1}], RowChange.DELETE))
            publisher.publish(batch, writes, content=str(batch))
