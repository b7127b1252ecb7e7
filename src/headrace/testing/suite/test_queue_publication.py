"""Publication into queues: rows of queues and tables and the advance of consumers, in one transaction and once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import NotFoundError, OffsetConflictError, PublicationError, SchemaError
from headrace.model.tables.changes import RowChange
from headrace.ports import Advance, Append, Consumer, Publisher, Queue, Staged, Store, Write
from headrace.testing import Place, queue_workers
from headrace.testing.processes import CONTEXT
from headrace.testing.queue_reading import consumer_of, data_in, edges, values, wait_until
from headrace.testing.reading import rows_of

pytestmark = pytest.mark.needs("queues", "transactions")


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.create_queue("out", {"data": "string"}, partitions=2)


@pytest.fixture
def source(store: Store) -> Queue:
    """A queue of ten rows."""
    queue = store.create_queue("in", {"data": "string"})
    queue.append(values(*map(str, range(10))))
    return queue


@pytest.fixture
def reader(store: Store, source: Queue) -> Consumer:
    return consumer_of(store, "reader", "in")


def batch_of(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows))


def stage(publisher: Publisher, batch: int, *data: str, partition: int = 0, queue: str = "out") -> tuple[Staged, ...]:
    rows = [{**row, "$tablet_index": partition} for row in values(*data)]
    return tuple(publisher.stage_append(batch, queue, [batch_of(rows)]))


# -- rows ---------------------------------------------------------------------------------------------------


def test_staged_rows_are_invisible_until_they_are_published(queue: Queue, publisher: Publisher) -> None:
    staged = stage(publisher, 0, "a", "b")
    assert sum(receipt.rows for receipt in staged) == 2
    assert (edges(queue), publisher.published(0)) == ([(0, 0), (0, 0)], False)
    assert publisher.publish(0, [Append("out", staged)])
    assert (data_in(queue), publisher.published(0)) == (["a", "b"], True)


def test_rows_are_appended_in_the_order_of_their_receipts(store: Store, publisher: Publisher) -> None:
    queue = store.create_queue("one", {"data": "string"})
    queue.append(values("first"))
    parts = [batch_of(values(f"{task} {part}")) for task in range(3) for part in range(2)]
    staged = [publisher.stage_append(0, "one", parts[task * 2 : task * 2 + 2]) for task in range(3)]
    queue.append(values("meanwhile"))
    publisher.publish(0, [Append("one", tuple(receipt for task in (2, 0, 1) for receipt in staged[task]))])
    assert data_in(queue) == ["first", "meanwhile", "2 0", "2 1", "0 0", "0 1", "1 0", "1 1"]


def test_rows_name_their_partition_or_follow_their_key(queue: Queue, publisher: Publisher) -> None:
    rows = [{"data": data, "$tablet_index": index} for data, index in zip("abc", (1, 0, 1), strict=True)]
    publisher.publish(0, [Append("out", tuple(publisher.stage_append(0, "out", [batch_of(rows)])))])
    assert [data_in(queue, number) for number in range(2)] == [["b"], ["a", "c"]]
    queue.append(values(*"defgh"), key="data")
    by_key = [data_in(queue, 0)[1:], data_in(queue, 1)[2:]]
    staged = tuple(publisher.stage_append(1, "out", [batch_of(values(*"defgh"))], key=["data"]))
    publisher.publish(1, [Append("out", staged)])
    assert [data_in(queue, 0)[1:], data_in(queue, 1)[2:]] == [found * 2 for found in by_key]


def test_system_columns_are_set_by_the_publication(store: Store, publisher: Publisher) -> None:
    queue = store.create_queue("full", {"data": "string", "$timestamp": "timestamp", "$cumulative_data_weight": "long"})
    staged = tuple(publisher.stage_append(0, "full", [batch_of(values("foo", "foobar"))]))
    queue.append(values("foo"))
    publisher.publish(0, [Append("full", staged)])
    rows = queue.read(0, 0).rows
    assert rows.column("$cumulative_data_weight").to_pylist() == [20, 40, 63]
    times = rows.column("$timestamp").to_pylist()
    assert times[0] < times[1] == times[2]
    assert times[1].timestamp() == pytest.approx(queue.commit_time(0, 1), abs=1e-6)


def test_a_large_batch_is_published_as_a_whole(store: Store, publisher: Publisher) -> None:
    queue = store.create_queue("n", {"n": "long"})
    count = 300_000
    rows = pa.table({"n": range(count)})
    staged = tuple(publisher.stage_append(0, "n", rows.to_batches(max_chunksize=10_000)))
    assert sum(receipt.rows for receipt in staged) == count
    publisher.publish(0, [Append("n", staged)])
    assert edges(queue) == [(0, count)]
    found, next_row = [], 0
    while (page := queue.read(0, next_row, 65536)).rows.num_rows:
        found.append(page.rows)
        next_row = page.next
    assert pa.Table.from_batches(found).column("n").to_pylist() == list(range(count))


def test_replace_trims_the_old_rows_and_continues_their_indexes(queue: Queue, publisher: Publisher) -> None:
    queue.append(values("a", "b"), partition=0)
    queue.append(values("c"), partition=1)
    publisher.publish(0, [Append("out", stage(publisher, 0, "d"), replace=True)])
    assert edges(queue) == [(2, 3), (1, 1)]
    assert data_in(queue) == ["d"]
    publisher.publish(1, [Append("out", (), replace=True)])
    assert edges(queue) == [(3, 3), (1, 1)]


def test_an_empty_batch_is_published(queue: Queue, publisher: Publisher) -> None:
    assert publisher.stage_append(0, "out", []) == []
    assert publisher.stage_append(0, "out", [pa.RecordBatch.from_pydict({"data": pa.array([], pa.string())})]) == []
    assert publisher.publish(0, [Append("out", ())])
    assert publisher.published(0)
    assert edges(queue) == [(0, 0), (0, 0)]


def test_invalid_rows_are_refused(queue: Queue, publisher: Publisher) -> None:
    for row in ({"colour": "red"}, {"data": 5}):
        with pytest.raises(SchemaError):
            publisher.publish(0, [Append("out", tuple(publisher.stage_append(0, "out", [batch_of([row])])))])
    with pytest.raises(NotFoundError):
        publisher.stage_append(0, "nothing", [batch_of(values("a"))])
    assert not publisher.published(0)


def test_a_failing_input_stages_nothing(queue: Queue, publisher: Publisher) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield batch_of(values("a"))
        raise RuntimeError("the query failed")

    with pytest.raises(RuntimeError, match="the query failed"):
        publisher.stage_append(0, "out", failing())
    assert publisher.publish(0, [Append("out", stage(publisher, 0, "b"))])
    assert data_in(queue) == ["b"]


def test_discarded_receipts_cannot_be_published(queue: Queue, publisher: Publisher) -> None:
    first, second = stage(publisher, 0, "a"), stage(publisher, 0, "b")
    publisher.discard(0, first)
    with pytest.raises(PublicationError):
        publisher.publish(0, [Append("out", first + second)])
    assert edges(queue) == [(0, 0), (0, 0)]
    assert publisher.publish(0, [Append("out", second)])
    assert data_in(queue) == ["b"]


def test_rows_staged_for_another_batch_sink_or_job_are_refused(store: Store, queue: Queue) -> None:
    publisher = store.publisher("job", "sink")
    for receipts in (
        stage(publisher, 7, "a"),
        stage(store.publisher("job", "other"), 0, "a"),
        stage(store.publisher("other", "sink"), 0, "a"),
    ):
        with pytest.raises(PublicationError):
            publisher.publish(0, [Append("out", receipts)])
    assert edges(queue) == [(0, 0), (0, 0)]


def test_rows_staged_for_another_queue_are_refused(store: Store, queue: Queue, publisher: Publisher) -> None:
    store.create_queue("twin", {"data": "string"})
    with pytest.raises(PublicationError):
        publisher.publish(0, [Append("twin", stage(publisher, 0, "a"))])
    assert edges(store.queue("twin")) == [(0, 0)]


# -- one transaction ------------------------------------------------------------------------------------------


def everything(publisher: Publisher, batch: int) -> list[Write | Append]:
    """Stage rows for two queues and a table."""
    keyed = batch_of([{"id": str(batch), "price": batch}])
    return [
        Append("out", stage(publisher, batch, f"{batch} a", f"{batch} b", partition=1)),
        Write("orders", RowChange.PUT, tuple(publisher.stage(batch, [keyed]))),
        Append("second", stage(publisher, batch, f"{batch} c", queue="second")),
    ]


def seen(store: Store) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the rows in the targets of `everything`."""
    orders = [row["id"] for row in rows_of(store.table("orders"))]
    return data_in(store.queue("out"), 1), orders, data_in(store.queue("second"))


