"""Functions that tests of queues run in other processes. All of them can be pickled by name."""

from __future__ import annotations

import time

import pyarrow as pa

from headrace.errors import DataLossError, OffsetConflictError
from headrace.model.queues.values import RowRange
from headrace.model.tables.changes import RowChange
from headrace.ports import Advance, Append, Write
from headrace.testing import Place
from headrace.testing.processes import DEADLINE, begin
from headrace.testing.queue_reading import Row, values

COMMITS = 40
ROWS = 5
LAST = "the end"


def append_rows(place: Place, writer: int) -> list[RowRange]:
    """Append rows to each partition in turn, and to two at once. Return their ranges."""
    begin()
    with place.open() as store:
        queue = store.queue("clicks")
        ranges = []
        for commit in range(place.commits(COMMITS)):
            rows = values(*(f"{writer} {commit} {row}" for row in range(ROWS)))
            if commit % 4 == 3:
                rows = [{**row, "$tablet_index": number % 2} for number, row in enumerate(rows)]
                ranges += queue.append(rows)
            else:
                ranges += queue.append(rows, partition=commit % 3)
        return ranges


def append_indexes(place: Place) -> int:
    """Append rows that contain their row index, trim older rows, and end with `LAST`. Return the number of rows."""
    begin()
    with place.open() as store:
        queue = store.queue("busy")
        next_row = 0
        for commit in range(place.commits(150)):
            count = 1 + commit % 40
            queue.append(values(*map(str, range(next_row, next_row + count))))
            next_row += count
            if commit % 3 == 2:
                queue.trim(0, max(0, next_row - 60))
        queue.append(values(LAST))
        return next_row + 1


def read_indexes(place: Place) -> tuple[int, int]:
    """Read to `LAST` and compare each row with its index. Return the numbers of rows read and lost."""
    begin()
    deadline = time.monotonic() + DEADLINE
    next_row = seen = lost = 0
    with place.open() as store:
        queue = store.queue("busy")
        while time.monotonic() < deadline:
            try:
                page = queue.read(0, next_row, 17)
            except DataLossError:
                first = queue.bounds()[0].lower
                assert first > next_row
                lost += first - next_row
                next_row = first
                continue
            found = page.rows.column("data").to_pylist()
            seen += len(found)
            ended = found[-1:] == [LAST]
            expected = [str(row) for row in range(next_row, page.next)]
            assert found == ([*expected[:-1], LAST] if ended else expected)
            if ended:
                return seen, lost
            next_row = page.next
            if not found:
                store.wait_for_change(1.0)
    raise TimeoutError(f"{LAST} did not come")


def push_rows(place: Place, session: str) -> int:
    """Push each batch of numbered rows twice, as after a lost response. Return the number of skipped rows."""
    begin()
    skipped = 0
    with place.open() as store:
        producer = store.producer("writer")
        opened = producer.open_session("clicks", session)
        for commit in range(place.commits(COMMITS)):
            rows = values(*(f"{session} {commit} {row}" for row in range(ROWS)))
            for _ in range(2):
                pushed = producer.push(opened, rows, sequence_number=commit * ROWS, partition=0)
                assert pushed.last_sequence_number == (commit + 1) * ROWS - 1
                skipped += pushed.skipped_rows
    return skipped


def move_on(place: Place, reader: int, rows: int) -> list[tuple[int, int]]:
    """Claim rows of partition 0 by compare-and-set until ``rows`` are claimed. Return the claimed ranges."""
    begin()
    taken = []
    with place.open() as store:
        consumer = store.consumer("shared")
        while (offset := consumer.offsets("clicks")[0]) < rows:
            try:
                consumer.advance("clicks", {0: offset + reader + 1}, {0: offset})
            except OffsetConflictError:
                continue
            taken.append((offset, offset + reader + 1))
    return taken


def publish_until_killed(place: Place, life: int) -> None:
    """Publish batches until killed: rows of queue ``in`` to two queues and a table, and the consumer's advance."""
    with place.open() as store:
        publisher, consumer, source = store.publisher("job"), store.consumer("reader"), store.queue("in")
        batch = 0
        while publisher.published(batch):
            batch += 1
        while True:
            start = consumer.offsets("in")[0]
            end = start + ROWS
            source.append(values(*map(str, range(source.bounds()[0].upper, end))), partition=0)
            rows: list[Row] = source.read(0, start, ROWS).rows.to_pylist()
            staged = {name: tuple(publisher.stage_append(batch, name, [_batch(rows)])) for name in ("left", "right")}
            keyed = _batch([{"id": row["data"], "life": life} for row in rows])
            put = Write("table", RowChange.PUT, tuple(publisher.stage(batch, [keyed])))
            appends = [Append(name, receipts) for name, receipts in staged.items()]
            advance = Advance("reader", "in", {0: end}, {0: start})
            publisher.publish(batch, [*appends, put], advances=[advance])
            batch += 1


def _batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows)
