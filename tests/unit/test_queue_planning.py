"""Planning and reading of tasks: small ranges share a task, large ones are split, and each row has its index."""

from __future__ import annotations

import logging
from itertools import chain, pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batches.feeds.queue_columns import PARTITION, QUEUE_NAME, ROW_INDEX, AddressColumns, QueueShape
from headrace.batches.feeds.queue_reading import TASK_ROWS, QueueRange, plan_tasks, read_rows
from headrace.errors import DataLossError, SchemaError
from headrace.model.queues.values import QueuePage
from tests.unit.memory_queues import MemoryQueue, as_queue

NO_ADDRESS = AddressColumns({}, {})
ranges = st.lists(st.integers(0, 3 * TASK_ROWS), max_size=20).map(
    lambda sizes: [QueueRange("q", number, 7, 7 + size) for number, size in enumerate(sizes)]
)


def covered(tasks: list[tuple[QueueRange, ...]]) -> list[QueueRange]:
    """Return the ranges of tasks, with adjacent ranges joined."""
    joined: list[QueueRange] = []
    for part in chain.from_iterable(tasks):
        if joined and joined[-1].partition == part.partition and joined[-1].next == part.first:
            joined[-1] = QueueRange(part.queue, part.partition, joined[-1].first, part.next)
        else:
            joined.append(part)
    return joined


@given(ranges)
def test_tasks_cover_the_ranges_and_only_the_last_task_is_small(given_ranges: list[QueueRange]) -> None:
    tasks = plan_tasks(given_ranges)
    assert covered(tasks) == [part for part in given_ranges if part.rows]
    assert all(sum(part.rows for part in task) >= TASK_ROWS for task in tasks[:-1])


@given(ranges, st.integers(1, 40))
def test_the_minimum_of_tasks_is_respected_if_there_are_enough_rows(given_ranges: list[QueueRange], count: int) -> None:
    tasks = plan_tasks(given_ranges, count)
    assert covered(tasks) == [part for part in given_ranges if part.rows]
    assert all(part.rows > 0 for task in tasks for part in task)
    assert len(tasks) >= min(count, sum(part.rows for part in given_ranges))


def test_sixty_four_small_partitions_are_few_tasks() -> None:
    assert len(plan_tasks([QueueRange("q", number, 0, 100) for number in range(64)])) == 2


def test_a_range_is_checked_only_a_few_times_when_many_share_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[QueueRange] = []

    def rows(part: QueueRange) -> int:
        looks.append(part)
        return part.next - part.first

    monkeypatch.setattr(QueueRange, "rows", property(rows))
    assert len(plan_tasks([QueueRange("q", number, 0, 1) for number in range(1000)])) == 1
    assert len(looks) < 5000


def test_one_large_partition_is_split_into_equal_tasks() -> None:
    tasks = plan_tasks([QueueRange("q", 0, 10, 1010)], 4)
    assert [task[0].rows for task in tasks] == [250] * 4


def read(queue: MemoryQueue, part: QueueRange, *, fail: bool = True) -> list[int]:
    pages = list(read_rows(as_queue(queue), part, fail_on_data_loss=fail))
    assert all(page.next <= after.first for page, after in pairwise(pages))
    return [value for page in pages for value in page.rows.column(0).to_pylist()]


@pytest.fixture
def queue() -> MemoryQueue:
    queue = MemoryQueue("q", 2)
    queue.append(20, 1)
    return queue


def test_a_range_is_read_to_its_end_and_no_further(queue: MemoryQueue) -> None:
    assert read(queue, QueueRange("q", 1, 5, 12)) == list(range(1005, 1012))