@pytest.fixture
def second(store: Store) -> Queue:
    return store.create_queue("second", {"data": "string"})


@pytest.mark.usefixtures("orders", "queue", "second")
def test_queues_tables_and_advances_change_together(store: Store, reader: Consumer, publisher: Publisher) -> None:
    other = consumer_of(store, "other", "in")
    advances = [Advance("reader", "in", {0: 4}, {0: 0}), Advance("other", "in", {0: 7})]
    assert publisher.publish(0, everything(publisher, 0), advances=advances)
    assert seen(store) == (["0 a", "0 b"], ["0"], ["0 c"])
    assert (reader.offsets("in"), other.offsets("in")) == ({0: 4}, {0: 7})
    if store.capabilities.row_times:
        assert store.queue("out").commit_time(1, 0) == store.queue("second").commit_time(0, 0)


@pytest.mark.usefixtures("orders", "queue", "second")
def test_a_published_batch_changes_nothing_when_repeated(store: Store, reader: Consumer, publisher: Publisher) -> None:
    advance = Advance("reader", "in", {0: 4}, {0: 0})
    assert publisher.publish(0, everything(publisher, 0), advances=[advance])
    reader.advance("in", {0: 1})
    for again in (publisher, store.publisher("job")):
        assert not again.publish(0, everything(again, 0), advances=[advance])
    assert seen(store) == (["0 a", "0 b"], ["0"], ["0 c"])
    assert reader.offsets("in") == {0: 1}


