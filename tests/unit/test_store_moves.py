"""The files of a store are linked, replaced, moved or removed while it is open: an error, and no lost row."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import StoreError
from headrace.ports import Store, Table
from headrace.testing.processes import CONTEXT


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as created:
        created.create_table("orders", {"id": "long"}, "id").put([{"id": 0}])
        yield created


@pytest.fixture
def orders(store: Store) -> Table:
    return store.table("orders")


def link(source: Path, target: Path) -> None:
    """Copy a directory as ``cp -al`` does."""
    target.mkdir()
    for file in source.iterdir():
        os.link(file, target / file.name)


def refused(orders: Table, message: str) -> None:
    """Check that reads and writes fail, in this thread, and in one that opens its own connection."""

    def fail() -> None:
        with pytest.raises(StoreError, match=message):
            orders.put([{"id": 1}])
        with pytest.raises(StoreError, match=message):
            orders.get({"id": 0})
        with pytest.raises(StoreError, match=message):
            orders.scan().read_all()

    fail()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(fail).result()


def test_a_linked_copy_and_its_original_are_refused_until_one_name_is_left(orders: Table, tmp_path: Path) -> None:
    link(tmp_path / "store", tmp_path / "copy")
    with pytest.raises(StoreError, match=r"several names \(hard links\).*headrace backup"):
        headrace.open(tmp_path / "copy")
    refused(orders, "several names")
    shutil.rmtree(tmp_path / "copy")
    orders.put([{"id": 1}])
    assert orders.scan().read_all().num_rows == 2


@pytest.mark.parametrize("file", ["db-wal", "db-shm"])
def test_a_linked_or_replaced_log_is_refused(orders: Table, tmp_path: Path, file: str) -> None:
    path = tmp_path / "store" / file
    os.link(path, tmp_path / "link")
    with pytest.raises(StoreError, match=f"several names.*{file} has 2 names"):
        orders.put([{"id": 1}])
    (tmp_path / "link").rename(tmp_path / "original")
    path.unlink()
    shutil.copyfile(tmp_path / "original", path)
    with pytest.raises(StoreError, match="were replaced while it was open"):
        orders.put([{"id": 1}])
    path.unlink()
    with pytest.raises(StoreError, match=f"{file} does not exist"):
        orders.put([{"id": 1}])
    (tmp_path / "original").rename(path)
    orders.put([{"id": 1}])


def test_a_restored_store_at_the_same_place_is_noticed_by_old_handles(
    store: Store, orders: Table, tmp_path: Path
) -> None:
    store.back_up(tmp_path / "backup")
    orders.put([{"id": 1}])
    shutil.rmtree(tmp_path / "store")
    headrace.restore(tmp_path / "backup", tmp_path / "store")
    refused(orders, "were replaced while it was open.*open the store again")
    with headrace.open(tmp_path / "store", synchronous="off") as restored:
        restored.table("orders").put([{"id": 2}])
        # The end of the old handle must not delete the log of the new store.
        store.close()
        restored.table("orders").put([{"id": 3}])
        assert (tmp_path / "store" / "db-wal").exists()
    with headrace.open(tmp_path / "store") as again:
        assert sorted(row["id"] for row in again.table("orders").scan().read_all().to_pylist()) == [0, 2, 3]


def test_a_moved_directory_is_an_error_and_nothing_is_created_in_its_place(
    store: Store, orders: Table, tmp_path: Path
) -> None:
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    refused(orders, "moved or removed while it was open.*open the store again, at its new place")
    with pytest.raises(StoreError, match="moved or removed"):
        store.instance()
    (tmp_path / "store").mkdir()
    refused(orders, "moved or removed")
    assert not any(file.name.startswith("db") for file in (tmp_path / "store").iterdir())
    (tmp_path / "store").rmdir()
    (tmp_path / "store").touch()
    refused(orders, "moved or removed")
    store.close()
    with headrace.open(tmp_path / "elsewhere") as moved:
        assert moved.table("orders").get({"id": 0}) == {"id": 0}


def _use(directory: Path, ready: Any, go: Any, errors: Any) -> None:
    orders = headrace.open(directory).table("orders")
    orders.put([{"id": 10}])
    ready.set()
    go.wait(30)
    try:
        orders.put([{"id": 11}])
    except StoreError as error:
        errors.put(str(error))
    else:
        errors.put("no error")


def test_handles_of_other_processes_notice_it(store: Store, tmp_path: Path) -> None:
    store.back_up(tmp_path / "backup")
    ready, go, errors = CONTEXT.Event(), CONTEXT.Event(), CONTEXT.Queue()
    process = CONTEXT.Process(target=_use, args=(tmp_path / "store", ready, go, errors))
    process.start()
    assert ready.wait(30)
    (tmp_path / "store").rename(tmp_path / "old")
    headrace.restore(tmp_path / "backup", tmp_path / "store")
    go.set()
    assert "were replaced while it was open" in errors.get(timeout=30)
    process.join()


def _put_in_another_process(directory: Path, results: Any) -> None:
    try:
        with headrace.open(directory) as store:
            store.table("orders").put([{"id": 20}])
        results.put("written")
    except StoreError as error:
        results.put(str(error))


def in_another_process(directory: Path) -> str:
    results = CONTEXT.Queue()
    process = CONTEXT.Process(target=_put_in_another_process, args=(directory, results))
    process.start()
    result: str = results.get(timeout=30)
    process.join()
    return result


@pytest.mark.parametrize("first", ["other", "own"])
def test_a_removed_index_of_the_log_loses_no_row(store: Store, orders: Table, tmp_path: Path, first: str) -> None:
    (tmp_path / "store" / "db-shm").unlink()
    if first == "own":
        refused(orders, "db-shm does not exist")
    assert in_another_process(tmp_path / "store") == "written"
    refused(orders, "were replaced while it was open.*db-shm")
    # A new handle of this process would use the old index.
    with pytest.raises(StoreError, match=r"were replaced while it was open.*db-shm"):
        headrace.open(tmp_path / "store")
    store.close()
    with headrace.open(tmp_path / "store") as again:
        assert again.table("orders").scan(["id"]).read_all().to_pylist() == [{"id": 0}, {"id": 20}]


def test_a_removed_log_is_an_error_for_others_and_is_saved_at_the_end(
    store: Store, orders: Table, tmp_path: Path
) -> None:
    (tmp_path / "store" / "db-wal").unlink()
    refused(orders, "db-wal does not exist")
    assert "write-ahead log was removed while a process used it" in in_another_process(tmp_path / "store")
    store.close()
    assert in_another_process(tmp_path / "store") == "written"
    with headrace.open(tmp_path / "store") as again:
        assert again.table("orders").scan(["id"]).read_all().to_pylist() == [{"id": 0}, {"id": 20}]
