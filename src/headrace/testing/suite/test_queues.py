"""Queues: the partitions and row indexes of appended rows, and reading."""

from __future__ import annotations

import datetime
import decimal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from headrace.errors import OptionError, SchemaError
from headrace.model.queues.values import Bounds, QueueOptions, RowRange, partition_of_keys
from headrace.ports import Queue, Store
from headrace.testing import Place, queue_workers
from headrace.testing.processes import racing
from headrace.testing.queue_reading import consumer_of, data_in, edges, rows_in, values

pytestmark = pytest.mark.needs("queues")


FULL = {"data": "string", "$timestamp": "timestamp", "$cumulative_data_weight": "long"}


# -- appending --------------------------------------------------------------------------------------------


def test_row_indexes_begin_at_0_in_each_partition(queue: Queue) -> None:
    assert queue.append(values("a", "b"), partition=0) == [RowRange(0, 0, 2)]
    assert queue.append(values("c"), partition=2) == [RowRange(2, 0, 1)]
    assert queue.append(values("d"), partition=0) == [RowRange(0, 2, 3)]
    assert edges(queue) == [(0, 3), (0, 0), (0, 1)]
    assert [data_in(queue, number) for number in range(3)] == [["a", "b", "d"], [], ["c"]]


@pytest.mark.parametrize(
    "rows",
    [
        {"n": 1, "data": "a"},
        [{"data": "a", "n": 1}],
        pa.table({"data": ["a"], "n": pa.array([1], pa.int8())}),
        pa.RecordBatch.from_pydict({"n": [1], "data": pa.array(["a"], pa.large_string())}),
        pd.DataFrame({"n": [1], "data": ["a"]}),
    ],
    ids=["dict", "dicts", "table", "batch", "pandas"],
)
def test_rows_are_accepted_in_every_form(store: Store, rows: Any) -> None:
    queue = store.create_queue("q", {"n": "long", "data": "string"})
    assert queue.append(rows) == [RowRange(0, 0, 1)]
    page = queue.read(0, 0)
    assert page.rows.schema.equals(queue.schema.arrow)
    assert page.rows.to_pylist() == [{"n": 1, "data": "a"}]


def test_missing_columns_become_null(store: Store) -> None:
    queue = store.create_queue("q", {"n": "long", "data": "string"})
    queue.append([{"n": 1}, {"data": "a"}])
    queue.append(pa.table({"n": [2]}))
    assert rows_in(queue) == [{"n": 1, "data": None}, {"n": None, "data": "a"}, {"n": 2, "data": None}]


@pytest.mark.parametrize(
    "row",
    [
        {"id": 1, "colour": "red"},
        {"id": 1, "data": 5},
        {"id": 1 << 63},
        {"id": None},
        {"data": "no id"},
        {"id": 1, "$timestamp": datetime.datetime.now(datetime.UTC)},
        {"id": 1, "$cumulative_data_weight": 1},
        {"id": 1, "$row_index": 7},
    ],
    ids=["unknown", "wrong type", "too large", "null", "left out", "timestamp", "weight", "row index"],
)
def test_invalid_rows_are_refused_and_nothing_is_written(store: Store, row: dict[str, Any]) -> None:
    queue = store.create_queue("q", {"id": "long not null", **FULL})
    with pytest.raises(SchemaError):
        queue.append([{"id": 0}, row])
    assert edges(queue) == [(0, 0)]
    assert queue.append({"id": 1}) == [RowRange(0, 0, 1)]


def test_writing_no_rows_makes_no_commit(queue: Queue) -> None:
    assert queue.append([]) == []
    assert queue.append(pa.table({"data": pa.array([], pa.string())}), partition=1) == []
    assert edges(queue) == [(0, 0)] * 3


@pytest.mark.parametrize("partition", [-1, 3])
def test_an_unknown_partition_is_refused(queue: Queue, partition: int) -> None:
    with pytest.raises(OptionError, match="partition"):
        queue.append(values("a"), partition=partition)
    with pytest.raises(OptionError):
        queue.append([{"data": "a", "$tablet_index": partition}])
    with pytest.raises(OptionError):
        queue.read(partition, 0)
    with pytest.raises(OptionError):
        queue.trim(partition, 0)
    assert edges(queue) == [(0, 0)] * 3


