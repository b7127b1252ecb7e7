"""One directory used by clients of the endpoint and by processes that open the store directly."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from yt.wrapper import YtClient

import headrace
from headrace.stores.embedded.store import EmbeddedStore
from tests.ytsaurus.interop.ytsaurus_server import TOKEN, YtServer
from tests.ytsaurus.interop.ytsaurus_tables import AT_ONCE, consumer, fill, losing_transaction, pulled, queue

PAGE = Path(__file__).parents[3] / "docs" / "ytsaurus-endpoint.md"


@pytest.fixture
def client(yt_server: YtServer) -> YtClient:
    return yt_server.client(**AT_ONCE)


@pytest.fixture
def store(yt_server: YtServer) -> Iterator[EmbeddedStore]:
    store = headrace.open(yt_server.root)
    assert isinstance(store, EmbeddedStore)
    yield store
    store.close()


def test_each_side_sees_the_rows_and_offsets_of_the_other(client: YtClient, store: EmbeddedStore) -> None:
    path = queue(client, "//tmp/sides")
    reader = consumer(client, "//tmp/sides-reader", path)
    rows = store.queue(path)
    for number in range(3):
        rows.append([{"data": f"headrace {number}".encode()}], partition=0)
        fill(client, path, 1, f"client {number}", tablet=0)
    stored = rows.read(0, 0).rows.column("data").to_pylist()
    assert [row["data"].encode() for row in pulled(client, path, 0)] == stored
    store.consumer(reader).advance(path, {0: 2})
    rest = list(client.pull_queue_consumer(reader, path, offset=None, partition_index=0))
    assert [row["$row_index"] for row in rest] == [2, 3, 4, 5]
    client.advance_queue_consumer(reader, path, 0, 2, 5)
    assert store.consumer(reader).offsets(path) == {0: 5}


def test_a_transaction_conflicts_with_a_direct_advance_of_its_consumer(client: YtClient, store: EmbeddedStore) -> None:
    path = queue(client, "//tmp/contended")
    reader = consumer(client, "//tmp/contended-reader", path)
    fill(client, path, 5)
    with losing_transaction(client, match="another client has advanced"):
        client.advance_queue_consumer(reader, path, 0, 0, 3)
        client.insert_rows(path, [{"data": "of the transaction"}])
        store.consumer(reader).advance(path, {0: 1})
    assert store.consumer(reader).offsets(path) == {0: 1}
    assert len(pulled(client, path, 0)) == 5


def test_a_directory_is_served_by_one_process(yt_server: YtServer) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "serve", "--ytsaurus", "0", "--root", str(yt_server.root)],
        env={**os.environ, "HEADRACE_YT_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode != 0
    assert "another process serves this directory" in second.stderr


def test_the_page_on_the_endpoint_runs_unchanged(yt_server: YtServer) -> None:
    script = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    script = script.replace("http://127.0.0.1:8585", yt_server.url).replace('"cluster"', repr(str(yt_server.root)))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "YT_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    listed, offsets = done.stdout.splitlines()
    assert "//tmp/clicks" in listed
    assert "'data': b'one'" in listed
    assert offsets == "{0: 1, 1: 0}"
