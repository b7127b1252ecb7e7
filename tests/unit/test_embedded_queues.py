"""Queues of the embedded store: stored rows, removed rows, and the cost of operations."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.errors import DataLossError, OptionError, SchemaError
from headrace.model.queues.values import RowRange
from headrace.ports import Append, Publisher, Queue, Store
from headrace.stores.embedded import chunks
from headrace.stores.embedded.connection import Database, stamp
from headrace.stores.embedded.publication import staging
from headrace.stores.embedded.publication.publisher import EmbeddedPublisher
from headrace.stores.embedded.queues import stored_queues

LARGE = 20_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "store", create=True, synchronous="off")


@pytest.fixture
def database(store: Store) -> Database:
    found: Database = store._database  # type: ignore[attr-defined]
    return found


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.create_queue("clicks", {"n": "long", "user": "string"}, partitions=2)


@pytest.fixture
def publisher(store: Store) -> Publisher:
    return store.publisher("job")


def rows_of(count: int, first: int = 0) -> pa.RecordBatch:
    numbers = list(range(first, first + count))
    return pa.RecordBatch.from_pydict({"n": numbers, "user": [f"user {n}" for n in numbers]})


def count(database: Database, table: str) -> int:
    return int(database.query(f"SELECT count(*) FROM {table}")[0][0])


def numbers_in(queue: Queue, partition: int = 0) -> list[int]:
    found: list[int] = []
    first = queue.bounds()[partition].lower
    while (page := queue.read(partition, first, 100_000)).rows.num_rows:
        found += page.rows.column("n").to_pylist()
        first = page.next
    return found


def add_reader(store: Store, offset: int, *, partition: int = 0) -> None:
    store.create_consumer("reader")
    store.register_consumer("clicks", "reader", vital=True)
    store.consumer("reader").advance("clicks", {partition: offset})


# -- partitions and pages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, -1, True, 10**9, stored_queues.MOST_PARTITIONS + 1])
def test_an_invalid_number_of_partitions_is_refused_before_memory_is_allocated(store: Store, count: int) -> None:
    with pytest.raises(OptionError, match=r"1 to 65536|an integer"):
        store.create_queue("q", {"n": "long"}, partitions=count)
    assert store.queues() == []


def test_the_limit_of_partitions_includes_added_partitions(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_queues, "MOST_PARTITIONS", 4)
    with pytest.raises(OptionError, match=r"received: 3 more than 2; valid: 1 to 2"):
        queue.add_partitions(3)
    assert queue.add_partitions(2) == 4
    with pytest.raises(OptionError, match="valid: no more"):
        queue.add_partitions(1)


def test_the_error_for_trimmed_rows_names_the_first_existing_row(queue: Queue) -> None:
    queue.append(rows_of(10), partition=0)
    queue.trim(0, before=4)
    with pytest.raises(DataLossError, match=r"rows 1 to 3 \(3 rows\); read from row 4$"):
        queue.read(0, 1)


# -- staged bytes -----------------------------------------------------------------------------------------


def test_publication_refers_to_staged_bytes_without_a_copy(
    queue: Queue, database: Database, publisher: Publisher
) -> None:
    staged = publisher.stage_append(0, "clicks", [rows_of(LARGE)])
    before = database.query("SELECT id, data FROM blob")
    publisher.publish(0, [Append("clicks", tuple(staged))])
    assert database.query("SELECT id, data FROM blob") == before
    assert database.query("SELECT n, length(data), blob FROM chunk") == [(LARGE, 0, before[0][0])]
    assert count(database, "stage") == 0
    assert queue.bounds()[0].bytes == len(before[0][1])
    assert numbers_in(queue) == list(range(LARGE))


def test_small_staged_parts_are_merged_like_small_appends(
    queue: Queue, database: Database, publisher: Publisher
) -> None:
    for batch in range(64):
        rows = [rows_of(10, batch * 10).append_column("$tablet_index", pa.array([0] * 10))]
        publisher.publish(batch, [Append("clicks", tuple(publisher.stage_append(batch, "clicks", rows)))])
    assert (count(database, "blob"), count(database, "chunk")) == (0, 1)
    assert numbers_in(queue) == list(range(640))


def test_cumulative_weights_of_staged_rows_are_set_by_the_publication(store: Store, publisher: Publisher) -> None:
    queue = store.create_queue("weighed", {"data": "string", "$cumulative_data_weight": "long"})
    staged = publisher.stage_append(0, "weighed", [pa.RecordBatch.from_pydict({"data": ["foo"] * LARGE})])
    queue.append({"data": "foobar"})
    publisher.publish(0, [Append("weighed", tuple(staged))])
    weights = queue.read(0, 0, 2).rows, queue.read(0, 1, 2).rows
    assert [each.column(1).to_pylist() for each in weights] == [[15], [15 + 12, 15 + 24]]
    assert queue.describe().partitions[0].weight == 15 + 12 * LARGE


@pytest.mark.parametrize(
    "remove",
    [
        lambda store, staged: store.publisher("job").discard(0),
        lambda store, staged: store.publisher("job").discard(0, staged),
        lambda store, staged: store.publisher("job").publish(0, []),
        lambda store, staged: store.publisher("job").publish(3, []),
    ],
)
def test_staged_rows_are_deleted_with_their_bytes(
    store: Store, queue: Queue, database: Database, remove: Callable[[Store, Any], Any]
) -> None:
    staged = store.publisher("job").stage_append(0, "clicks", [rows_of(LARGE), rows_of(10)])
    assert count(database, "blob") == 1
    remove(store, staged)
    assert (count(database, "blob"), count(database, "stage")) == (0, 0)


def test_abandoned_staged_rows_are_deleted_with_their_bytes(store: Store, queue: Queue, database: Database) -> None:
    store.publisher("lost").stage_append(0, "clicks", [rows_of(LARGE)])
    with database.write() as connection:
        connection.execute("UPDATE stage SET created = created - 100000")
    store.publisher("job").publish(0, [])
    assert (count(database, "blob"), count(database, "stage")) == (0, 0)


def test_a_failed_publication_keeps_the_staged_rows(store: Store, queue: Queue, publisher: Publisher) -> None:
    staged = tuple(publisher.stage_append(0, "clicks", [rows_of(LARGE)]))
    with pytest.raises(headrace.errors.NotFoundError):
        publisher.publish(0, [Append("clicks", staged), Append("elsewhere", ())])
    assert queue.bounds()[0].rows == 0
    assert publisher.publish(0, [Append("clicks", staged)])
    assert numbers_in(queue) == list(range(LARGE))


def test_rows_for_many_partitions_are_staged_in_bounded_memory(
    queue: Queue, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "FLUSH_BYTES", 1000)
    staged = publisher.stage_append(0, "clicks", (rows_of(50, first) for first in range(0, 1000, 50)), key=["n"])
    assert len(staged) > 10
    publisher.publish(0, [Append("clicks", tuple(staged))])
    found = [numbers_in(queue, partition) for partition in (0, 1)]
    assert sorted(found[0] + found[1]) == list(range(1000))
    assert all(numbers == sorted(numbers) for numbers in found)


def test_staging_checks_each_buffered_part_once(store: Store) -> None:
    looks: list[int] = []

    class Counting(bytes):
        def __len__(self) -> int:
            looks.append(1)
            return super().__len__()

    publisher = EmbeddedPublisher(store._database, "job", "sink")  # type: ignore[attr-defined]
    assert len(publisher._stage(0, (staging.StagePart(1, Counting(b"x")) for _ in range(1000)))) == 1000
    assert len(looks) < 5000


# -- removed bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "kept"), [(0, 3), (LARGE - 1, 3), (LARGE, 2), (LARGE + 5, 2), (3 * LARGE, 0)])
def test_trimming_removes_whole_chunks_with_their_bytes(
    queue: Queue, database: Database, publisher: Publisher, before: int, kept: int
) -> None:
    for batch in range(3):
        rows = rows_of(LARGE, batch * LARGE).append_column("$tablet_index", pa.array([0] * LARGE))
        publisher.publish(batch, [Append("clicks", tuple(publisher.stage_append(batch, "clicks", [rows])))])
    whole = queue.bounds()[0].bytes
    assert queue.trim(0, before) == before
    assert (count(database, "chunk"), count(database, "blob")) == (kept, kept)
    assert numbers_in(queue) == list(range(before, 3 * LARGE))
    assert queue.bounds()[0].bytes == pytest.approx(whole * (3 * LARGE - before) / (3 * LARGE), rel=0.01)


def test_a_dropped_queue_leaves_no_rows_in_the_database(
    store: Store, queue: Queue, database: Database, publisher: Publisher
) -> None:
    publisher.publish(0, [Append("clicks", tuple(publisher.stage_append(0, "clicks", [rows_of(LARGE)])))])
    queue.append(rows_of(10))
    add_reader(store, 1)
    store.create_producer("writer").open_session("clicks", "s")
    store.drop_queue("clicks")
    tables = ("chunk", "blob", "partition", "object_schema", "registration", "consumer_offset", "producer_session")
    assert {table: count(database, table) for table in tables} == dict.fromkeys(tables, 0)


def test_the_last_commit_is_known_when_all_rows_are_trimmed(queue: Queue) -> None:
    queue.append(rows_of(5), partition=0)
    committed = queue.commit_time(0, 4)
    queue.trim(0, 5)
    assert [each.last_commit for each in queue.describe().partitions] == [committed, None]


def test_an_append_trims_at_most_256_chunks(store: Store, queue: Queue, database: Database) -> None:
    queue.append(rows_of(1), partition=0)
    ((data,),) = database.query("SELECT data FROM chunk")
    with database.write() as connection:
        connection.executemany(
            "INSERT INTO chunk (id, n, level, schema, version, ts, data) SELECT p.id << 40 | ?, 1, 9, 1, 1, 1, ?"
            " FROM partition p WHERE number = 0",
            [(row, data) for row in range(1, 300)],
        )
        connection.execute("UPDATE partition SET next = 300 WHERE number = 0")
    add_reader(store, 300)
    queue.set_options(auto_trim=True)
    queue.append(rows_of(1), partition=1)
    assert queue.bounds()[0].lower == 256
    queue.append(rows_of(1), partition=1)
    assert queue.bounds()[0].lower == 300


# -- chunks ---------------------------------------------------------------------------------------------


def test_many_small_appends_are_merged_into_few_chunks_with_their_commit_times(
    queue: Queue, database: Database
) -> None:
    for number in range(64 * 3 + 1):
        queue.append(rows_of(2, number * 2), partition=0)
    assert count(database, "chunk") == 3 + 1
    assert numbers_in(queue) == list(range(2 * (64 * 3 + 1)))
    times = [queue.commit_time(0, row) for row in range(0, 300, 2)]
    assert times == sorted(set(times))  # type: ignore[type-var]
    assert [queue.row_at(0, time) for time in times] == list(range(0, 300, 2))  # type: ignore[arg-type]


def test_wide_rows_are_split_into_chunks_below_the_limit_of_sqlite(
    queue: Queue, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "MAX_CHUNK_BYTES", 10_000)
    users = ["u"] * 50 + ["u" * 9000] * 5 + ["u"] * 50
    queue.append(pa.table({"n": list(range(105)), "user": users}), partition=0)
    assert count(database, "chunk") >= 5
    assert queue.bounds()[0].upper == 105
    assert numbers_in(queue) == list(range(105))


def test_a_row_above_the_limit_of_sqlite_is_refused(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_MAX_ROW_BYTES", 1000)
    with pytest.raises(SchemaError, match="too large"):
        queue.append({"n": 1, "user": "u" * 2000})
    assert queue.bounds()[0].upper == 0


def test_a_page_is_found_by_its_index(queue: Queue, database: Database) -> None:
    queue.append(rows_of(5))
    plan = database.query(f"EXPLAIN QUERY PLAN {chunks._PAGE}", (1, 1))
    steps = [step for *_, step in plan]
    assert not [step for step in steps if step.startswith("SCAN")]
    assert "SEARCH c USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)" in steps


# -- between preparing and committing -------------------------------------------------------------------


def test_rows_prepared_before_partitions_are_added_use_the_new_number(queue: Queue, database: Database) -> None:
    prepared = queue.prepare(rows_of(1000), key="n")  # type: ignore[attr-defined]
    queue.add_partitions(3)
    with database.write() as connection:
        ranges = queue.apply(connection, prepared, *stamp(connection))  # type: ignore[attr-defined]
    assert [each.partition for each in ranges] == [0, 1, 2, 3, 4]


def test_rows_prepared_for_a_recreated_queue_must_fit_its_new_columns(store: Store, queue: Queue) -> None:
    prepared = queue.prepare({"n": 1, "user": "u"})  # type: ignore[attr-defined]
    store.drop_queue("clicks")
    store.create_queue("clicks", {"n": "long"})
    with pytest.raises(SchemaError, match="'user'"), store._database.write() as connection:  # type: ignore[attr-defined]
        queue.apply(connection, prepared, *stamp(connection))  # type: ignore[attr-defined]
    assert queue.bounds()[0].rows == 0


def test_an_append_joins_the_transaction_of_its_caller(queue: Queue, database: Database) -> None:
    with database.write() as connection:
        version, ts = stamp(connection)
        first = stored_queues.append(connection, "clicks", rows_of(2), version, ts, partition=1)
        second = stored_queues.append(connection, "clicks", rows_of(2), version, ts, key="n")
    assert first == [RowRange(1, 0, 2)]
    assert sum(each.next - each.first for each in second) == 2
    assert queue.commit_time(1, 0) == ts / 1e6


def test_rows_are_serialised_before_the_lock_is_taken(queue: Queue, database: Database) -> None:
    with ThreadPoolExecutor(1) as thread, database.write():
        prepared = thread.submit(queue.prepare, rows_of(10)).result(30)  # type: ignore[attr-defined]
    assert prepared.num_rows == 10