def test_a_partition_and_a_key_together_are_refused(queue: Queue) -> None:
    with pytest.raises(OptionError):
        queue.append(values("a"), partition=0, key="data")


def test_rows_of_one_key_are_in_one_partition(store: Store) -> None:
    queue = store.create_queue("q", {"user": "string", "n": "long"}, partitions=5)
    rows = [{"user": f"u{number % 23}", "n": number} for number in range(500)]
    ranges = queue.append(rows[:300], key="user")
    assert [found.partition for found in ranges] == sorted({found.partition for found in ranges})
    queue.append(pa.Table.from_pylist(rows[300:]), key=["user"])
    found = [rows_in(queue, number) for number in range(5)]
    users = [{row["user"] for row in part} for part in found]
    assert sum(map(len, users)) == 23
    assert sum(bool(part) for part in users) > 2
    # The order within a partition is kept.
    assert all([row["n"] for row in part] == sorted(row["n"] for row in part) for part in found)
    assert sum(map(len, found)) == 500
    numbers = partition_of_keys(pa.Table.from_pylist(rows), ["user"], 5)
    assert all(rows[row]["user"] in users[number] for row, number in enumerate(numbers.tolist()))


def test_a_key_may_have_several_columns_and_nulls(store: Store) -> None:
    queue = store.create_queue("q", {"user": "string", "n": "long"}, partitions=4)
    rows = [{"user": user, "n": n} for user in ("a", "b", None) for n in (1, 2, None)]
    first = queue.append(rows, key=["user", "n"])
    assert [(found.partition, found.next) for found in queue.append(rows, key=["user", "n"])] == [
        (found.partition, 2 * found.next) for found in first
    ]


def test_an_unknown_key_column_is_refused(queue: Queue) -> None:
    with pytest.raises(SchemaError, match="colour"):
        queue.append(values("a"), key="colour")
    assert edges(queue) == [(0, 0)] * 3


def test_rows_may_name_their_partition(queue: Queue) -> None:
    rows = [{"data": str(number), "$tablet_index": [2, 0, 2, 0, 0][number]} for number in range(5)]
    assert queue.append(rows) == [RowRange(0, 0, 3), RowRange(2, 0, 2)]
    queue.append(pa.table({"$tablet_index": [1], "data": ["5"]}))
    assert [data_in(queue, number) for number in range(3)] == [["1", "3", "4"], ["5"], ["0", "2"]]
    assert queue.schema.names == ("data",)


def test_rows_that_name_no_partition_are_balanced(queue: Queue) -> None:
    queue.append(values("a", "b"), partition=0)
    queue.append(values("c"), partition=1)
    queue.append([{"data": "d", "$tablet_index": 1}, {"data": "e", "$tablet_index": None}, {"data": "f"}])
    assert [data_in(queue, number) for number in range(3)] == [["a", "b"], ["c", "d"], ["e", "f"]]


def test_rows_without_a_partition_all_go_to_the_partition_with_the_fewest_rows(queue: Queue) -> None:
    queue.append(values("a", "b", "c"), partition=0)
    queue.append(values("d"), partition=1)
    assert queue.append(values("e", "f")) == [RowRange(2, 0, 2)]
    assert queue.append(values("g")) == [RowRange(1, 1, 2)]
    # Trimmed rows count: the partition is chosen by all rows that it ever had.
    queue.trim(0, 3)
    assert all(found.partition != 0 for found in queue.append(values("h")))


def test_a_large_append_is_read_completely(store: Store) -> None:
    queue = store.create_queue("q", {"n": "long", "data": "string"}, partitions=2)
    count = 200_000
    rows = pa.table({"n": np.arange(count), "data": pa.array(np.arange(count)).cast(pa.string())})
    assert queue.append(rows, partition=1) == [RowRange(1, 0, count)]
    found, next_row = [], 0
    while page_rows := (page := queue.read(1, next_row, 70_000)).rows.num_rows:
        assert page_rows <= 70_000
        found.append(page.rows)
        next_row = page.next
    assert pa.Table.from_batches(found).equals(rows.cast(queue.schema.arrow))
    assert queue.read(1, 199_999).rows.to_pylist() == [{"n": 199_999, "data": "199999"}]


