"""Endpoints in separate processes, for official clients."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from yt.wrapper import YtClient

from tests.interop.own_database import server as server
from tests.interop.own_database import store as store
from tests.interop.own_database import url as url
from tests.interop.programs import ACCESS_KEY_ID as ACCESS_KEY_ID
from tests.interop.programs import ACCESS_KEY_SECRET as ACCESS_KEY_SECRET
from tests.interop.programs import environment
from tests.interop.ytsaurus_server import YtServer, serving
from tests.interop.ytsaurus_tables import AT_ONCE


@dataclass(frozen=True)
class Endpoint:
    """The address of the endpoint, and the directory of its instances."""

    url: str
    root: Path


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """`headrace serve` on a free port. It must stop after SIGTERM."""
    root = tmp_path_factory.mktemp("instances")
    command = [sys.executable, "-m", "headrace.cli.main", "serve", "--tablestore", "0", "--root", str(root), "--json"]
    log = root / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield Endpoint(json.loads(line)["endpoint"], root)
        process.terminate()
        assert process.wait(30) == 0
        assert "traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def yt_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YtServer]:
    """`headrace serve --ytsaurus` on a free port."""
    with serving(tmp_path_factory.mktemp("cluster")) as server:
        yield server


@pytest.fixture(scope="module")
def client(yt_server: YtServer) -> YtClient:
    """YTsaurus' client without retries, so that conflicts raise errors immediately."""
    return yt_server.client(**AT_ONCE)


@pytest.fixture
def home(client: YtClient) -> Iterator[str]:
    """A new directory for the test."""
    path = f"//tmp/{uuid.uuid4().hex}"
    client.create("map_node", path)
    yield path
    client.remove(path, recursive=True, force=True)
