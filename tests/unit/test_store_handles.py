"""Handles of an embedded store: their descriptors end with their threads, and they can be sent to other processes."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import NotFoundError, StoreError, UnsupportedError
from headrace.ports import Store
from headrace.testing.processes import CONTEXT
from tests.descriptors import files_in
from tests.python_messages import without_end_of_python

THREADS = 100


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as created:
        created.create_table("orders", {"id": "long"}, "id")
        created.create_queue("clicks", {"n": "long"}, partitions=1)
        created.create_tunnel("orders", "changes")
        created.create_consumer("reader")
        created.create_producer("writer")
        yield created


def test_the_descriptors_of_ended_threads_are_closed(store: Store, tmp_path: Path) -> None:
    orders = store.table("orders")
    orders.put([{"id": -1}])
    before = files_in(tmp_path)
    all_open = threading.Barrier(THREADS + 1)

    def work(number: int) -> None:
        orders.put([{"id": number}])
        all_open.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    all_open.wait()
    for thread in threads:
        thread.join()
    # SQLite keeps descriptors of the database while this thread has it open.
    assert orders.get({"id": 1}) == {"id": 1}
    assert files_in(tmp_path) <= before
    # In one thread after the other, too.
    for number in range(THREADS):
        thread = threading.Thread(target=orders.put, args=([{"id": number}],))
        thread.start()
        thread.join()
    assert files_in(tmp_path) <= before + 1


def test_an_ended_thread_is_no_thread_any_more(store: Store) -> None:
    orders, before = store.table("orders"), set(threading.enumerate())
    for number in range(THREADS):
        thread = threading.Thread(target=orders.put, args=([{"id": number}],))
        thread.start()
        thread.join()
    # Threads of earlier tests can have ended.
    assert set(threading.enumerate()) <= before


def test_handles_can_be_pickled(store: Store, tmp_path: Path) -> None:
    store.table("orders").put([{"id": 1}])
    store.queue("clicks").append([{"n": 1}], partition=0)
    handles: list[Any] = [
        store,
        store.table("orders"),
        store.queue("clicks"),
        store.tunnel("changes"),
        store.consumer("reader"),
        store.producer("writer"),
        store.publisher("job"),
        store.files(),
    ]
    copies = [pickle.loads(pickle.dumps(handle)) for handle in handles]
    assert [type(copy) for copy in copies] == [type(handle) for handle in handles]
    assert copies[0].instance() == store.instance()
    assert copies[1].get({"id": 1}) == {"id": 1}
    assert copies[2].bounds()[0].upper == 1
    assert copies[3].describe().channels
    assert copies[0].wait_for_change(0)


def test_a_worker_cannot_be_pickled_and_says_what_can(store: Store) -> None:
    with pytest.raises(UnsupportedError, match=r"has threads.*send the tunnel, and call its consume\(\) there"):
        pickle.dumps(store.tunnel("changes").consume(client="one", idle="stop"))


def _put(orders: Any, number: int) -> None:
    orders.put([{"id": number}])


def test_a_table_can_be_sent_to_another_process(store: Store) -> None:
    orders = store.table("orders")
    process = CONTEXT.Process(target=_put, args=(orders, 7))
    process.start()
    process.join()
    assert orders.get({"id": 7}) == {"id": 7}


def test_a_pickled_handle_opens_no_other_store(store: Store, tmp_path: Path) -> None:
    pickled = pickle.dumps(store.table("orders"))
    store.close()
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    with pytest.raises(NotFoundError, match="no store here"):
        pickle.loads(pickled)
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "store")
    with pytest.raises(StoreError, match="leads to another store, or to a copy"):
        pickle.loads(pickled)


# Modules are torn down in reverse order of their import, and only if something else has them.
AT_THE_END = """
import queue, shutil, sys, threading
import headrace

def keep(modules):
    threading.Event().wait()

store = queue.store = headrace.open(sys.argv[1], create=True, synchronous="off")
store.create_table("orders", {"id": "long"}, "id").put([{"id": 1}])
store._database._commits.prepare()
threading.Thread(target=keep, args=(dict(sys.modules),), daemon=True).start()
if sys.argv[2:]:
    shutil.rmtree(sys.argv[1])
"""


@pytest.mark.parametrize("removed", [[], ["removed"]], ids=["there", "removed"])
def test_a_store_that_lives_longer_than_modules_prints_nothing(tmp_path: Path, removed: list[str]) -> None:
    command = [sys.executable, "-c", AT_THE_END, str(tmp_path / "kept"), *removed]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, without_end_of_python(ended.stdout + ended.stderr)) == (0, "")