def test_a_trim_after_planning_is_an_error_or_skipped_by_index(
    queue: MemoryQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.trim(1, 8)
    with pytest.raises(DataLossError, match="rows 5 to 7 of partition 1"):
        read(queue, QueueRange("q", 1, 5, 12))
    with caplog.at_level(logging.WARNING, "headrace"):
        assert read(queue, QueueRange("q", 1, 5, 12), fail=False) == list(range(1008, 1012))
        assert read(queue, QueueRange("q", 1, 5, 8), fail=False) == []
    assert [record.args[-1] for record in caplog.records if isinstance(record.args, tuple)] == [3, 3]


def test_a_trim_between_two_pages_is_found(queue: MemoryQueue) -> None:
    pages = read_rows(as_queue(queue), QueueRange("q", 1, 0, 20), fail_on_data_loss=False)
    assert next(pages).next == 3
    queue.trim(1, 10)
    assert next(pages).first == 10


def test_rows_of_an_empty_partition_that_were_planned_are_lost(queue: MemoryQueue) -> None:
    queue.recreate(partitions=2)
    queue.append(7, 1)
    with pytest.raises(DataLossError, match=r"rows 7 to 11 .* created again"):
        read(queue, QueueRange("q", 1, 5, 12))
    assert read(queue, QueueRange("q", 1, 5, 12), fail=False) == [1005, 1006]


def test_a_store_that_silently_skips_trimmed_rows_is_detected(queue: MemoryQueue) -> None:
    honest = queue.read

    def skipping(partition: int, first_row: int, max_rows: int = 1000, *, until: int | None = None) -> QueuePage:
        return honest(partition, max(first_row, 8), max_rows, until=until)

    queue.read = skipping  # type: ignore[method-assign]
    with pytest.raises(DataLossError, match="rows 5 to 7"):
        read(queue, QueueRange("q", 1, 5, 12))
    assert read(queue, QueueRange("q", 1, 5, 12), fail=False) == list(range(1008, 1012))


# -- columns ---------------------------------------------------------------------------------------------


PAGE = QueuePage(3, 7, pa.record_batch({"a": pa.array([1, 2]), "b": pa.array([[1], None], pa.list_(pa.int64()))}))


def test_rows_can_include_their_addresses() -> None:
    address = AddressColumns({"p": PARTITION, "i": ROW_INDEX}, {"path": QUEUE_NAME})
    shape = QueueShape(PAGE.rows.schema, address, wanted=None)
    assert shape.schema.names == ["p", "i", "a", "b", "path"]
    assert shape.rows("q", PAGE).to_pylist()[1] == {"p": 3, "i": 8, "a": 2, "b": None, "path": "q"}


def test_columns_can_be_chosen_by_name_and_type() -> None:
    wanted = pa.schema({"b": pa.list_(pa.int64()), "a": pa.int32()})
    rows = QueueShape(PAGE.rows.schema, NO_ADDRESS, wanted=wanted).rows("q", PAGE)
    assert rows.schema == wanted
    assert rows.to_pylist()[0] == {"b": [1], "a": 1}


def test_opaque_composite_columns_hold_json() -> None:
    rows = QueueShape(PAGE.rows.schema, NO_ADDRESS, opaque=True).rows("q", PAGE)
    assert rows.column("b").to_pylist() == [b"[1]", None]


def test_unknown_and_repeated_columns_are_refused() -> None:
    with pytest.raises(SchemaError, match="no such column"):
        QueueShape(PAGE.rows.schema, NO_ADDRESS, wanted=pa.schema({"c": pa.int64()}))
    with pytest.raises(SchemaError, match="already"):
        QueueShape(PAGE.rows.schema, AddressColumns({}, {"a": QUEUE_NAME}))
    with pytest.raises(SchemaError, match="already"):
        QueueShape(PAGE.rows.schema, AddressColumns({"a": PARTITION}, {}))


def test_a_value_that_another_type_cannot_hold_names_its_column() -> None:
    shape = QueueShape(PAGE.rows.schema, NO_ADDRESS, wanted=pa.schema({"b": pa.date32()}))
    with pytest.raises(SchemaError, match="column 'b'"):
        shape.rows("q", PAGE)
