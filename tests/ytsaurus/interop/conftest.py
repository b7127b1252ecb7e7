"""The endpoint of YTsaurus in a process of its own, for official clients."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from yt.wrapper import YtClient

from tests.ytsaurus.interop.ytsaurus_server import YtServer, serving
from tests.ytsaurus.interop.ytsaurus_tables import AT_ONCE


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
