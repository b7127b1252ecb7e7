"""Sinks check columns, and stage all rows of a task or none, in writes of a limited size."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace import Output
from headrace.batches.sinks.batch_writer import BatchWriter
from headrace.batches.sinks.targets import QueueTarget, TableTarget, Target
from headrace.errors import OptionError, SchemaError
from headrace.model.tables.changes import RowChange
from headrace.ports import Append, Store, Write
from tests.embedded_database import raw_connection

TARGETS = [TableTarget("orders"), QueueTarget("clicks")]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    store.create_table("orders", {"id": "long", "price": "double", "note": "string not null"}, "id")
    store.create_queue("clicks", {"id": "long", "price": "double", "$timestamp": "timestamp"}, partitions=2)
    return store


def batches(*sizes: int, **columns: pa.Array) -> Iterator[pa.RecordBatch]:
    first = 0
    for size in sizes:
        yield pa.record_batch({"id": pa.array(range(first, first + size), pa.int64()), **columns})
        first += size


def staged_rows(store: Store) -> int:
    connection = raw_connection(Path(store.url.removeprefix("file://")))
    try:
        return sum(rows for (rows,) in connection.execute("SELECT n FROM stage"))
    finally:
        connection.close()


def described(*columns: tuple[str, Any]) -> pa.Schema:
    return pa.schema(list(columns))


# -- outputs --------------------------------------------------------------------------------------------


def test_an_output_is_a_table_or_a_queue() -> None:
    assert Output(table="t").target() == TableTarget("t", RowChange.PUT)
    assert Output(table="t", row_change="delete").target() == TableTarget("t", RowChange.DELETE)
    assert Output(table="t").target(complete=True) == TableTarget("t", RowChange.REPLACE_ALL)
    assert Output(queue="q", key="id").target(complete=True) == QueueTarget("q", ("id",))
    assert Output(queue="q", key=["a", "b"]).target() == QueueTarget("q", ("a", "b"))
    for wrong in ({}, {"table": "t", "queue": "q"}, {"table": "t", "key": "id"}, {"queue": "q", "row_change": "put"}):
        with pytest.raises(OptionError):
            Output(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_can_be_pickled(target: Target) -> None:
    assert pickle.loads(pickle.dumps(target)) == target


def test_a_target_describes_its_publication() -> None:
    assert TableTarget("t", RowChange.UPDATE).write(iter(())) == Write("t", RowChange.UPDATE, ())
    assert QueueTarget("q", replace=True).write(iter(())) == Append("q", (), replace=True)


# -- columns --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "columns", "error"),
    [
        (RowChange.PUT, described(("id", pa.int32()), ("note", pa.string())), None),
        (RowChange.PUT, described(("id", pa.int64())), "'note', which is NOT NULL"),
        (RowChange.UPDATE, described(("id", pa.int64())), None),
        (RowChange.UPDATE, described(("note", pa.string())), "key column"),
        (RowChange.DELETE, described(("id", pa.int64()), ("anything", pa.string())), None),
        (RowChange.UPDATE, described(("id", pa.int64()), ("anything", pa.string())), "'anything'"),
        (RowChange.UPDATE, described(("id", pa.int64()), ("price", pa.string())), "CAST"),
    ],
)
def test_columns_are_checked_against_a_table(
    store: Store, change: RowChange, columns: pa.Schema, error: str | None
) -> None:
    if error is None:
        return TableTarget("orders", change).check(store, columns)
    with pytest.raises(SchemaError, match=error):
        TableTarget("orders", change).check(store, columns)


def test_rows_for_a_queue_may_lack_columns_and_may_have_their_partition(store: Store) -> None:
    QueueTarget("clicks").check(store, described(("id", pa.int8())))
    QueueTarget("clicks").check(store, described(("price", pa.int64()), ("$tablet_index", pa.int32())))
    QueueTarget("clicks", ("id",)).check(store, described(("id", pa.int64()), ("price", pa.null())))


# -- staging --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_the_rows_of_one_write_are_limited(store: Store, target: Target) -> None:
    writer = BatchWriter(store, "job", [target])
    note = {} if target.name == "clicks" else {"note": pa.array(["n"] * 7)}
    receipts = writer.stage(0, target, batches(7, 7, 7, **note), rows_per_write=5)
    assert [receipt.rows for receipt in receipts] == [5, 5, 5, 5, 1]
    assert writer.publisher.publish(0, writer.writes([receipts]))


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("target", TARGETS)
def test_without_rows_nothing_is_written(store: Store, target: Target, limit: int | None) -> None:
    assert BatchWriter(store, "job", [target]).stage(0, target, batches(0, 0), limit) == []


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("target", TARGETS)
def test_a_task_that_fails_leaves_nothing_staged(store: Store, target: Target, limit: int | None) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(10, **({} if target.name == "clicks" else {"note": pa.array(["n"] * 10)}))
        raise OSError("the rows end here")

    with pytest.raises(OSError, match="the rows end here"):
        BatchWriter(store, "job", [target]).stage(0, target, failing(), limit)
    assert staged_rows(store) == 0


@pytest.mark.parametrize("limit", [None, 3])
def test_a_published_batch_is_read_to_its_end_and_stages_nothing(store: Store, limit: int | None) -> None:
    target = QueueTarget("clicks")
    writer = BatchWriter(store, "job", [target])
    writer.publisher.publish(0, writer.writes([writer.stage(0, target, batches(2))]))
    rows = batches(1, 1)
    assert writer.stage(0, target, rows, limit) == []
    assert next(rows, None) is None
    assert staged_rows(store) == 0


def test_a_column_chooses_the_partition_of_each_row(store: Store) -> None:
    target = QueueTarget("clicks")
    writer = BatchWriter(store, "job", [target])
    chosen = pa.array([1, 1, 0, 1], pa.int16())
    writer.publisher.publish(0, writer.writes([writer.stage(0, target, batches(4, **{"$tablet_index": chosen}))]))
    queue = store.queue("clicks")
    assert [queue.read(number, 0).rows.column("id").to_pylist() for number in (0, 1)] == [[2], [0, 1, 3]]
