"""Reading, deciding and writing in one transaction; pages in both directions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import KeyRange
from headrace.stores.embedded.store import EmbeddedStore
from headrace.stores.embedded.tables.table import EmbeddedTable
from headrace_tablestore.endpoint.rows.transactions import DecidedChange, FoundRows, find, transact


@pytest.fixture
def table(tmp_path: Path) -> Iterator[EmbeddedTable]:
    store = EmbeddedStore(tmp_path / "store", create=True, synchronous="off")
    table = store.create_table("t", {"k": "long", "a": "long", "b": "string"}, "k")
    assert isinstance(table, EmbeddedTable)
    yield table
    store.close()


def test_a_decision_sees_the_rows_in_the_order_of_the_keys(table: EmbeddedTable) -> None:
    table.put([{"k": 1, "a": 10}, {"k": 2, "b": "x"}])
    seen: list[FoundRows] = []

    def decide(found: FoundRows) -> list[DecidedChange]:
        seen.append(found)
        return []

    transact(table, [{"k": 2}, {"k": 7}, {"k": 1}, {"k": 2}], decide)
    (found,) = seen
    assert found.present.tolist() == [True, False, True, True]
    assert found.rows.to_pylist() == [
        {"k": 2, "a": None, "b": "x"},
        {"k": 7, "a": None, "b": None},
        {"k": 1, "a": 10, "b": None},
        {"k": 2, "a": None, "b": "x"},
    ]
    outside = find(table, [{"k": 2}])
    assert outside.rows.to_pylist() == [{"k": 2, "a": None, "b": "x"}]
    assert outside.version == found.version - 1


def test_all_decided_changes_have_one_version_and_keep_their_order(table: EmbeddedTable) -> None:
    versions: list[int] = []

    def decide(found: FoundRows) -> list[DecidedChange]:
        versions.append(found.version)
        return [
            DecidedChange(RowChange.PUT, [{"k": 1, "a": 1, "b": "x"}, {"k": 2, "a": 2}]),
            DecidedChange(RowChange.UPDATE, [{"k": 1, "b": None}], keep_nulls=True),
            DecidedChange(RowChange.UPDATE, [{"k": 2, "a": None, "b": "y"}], keep_nulls=False),
            DecidedChange(RowChange.DELETE, [{"k": 3}]),
        ]

    transact(table, [{"k": 1}], decide)
    assert table.scan().read_all().to_pylist() == [{"k": 1, "a": 1, "b": None}, {"k": 2, "a": 2, "b": "y"}]
    assert table.put({"k": 9}) == versions[0] + 1


def test_an_empty_decision_and_an_error_change_nothing(table: EmbeddedTable) -> None:
    version = table.put({"k": 1, "a": 1})

    def fail(found: FoundRows) -> list[DecidedChange]:
        raise RuntimeError("decided against it")

    transact(table, [{"k": 1}], lambda found: [])
    with pytest.raises(RuntimeError):
        transact(table, [{"k": 1}], fail)
    with pytest.raises(RuntimeError):
        transact(table, [], fail)
    assert table.put({"k": 2}) == version + 1


def test_concurrent_decisions_see_each_others_changes(table: EmbeddedTable) -> None:
    barrier = threading.Barrier(4)

    def count(_: int) -> None:
        def decide(found: FoundRows) -> list[DecidedChange]:
            before = found.rows.column("a")[0].as_py() or 0
            return [DecidedChange(RowChange.PUT, [{"k": 1, "a": before + 1}])]

        barrier.wait()
        for _ in range(25):
            transact(table, [{"k": 1}], decide)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    assert table.get({"k": 1}, ["a"]) == {"a": 100}


def test_pages_go_both_ways(table: EmbeddedTable) -> None:
    table.put([{"k": number, "b": "even" if number % 2 == 0 else "odd"} for number in range(10)])
    page = table.page(["k"], KeyRange((3,), (8,)), limit=3)
    assert (page.rows.column("k").to_pylist(), page.last, page.ended) == ([3, 4, 5], (5,), False)
    page = table.page(["k"], KeyRange((3,), (8,)), limit=3, reverse=True)
    assert (page.rows.column("k").to_pylist(), page.last, page.ended) == ([7, 6, 5], (5,), False)
    page = table.page(["k"], KeyRange(), {"b": "odd"}, limit=100, reverse=True)
    assert (page.rows.column("k").to_pylist(), page.ended) == ([9, 7, 5, 3, 1], True)
