"""Clusters of one name are different stores: each `headrace serve` is called primary."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.checkpoint_server.served_directories import ServedDirectories
from headrace.errors import OptionError, StoreError
from headrace.ports import Store
from headrace.spark.executors import task_store
from tests.interop.ytsaurus_server import TOKEN, YtServer, serving


def opened(server: YtServer) -> Store:
    return headrace.open(f"yt+{server.url}//home/shop", token=TOKEN)


def test_local_clusters_are_told_apart_and_keep_their_identity(tmp_path: Path) -> None:
    with serving(tmp_path / "a") as server, opened(server) as store:
        first = store.identity()
        with serving(tmp_path / "b") as other_server, opened(other_server) as other:
            assert other.id == store.id
            with (
                pytest.raises(StoreError, match="leads to another store"),
                task_store(lambda: opened(other_server), first),
            ):
                pass
            served = ServedDirectories()
            served.add(store, "/checkpoints/job")
            with pytest.raises(OptionError, match="another store with this id"):
                served.add(other, "/checkpoints/job")
    with serving(tmp_path / "a") as server, task_store(lambda: opened(server), first):
        pass