@pytest.mark.usefixtures("orders", "queue", "second")
def test_a_conflict_changes_nothing(store: Store, reader: Consumer, publisher: Publisher) -> None:
    other = consumer_of(store, "other", "in")
    reader.advance("in", {0: 2})
    writes = everything(publisher, 0)
    wrong = [Advance("other", "in", {0: 7}, {0: 0}), Advance("reader", "in", {0: 4}, {0: 0})]
    with pytest.raises(OffsetConflictError) as caught:
        publisher.publish(0, writes, advances=wrong)
    assert (caught.value.consumer, caught.value.expected, caught.value.found) == ("reader", 0, 2)
    assert seen(store) == ([], [], [])
    assert (reader.offsets("in"), other.offsets("in"), publisher.published(0)) == ({0: 2}, {0: 0}, False)
    # The staged rows are still available for another attempt.
    assert publisher.publish(0, writes, advances=[Advance("reader", "in", {0: 4}, {0: 2})])
    assert seen(store) == (["0 a", "0 b"], ["0"], ["0 c"])


@pytest.mark.usefixtures("orders", "queue", "second")
def test_a_batch_that_cannot_be_written_advances_nothing(store: Store, reader: Consumer, publisher: Publisher) -> None:
    advance = Advance("reader", "in", {0: 4}, {0: 0})
    for bad in (Append("out", (Staged(10**9, 5),)), Append("nothing", ())):
        with pytest.raises((PublicationError, NotFoundError)):
            publisher.publish(0, [*everything(publisher, 0), bad], advances=[advance])
    assert (seen(store), reader.offsets("in")) == (([], [], []), {0: 0})


def test_an_offset_that_the_same_job_advanced_is_no_conflict(store: Store, reader: Consumer) -> None:
    advance = Advance("reader", "in", {0: 4}, {0: 0})
    for sink in ("one", "two"):
        assert store.publisher("job", sink).publish(0, [], advances=[advance])
    reader.advance("in", {0: 4}, {0: 0}, or_published=True)
    assert reader.offsets("in") == {0: 4}


@pytest.mark.parametrize("by", ["another job", "hand"])
def test_an_offset_that_another_reader_advanced_is_a_conflict(
    store: Store, reader: Consumer, publisher: Publisher, by: str
) -> None:
    advance = Advance("reader", "in", {0: 4}, {0: 0})
    if by == "hand":
        reader.advance("in", {0: 4})
        with pytest.raises(OffsetConflictError):
            reader.advance("in", {0: 4}, {0: 0}, or_published=True)
    else:
        store.publisher(by).publish(0, [], advances=[advance])
    with pytest.raises(OffsetConflictError):
        publisher.publish(0, [], advances=[advance])
    assert not publisher.published(0)