def test_many_small_appends_are_read_in_order(place: Place, queue: Queue) -> None:
    count = place.commits(320)
    for number in range(count):
        queue.append(values(f"{number} a", f"{number} b"), partition=number % 2)
    expected = [f"{number} {part}" for number in range(0, count, 2) for part in "ab"]
    for page_rows in (7, 64, 1000):
        assert data_in(queue, 0, page_rows) == expected
    middle = count // 2 + 1
    assert queue.read(0, middle, 1).rows.to_pylist() == [{"data": expected[middle]}]


def test_every_type_round_trips(store: Store) -> None:
    schema = pa.schema(
        {
            "flag": pa.bool_(),
            "tiny": pa.int8(),
            "real": pa.float64(),
            "raw": pa.binary(),
            "price": pa.decimal128(10, 2),
            "day": pa.date32(),
            "at": pa.timestamp("us", tz="UTC"),
            "many": pa.list_(pa.int64()),
            "pair": pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}),
            "named": pa.map_(pa.string(), pa.float64()),
        }
    )
    queue = store.create_queue("q", schema)
    row = {
        "flag": True,
        "tiny": -1,
        "real": 0.5,
        "raw": b"\0\xff",
        "price": decimal.Decimal("-1.25"),
        "day": datetime.date(2026, 1, 31),
        "at": datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC),
        "many": [1, None, 3],
        "pair": {"a": 1, "b": ["x", None]},
        "named": [("x", 1.5), ("y", None)],
    }
    rows = pa.Table.from_pylist([row, dict.fromkeys(row)], schema)
    queue.append(rows)
    assert pa.Table.from_batches([queue.read(0, 0).rows]).equals(rows)


# -- reading ----------------------------------------------------------------------------------------------


def test_a_page_has_at_most_the_requested_rows_and_is_empty_only_at_the_end(queue: Queue) -> None:
    for number in range(10):
        queue.append(values(*(f"{number}{part}" for part in "abc")), partition=0)
    for max_rows in (1, 2, 4, 30):
        for first in range(30):
            page = queue.read(0, first, max_rows)
            assert 1 <= page.rows.num_rows <= max_rows
            assert (page.first, page.next) == (first, first + page.rows.num_rows)
            assert page.rows.column("data")[0].as_py() == f"{first // 3}{'abc'[first % 3]}"
    for first in (30, 31, 1000):
        page = queue.read(0, first)
        assert (page.first, page.rows.num_rows, page.rows.schema) == (first, 0, queue.schema.arrow)


def test_reading_stops_before_the_given_end(queue: Queue) -> None:
    queue.append(values(*"abcdef"), partition=0)
    assert queue.read(0, 1, until=4).rows.column("data").to_pylist() == list("bcd")
    assert queue.read(0, 4, until=4).rows.num_rows == 0
    assert queue.read(0, 5, until=4).rows.num_rows == 0
    assert queue.read(0, 4, until=100).rows.num_rows == 2


def test_a_row_index_always_returns_the_same_row(place: Place, queue: Queue) -> None:
    queue.append(values("a", "b"), partition=1)
    before = queue.read(1, 1, 1)
    for number in range(200):
        queue.append(values(str(number)), partition=1)
    queue.trim(1, 1)
    with place.open() as other:
        assert other.queue("clicks").read(1, 1, 1) == before
        assert other.queue("clicks").read(1, 150, 1).rows.to_pylist() == values("148")


@pytest.mark.needs("partition_sizes")
def test_bounds_contain_the_number_of_rows(store: Store, queue: Queue) -> None:
    assert queue.bounds() == {number: Bounds(0, 0, 0) for number in range(3)}
    queue.append(values("x" * 1000), partition=0)
    queue.append(values("x" * 100_000), partition=1)
    sizes = [bounds.bytes for bounds in queue.bounds().values()]
    assert 0 == sizes[2] < sizes[0] < sizes[1]
    assert sizes[0] >= 1000


# -- time -------------------------------------------------------------------------------------------------


