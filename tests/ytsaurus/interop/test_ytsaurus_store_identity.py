"""Clusters of one name are different stores: each `headrace serve` is called primary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.checkpoint_server.served_directories import ServedDirectories
from headrace.errors import OptionError, StoreError
from headrace.spark.executors import task_store
from headrace.stores.registry import StoreAddress
from tests.ytsaurus.interop.ytsaurus_server import TOKEN, YtServer, serving


def address_in(server: YtServer) -> StoreAddress:
    return StoreAddress(f"yt+{server.url}//home/shop", {"token": TOKEN})


def test_local_clusters_are_told_apart_and_keep_their_identity(tmp_path: Path) -> None:
    with serving(tmp_path / "a") as server, address_in(server).open() as store:
        first = store.instance()
        with serving(tmp_path / "b") as other_server, address_in(other_server).open() as other:
            assert other.id == store.id
            with (
                pytest.raises(StoreError, match="leads to another store"),
                task_store(replace(address_in(other_server), instance=first)),
            ):
                pass
            served = ServedDirectories()
            served.add(store, "/checkpoints/job")
            with pytest.raises(OptionError, match="another store with this id"):
                served.add(other, "/checkpoints/job")
    with serving(tmp_path / "a") as server, task_store(replace(address_in(server), instance=first)):
        pass