def test_a_consumer_that_is_not_registered_is_not_advanced(
    store: Store, reader: Consumer, publisher: Publisher
) -> None:
    store.unregister_consumer("in", "reader")
    with pytest.raises(NotFoundError, match="not registered"):
        publisher.publish(0, [], advances=[Advance("reader", "in", {0: 4}, {0: 0})])
    assert not publisher.published(0)
    assert reader.offsets("in") == {0: 0}


def test_rows_of_a_batch_are_kept_for_a_replay_until_the_next_advance(
    store: Store, source: Queue, publisher: Publisher
) -> None:
    source.set_options(auto_trim=True)
    vital = consumer_of(store, "vital", "in", vital=True)
    publisher.publish(0, [], advances=[Advance("vital", "in", {0: 4}, {0: 0})])
    # The query can be killed before it records the batch, or write the batch to a second sink.
    store.publisher("job", "other").publish(0, [], advances=[Advance("vital", "in", {0: 4}, {0: 0})])
    source.append(values("10"))
    assert (source.trim(), edges(source)) == (0, [(0, 11)])
    publisher.publish(1, [], advances=[Advance("vital", "in", {0: 7}, {0: 4})])
    wait_until(lambda: edges(source) == [(4, 11)])
    # A batch without rows of this partition needs no rows of it.
    publisher.publish(2, [], advances=[Advance("vital", "in", {0: 7}, {0: 7})])
    wait_until(lambda: edges(source) == [(7, 11)])
    publisher.publish(3, [], advances=[Advance("vital", "in", {0: 9}, {0: 7})])
    vital.advance("in", {0: 9}, {0: 9})
    wait_until(lambda: edges(source) == [(9, 11)])


def test_rows_of_a_batch_that_takes_its_consumer_back_are_kept(
    store: Store, source: Queue, publisher: Publisher
) -> None:
    """Before it, the consumer was ahead of the queue, so that it had read the rows of the batch."""
    source.set_options(auto_trim=True)
    consumer_of(store, "vital", "in", vital=True).advance("in", {0: 20})
    source.trim()
    wait_until(lambda: edges(source) == [(10, 10)])
    writes = [Append("in", stage(publisher, 0, "10", "11", queue="in"))]
    publisher.publish(0, writes, advances=[Advance("vital", "in", {0: 10}, {0: 20})])
    source.trim()
    assert edges(source) == [(10, 12)]


@pytest.mark.usefixtures("orders", "queue", "second")
def test_rows_staged_before_a_crash_are_never_published(place: Place, store: Store, publisher: Publisher) -> None:
    everything(publisher, 0)
    with place.open() as other:
        again = other.publisher("job")
        assert again.publish(0, everything(again, 0))
        assert seen(other) == (["0 a", "0 b"], ["0"], ["0 c"])
        assert again.publish(1, [])
    assert seen(store) == (["0 a", "0 b"], ["0"], ["0 c"])


def test_a_killed_publisher_leaves_only_complete_batches(place: Place, store: Store) -> None:
    queues = [store.create_queue(name, {"data": "string"}) for name in ("in", "left", "right")]
    table = store.create_table("table", {"id": "string", "life": "long"}, "id")
    consumer = consumer_of(store, "reader", "in")
    for life in range(3):
        target = queues[1].bounds()[0].upper + queue_workers.ROWS * place.commits(8 + 8 * life)
        process = CONTEXT.Process(target=queue_workers.publish_until_killed, args=(place, life))
        process.start()
        try:
            wait_for_rows(queues[1], target)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        finally:
            process.kill()
            process.join()
        done = consumer.offsets("in")[0]
        expected = [str(number) for number in range(done)]
        assert data_in(queues[1]) == data_in(queues[2]) == expected
        assert sorted((row["id"] for row in rows_of(table)), key=int) == expected
        assert done % queue_workers.ROWS == 0


def wait_for_rows(queue: Queue, upper: int) -> None:
    wait_until(lambda: queue.bounds()[0].upper >= upper)