@pytest.mark.needs("row_times")
def test_a_time_finds_the_first_row_committed_at_or_after_it(store: Store, queue: Queue) -> None:
    began = time.time()
    for number in range(5):
        queue.append(values(f"{number}a", f"{number}b"), partition=0)
    times = [queue.commit_time(0, row) for row in range(10)]
    assert all(at is not None and began - 1 <= at <= time.time() + 1 for at in times)
    assert times[::2] == times[1::2]
    assert sorted(set(times[::2]), key=lambda at: at or 0.0) == times[::2]
    assert [queue.row_at(0, at or 0.0) for at in times] == [row - row % 2 for row in range(10)]
    assert queue.row_at(0, 0.0) == 0
    assert queue.row_at(0, time.time() + 3600) == 10
    assert queue.row_at(1, began) == 0


@pytest.mark.needs("row_times")
def test_a_time_before_the_existing_rows_finds_the_first_of_them(store: Store, queue: Queue) -> None:
    for number in range(5):
        queue.append(values(str(number)), partition=0)
    first = queue.commit_time(0, 0)
    queue.trim(0, 3)
    assert first is not None
    assert queue.row_at(0, first) == 3
    assert queue.commit_time(0, 2) is None
    assert queue.commit_time(0, 3) is not None


def test_missing_rows_have_no_commit_time(queue: Queue) -> None:
    queue.append(values("a"), partition=0)
    assert [queue.commit_time(0, 1), queue.commit_time(0, 100), queue.commit_time(1, 0)] == [None] * 3


def test_the_timestamp_column_is_the_commit_time(store: Store) -> None:
    for name, kind in (("instants", "timestamp"), ("numbers", "long")):
        queue = store.create_queue(name, {"data": "string", "$timestamp": kind}, partitions=2)
        queue.append([{"data": number, "$tablet_index": int(number) % 2} for number in "0123"])
        queue.append(values("4"), partition=0)
        first, last = rows_in(queue)[0]["$timestamp"], rows_in(queue)[2]["$timestamp"]
        assert {row["$timestamp"] for number in range(2) for row in rows_in(queue, number)} == {first, last}
        assert first < last
        seconds = first.timestamp() if kind == "timestamp" else first / 1e6
        assert seconds == pytest.approx(queue.commit_time(0, 0), abs=1e-6)


# -- weight -----------------------------------------------------------------------------------------------


def test_the_cumulative_weight_grows_by_the_weight_of_each_row(store: Store) -> None:
    queue = store.create_queue("q", FULL)
    queue.append(values("foo", "foo"))
    queue.append(values("foobar"))
    queue.append(values(None))
    assert [row["$cumulative_data_weight"] for row in rows_in(queue)] == [20, 40, 63, 80]
    assert queue.describe().partitions[0].weight == 80


def test_the_weight_counts_the_stored_columns(store: Store) -> None:
    queue = store.create_queue(
        "q", {"data": "string", "flag": "boolean", "n": "int", "$cumulative_data_weight": "long"}
    )
    queue.append({"data": "foo", "flag": True, "n": 1})
    queue.append({})
    assert [row["$cumulative_data_weight"] for row in rows_in(queue)] == [1 + 3 + 1 + 8 + 8, 21 + 9]


def test_each_partition_has_its_own_weight_and_trimming_does_not_change_it(store: Store) -> None:
    queue = store.create_queue("q", FULL, partitions=2)
    queue.append(values("foo", "foo"), partition=0)
    queue.append(values("foobar"), partition=1)
    queue.trim(0, 2)
    queue.append(values("foo"), partition=0)
    assert [rows_in(queue, number)[0]["$cumulative_data_weight"] for number in range(2)] == [60, 23]
    assert [partition.weight for partition in queue.describe().partitions] == [60, 23]


# -- partitions, options, description -----------------------------------------------------------------------


def test_partitions_are_added_empty_at_the_end(queue: Queue) -> None:
    queue.append(values("a"), partition=2)
    assert queue.add_partitions(2) == 5
    assert edges(queue) == [(0, 0), (0, 0), (0, 1), (0, 0), (0, 0)]
    assert queue.append(values("b"), partition=4) == [RowRange(4, 0, 1)]
    assert (data_in(queue, 2), data_in(queue, 4)) == (["a"], ["b"])


