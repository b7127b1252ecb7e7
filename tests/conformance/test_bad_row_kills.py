"""Kills while a batch with bad rows is published, and while bad rows are written again: each row is in one table."""

from __future__ import annotations

import signal
from typing import Any

import pyarrow as pa
import pytest

from headrace.batches.sinks.bad_rows import bad_rows_of, prepare
from headrace.batches.sinks.batch_writer import BatchWriter
from headrace.batches.sinks.targets import TableTarget
from headrace.ports import RetriedRows, Store
from headrace.support.failpoints import arm
from headrace.testing import Place
from headrace.testing.processes import CONTEXT
from headrace.testing.reading import rows_of

pytestmark = pytest.mark.needs("bad_rows")

DEADLINE = 60.0
TARGET = TableTarget("t", bad_rows=bad_rows_of("t", "copy"))
GOOD = [{"id": "a", "n": 1}, {"id": "c", "n": 3}]
ROWS = [GOOD[0], {"id": "b", "n": None}, GOOD[1]]


def publish(store: Store, point: str | None = None) -> bool:
    writer = BatchWriter(store, "job", [TARGET])
    schema = pa.schema([("id", pa.string()), ("n", pa.int64())])
    staged = writer.stage(1, TARGET, [pa.RecordBatch.from_pylist(ROWS, schema)])
    arm(point)
    return writer.publisher.publish(1, writer.writes([staged]))


def _publish(place: Place, point: str) -> None:
    with place.open() as store:
        publish(store, point)


def _retry(place: Place, point: str) -> None:
    with place.open() as store:
        arm(point)
        store.retry_bad_rows("t")


def _killed(place: Place, work: Any, point: str) -> None:
    process = CONTEXT.Process(target=work, args=(place, point))
    process.start()
    process.join(DEADLINE)
    try:
        assert process.exitcode == -signal.SIGKILL, "the process was not killed there"
    finally:
        process.kill()
        process.join()


@pytest.fixture(autouse=True)
def table(store: Store) -> None:
    store.create_table("t", pa.schema([pa.field("id", pa.string()), pa.field("n", pa.int64(), nullable=False)]), "id")
    prepare(store, TARGET)


@pytest.mark.parametrize("point", ["rows-written", "published"])
def test_a_killed_publication_has_each_row_in_one_table(place: Place, store: Store, point: str) -> None:
    _killed(place, _publish, point)
    published = point == "published"
    kept = rows_of(store.table("t_bad_rows"))
    assert (rows_of(store.table("t")), len(kept)) == ((GOOD, 1) if published else ([], 0))
    # The batch runs again, once or without effect.
    assert publish(store) is not published
    assert rows_of(store.table("t")) == GOOD
    assert [each["key"] for each in rows_of(store.table("t_bad_rows"))] == ['{"id":"b"}']


@pytest.mark.parametrize("point", ["rows-written", "published"])
def test_a_killed_retry_has_each_row_in_one_table(place: Place, store: Store, point: str) -> None:
    publish(store)
    store.table("t_bad_rows").update([{"key": '{"id":"b"}', "row": '{"id":"b","n":2}'}])
    _killed(place, _retry, point)
    done = point == "published"
    assert (len(rows_of(store.table("t"))), len(rows_of(store.table("t_bad_rows")))) == ((3, 0) if done else (2, 1))
    assert store.retry_bad_rows("t") == RetriedRows(0 if done else 1, 0, 0)
    assert rows_of(store.table("t")) == [GOOD[0], {"id": "b", "n": 2}, GOOD[1]]
