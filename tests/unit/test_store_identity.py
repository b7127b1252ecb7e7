"""Tasks open the store for which they were planned, and no other; and only with the planner's version of headrace."""

from __future__ import annotations

import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle

import headrace
from headrace.errors import StoreError
from headrace.ports import Store
from headrace.spark.batch_tasks import LocatedSink, PublishedBatches
from headrace.spark.executors import Sent, sent, task_store
from headrace.spark.outputs import OutputRows
from headrace.stores.registry import StoreAddress
from tests.clusters.environments import create, interpreter

# Untyped in pyspark.
_cloudpickle: Any = cloudpickle


def make_store(path: Path) -> str:
    """Create a store, and return its instance."""
    with headrace.open(path, create=True, synchronous="off") as store:
        store.create_queue("clicks", {"user": "string"})
        return store.instance()


class Reader(Sent):
    """An object that Spark sends to executors."""

    def __init__(self, name: str) -> None:
        self.name = name


def test_a_task_opens_the_store_of_its_plan(tmp_path: Path) -> None:
    instance = make_store(tmp_path / "shop")
    with task_store(StoreAddress(str(tmp_path / "shop"), instance=instance)) as store:
        assert store.queues() == ["clicks"]


def test_an_address_travels_with_its_options_and_shows_none(tmp_path: Path) -> None:
    address = StoreAddress(str(tmp_path / "s3cret"), {"synchronous": "off"})
    with address.open(create=True) as store:
        sent_to_tasks = pickle.loads(pickle.dumps(address.of(store)))
    assert sent_to_tasks.options == {"synchronous": "off"}
    with task_store(sent_to_tasks) as opened:
        assert opened.id == store.id
    assert "s3cret" not in repr(address)


def test_a_missing_store_another_one_and_a_copy_at_the_path_are_refused(tmp_path: Path) -> None:
    instance = make_store(tmp_path / "shop")

    def error() -> str:
        with pytest.raises(StoreError) as raised, task_store(StoreAddress(str(tmp_path / "shop"), instance=instance)):
            pass
        assert raised.value.__notes__ == [f"In a task on host {socket.gethostname()}, Python {sys.executable}"]
        return str(raised.value)

    (tmp_path / "shop").rename(tmp_path / "elsewhere")
    assert "the store of the driver is not on the host of this task" in error()
    assert not (tmp_path / "shop").exists()
    make_store(tmp_path / "shop")
    assert "leads to another store" in error()
    shutil.rmtree(tmp_path / "shop")
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "shop")
    assert "leads to another store" in error()


def test_a_batch_is_not_written_into_another_store_than_that_of_the_start_of_its_query(tmp_path: Path) -> None:
    instance = make_store(tmp_path / "started")
    make_store(tmp_path / "shop")

    # Over Spark Connect, the function runs on the server, where another store can be at the path.
    address = StoreAddress(str(tmp_path / "shop"), instance=instance)
    publish = PublishedBatches(LocatedSink(address, str(tmp_path / "c")), OutputRows((), False, None))
    batch: Any = SimpleNamespace(sparkSession=None)
    with pytest.raises(StoreError, match="leads to another store"):
        publish(batch, 0)


def test_an_error_in_a_task_names_the_host(tmp_path: Path) -> None:
    instance = make_store(tmp_path / "shop")

    def read() -> Iterator[Store]:
        with task_store(StoreAddress(str(tmp_path / "shop"), instance=instance)) as store:
            store.queue("unknown")
            yield store

    with pytest.raises(headrace.HeadraceError) as raised:
        next(read())
    assert raised.value.__notes__[0].startswith(f"In a task on host {socket.gethostname()}")


def test_what_is_sent_is_unpacked_by_the_same_version_only(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = pickle.dumps(Reader("r"))
    function = _cloudpickle.dumps(sent(len))
    assert pickle.loads(reader).name == "r"
    assert pickle.loads(function)("abc") == 3
    monkeypatch.setattr(headrace, "__version__", "9.9.9")
    refused = r"received: headrace 9\.9\.9 on host .*; valid: headrace 0\.\S+; install"
    with pytest.raises(ImportError, match=refused):
        pickle.loads(reader)
    with pytest.raises(ImportError, match=refused):
        pickle.loads(function)("abc")


def test_a_process_without_headrace_says_so(tmp_path: Path) -> None:
    sample = tmp_path / "sample"
    sample.write_bytes(_cloudpickle.dumps(sent(len)))
    create(tmp_path / "venv", headrace=False)
    code = f"import pickle; print(pickle.load(open({str(sample)!r}, 'rb'))('abc'))"
    done = subprocess.run([interpreter(tmp_path), "-I", "-c", code], capture_output=True, text=True)
    assert "ModuleNotFoundError: headrace is not installed in a Python process of Spark; received: host " in done.stderr