@pytest.mark.parametrize("count", [0, -1])
def test_adding_no_partition_is_refused(store: Store, queue: Queue, count: int) -> None:
    with pytest.raises(OptionError):
        queue.add_partitions(count)
    with pytest.raises(OptionError):
        store.create_queue("other", {"data": "string"}, partitions=count)
    assert store.queues() == ["clicks"]


def test_options_are_stored_and_changed_individually(place: Place, store: Store) -> None:
    queue = store.create_queue("q", {"data": "string"}, auto_trim=True, retained_rows=5)
    assert queue.set_options(retained_seconds=60.0) == QueueOptions(True, 5, 60.0)
    assert queue.set_options(retained_rows=None) == QueueOptions(True, None, 60.0)
    with place.open() as other:
        assert other.queue("q").describe().options == QueueOptions(True, None, 60.0)


@pytest.mark.parametrize(
    "option",
    [{"colour": "red"}, {"auto_trim": 1}, {"retained_rows": -1}, {"retained_rows": "5"}, {"retained_seconds": -1}],
)
def test_invalid_options_are_refused(store: Store, queue: Queue, option: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(option))):
        queue.set_options(**option)
    with pytest.raises(OptionError):
        store.create_queue("other", {"data": "string"}, **option)
    assert queue.describe().options == QueueOptions()
    assert store.queues() == ["clicks"]


def test_describe_returns_partitions_options_and_columns_of_a_queue(store: Store, queue: Queue) -> None:
    queue.append(values("a", "b"), partition=1)
    queue.trim(1, 1)
    consumer_of(store, "reader", "clicks", vital=True)
    described = queue.describe()
    assert (described.name, described.schema, described.options) == ("clicks", queue.schema, QueueOptions())
    assert described.registrations == tuple(store.registrations("clicks"))
    assert [partition.number for partition in described.partitions] == [0, 1, 2]
    assert [partition.bounds for partition in described.partitions] == list(queue.bounds().values())
    assert [partition.weight for partition in described.partitions] == [None] * 3
    last_commits = [partition.last_commit for partition in described.partitions]
    assert last_commits == [None, pytest.approx(queue.commit_time(1, 1)), None]


# -- many at once -------------------------------------------------------------------------------------------


def test_threads_append_to_one_handle(queue: Queue) -> None:
    def append(writer: int) -> list[RowRange]:
        return [
            found
            for number in range(25)
            for found in queue.append(values(f"{writer} {number} a", f"{writer} {number} b"), partition=number % 3)
        ]

    with ThreadPoolExecutor(4) as pool:
        ranges = [(writer, found) for writer, all_of in enumerate(pool.map(append, range(4))) for found in all_of]
    check_dense([found for _, found in ranges])
    stored = [data_in(queue, number) for number in range(3)]
    for writer, found in ranges:
        mine = stored[found.partition][found.first : found.next]
        assert [value.split()[::2] for value in mine] == [[str(writer), "a"], [str(writer), "b"]]


def test_processes_append_rows_that_are_dense_and_disjoint(place: Place, queue: Queue) -> None:
    with racing(3) as pool:
        appended = [pool.submit(queue_workers.append_rows, place, writer) for writer in range(3)]
        ranges = [found for part in appended for found in part.result()]
    check_dense(ranges)
    parts = [data_in(queue, number) for number in range(3)]
    assert (
        len({value for part in parts for value in part})
        == 3 * place.commits(queue_workers.COMMITS) * queue_workers.ROWS
    )
    assert sum(map(len, parts)) == 3 * place.commits(queue_workers.COMMITS) * queue_workers.ROWS
    # The rows of one append are contiguous, in their order.
    for found in ranges:
        mine = [value.split() for value in parts[found.partition][found.first : found.next]]
        assert len({(writer, commit) for writer, commit, _ in mine}) == 1
        assert [row for _, _, row in mine] == sorted(row for _, _, row in mine)


def check_dense(ranges: list[RowRange]) -> None:
    """Assert that ranges cover each partition's row indexes from 0 on, without gap or overlap."""
    for partition in {found.partition for found in ranges}:
        mine = sorted((found.first, found.next) for found in ranges if found.partition == partition)
        assert [first for first, _ in mine] == [0, *(end for _, end in mine[:-1])]
