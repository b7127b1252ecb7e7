"""Streaming queries without Spark: a writer, a feed, its tasks, a publisher, and a checkpoint like Spark's.

A pipeline writes rows in several rounds and copies them to its sink. It can be killed at any step (see
`headrace.support.failpoints`) and run again: it continues from its checkpoint, as Spark does. All classes can be
pickled by name, so that a pipeline can run in its own process.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.batches.feeds.channel_reading import read_channel
from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.queue_feed import QueueFeed
from headrace.batches.feeds.queue_offset import QueueOffset
from headrace.batches.feeds.queue_reading import read_rows
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.model.queues.columns import TABLET_INDEX
from headrace.model.tables.changes import Changes, RowChange
from headrace.model.tables.several_tables import TABLE
from headrace.model.tunnels.records import INITIAL_BATCH
from headrace.ports import Advance, Append, Staged, Store, Write
from headrace.support import failpoints
from headrace.testing import Place
from headrace.testing.queue_reading import data_in

ROUNDS, ROWS = 3, 4
JOB = "job"


class Checkpoint:
    """The logs of a query: the offset of each batch before it runs, an entry for each batch after it was published."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def offsets(self) -> list[Any]:
        return [json.loads(path.read_text()) for path in self._entries("offsets")]

    def commits(self) -> int:
        return len(self._entries("commits"))

    def write(self, log: str, batch: int, entry: Any) -> None:
        path = self._directory / log / f"{batch:06}"
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}")
        hidden.write_text(json.dumps(entry))
        hidden.rename(path)

    def _entries(self, log: str) -> list[Path]:
        return sorted(path for path in (self._directory / log).glob("*") if path.name.isdecimal())


class Pipeline(ABC):
    """A query that copies its input. ``sink`` is the name of its target."""

    sink = "sink"

    def __init__(self, store: Store, checkpoint: Checkpoint) -> None:
        self.store = store
        self.checkpoint = checkpoint
        self.publisher = store.publisher(JOB, self.sink)

    @classmethod
    @abstractmethod
    def create(cls, store: Store) -> None:
        """Create the source and the sink."""

    @abstractmethod
    def write(self, number: int) -> None:
        """Write the rows of a round, unless they exist."""

    @abstractmethod
    def write_more(self) -> None:
        """Write rows while the query is down. The unfinished batch contains none of them."""

    @abstractmethod
    def latest(self, previous: Any) -> Any:
        """Return the offset of the next batch, or ``previous`` if there is none."""

    @abstractmethod
    def run_batch(self, batch: int, start: Any, end: Any) -> None:
        """Read, stage and publish a batch, unless it is published."""

    @abstractmethod
    def check(self) -> None:
        """Check that the sink has all rows, each once."""

    def run(self) -> None:
        """Write all rounds and copy them to the sink."""
        for number in range(ROUNDS):
            self.write(number)
            self.follow()

    def follow(self) -> None:
        """Run the unfinished batch, if there is one, then all following batches."""
        offsets = self.checkpoint.offsets()
        if len(offsets) > self.checkpoint.commits():
            self._run_batch(offsets)
        while (end := self.latest(offsets[-1] if offsets else None)) is not None:
            self.checkpoint.write("offsets", len(offsets), end)
            offsets.append(end)
            self._run_batch(offsets)

    def _run_batch(self, offsets: list[Any]) -> None:
        batch = len(offsets) - 1
        self.run_batch(batch, offsets[-2] if batch else None, offsets[-1])
        self.checkpoint.write("commits", batch, {})


class TablePipeline(Pipeline):
    """From a table's tunnel into a table."""

    change = RowChange.PUT

    @classmethod
    def create(cls, store: Store) -> None:
        for name in ("source", cls.sink):
            store.create_table(name, {"id": "string", "price": "long"}, "id")
        store.create_tunnel("source", "changes", "Stream")

    def __init__(self, store: Store, checkpoint: Checkpoint) -> None:
        super().__init__(store, checkpoint)
        self.feed = TunnelFeed(store.tunnel("changes"))

    def write(self, number: int) -> None:
        table = self.store.table("source")
        rows = [{"id": f"{number}-{row}", "price": number} for row in range(ROWS)]
        if table.get({"id": f"{number}-{ROWS - 1}"}) is None:
            table.put(rows)

    def write_more(self) -> None:
        self.store.table("source").put([{"id": f"more-{row}", "price": row} for row in range(ROWS)])

    def latest(self, previous: Any) -> Any:
        before = INITIAL_BATCH if previous is None else previous
        found = self.feed.latest(before)
        return None if found == before else found

    def run_batch(self, batch: int, start: Any, end: Any) -> None:
        staged: list[Staged] = []
        if not self.publisher.published(batch):
            for part in self.feed.plan(end):
                if part.max_rows != 0:
                    pages = read_channel(self.feed.tunnel, end, part)
                    rows = [batch for changes in pages for batch in self.rows(changes)]
                    staged += self.publisher.stage(batch, rows, table=self.sink, change=self.change)
        self.publisher.publish(batch, [Write(self.sink, self.change, tuple(staged))], content=str(end))

    def rows(self, changes: Changes) -> list[pa.RecordBatch]:
        """Return the rows of the sink."""
        return [changes.rows]

    def check(self) -> None:
        rows = self.store.table(self.sink).scan().read_all().to_pylist()
        written = [f"{number}-{row}" for number in [*range(ROUNDS), "more"] for row in range(ROWS)]
        assert sorted(str(row["id"]) for row in rows) == written
        assert self.store.tunnel("changes").describe().backlog_rows == 0


class SeveralTablesPipeline(TablePipeline):
    """From the tunnel of two tables into a table, a transaction a batch."""

    @classmethod
    def create(cls, store: Store) -> None:
        for name in ("source", "other", cls.sink):
            store.create_table(name, {"id": "string", "price": "long"}, "id")
        store.create_tunnel(["source", "other"], "changes")

    def __init__(self, store: Store, checkpoint: Checkpoint) -> None:
        super().__init__(store, checkpoint)
        self.feed = TunnelFeed(store.tunnel("changes").typed(), limits=Limits(rows_per_batch=1))

    def write(self, number: int) -> None:
        for name, first in (("source", 0), ("other", ROWS // 2)):
            if self.store.table(name).get({"id": f"{number}-{first}"}) is None:
                rows = [{"id": f"{number}-{row}", "price": number} for row in range(first, first + ROWS // 2)]
                self.store.table(name).put(rows)

    def rows(self, changes: Changes) -> list[pa.RecordBatch]:
        found = []
        for name in self.feed.tunnel.tables:
            own = changes.rows.filter(pc.equal(changes.rows.column(TABLE), name))
            found.append(pa.RecordBatch.from_struct_array(own.column(name)))
        return found


class ReplacingTablePipeline(TablePipeline):
    """From a tunnel into a table that holds exactly the rows of the last batch, as in complete mode."""

    change = RowChange.REPLACE_ALL

    def write_more(self) -> None:
        """Write nothing: otherwise the last batch would depend on the failpoint."""

    def check(self) -> None:
        rows = self.store.table(self.sink).scan().read_all().to_pylist()
        assert sorted(str(row["id"]) for row in rows) == [f"{ROUNDS - 1}-{row}" for row in range(ROWS)]


class QueuePipeline(Pipeline):
    """From a queue with a consumer into a queue, partition by partition."""

    replace = False
    advances = True

    @classmethod
    def create(cls, store: Store) -> None:
        for name in ("source", cls.sink):
            store.create_queue(name, {"data": "string"}, partitions=2)
        store.create_consumer("reader")
        store.register_consumer("source", "reader", vital=True)
        store.create_producer("writer")

    def write(self, number: int) -> None:
        producer = self.store.producer("writer")
        for partition in range(2):
            session = producer.open_session("source", f"to {partition}")
            if session.sequence_number < (number + 1) * ROWS - 1:
                rows = [{"data": f"{partition}-{number}-{row}"} for row in range(ROWS)]
                producer.push(session, rows, sequence_number=number * ROWS, partition=partition)

    def write_more(self) -> None:
        for partition in range(2):
            rows = [{"data": f"{partition}-more-{row}"} for row in range(ROWS)]
            self.store.queue("source").append(rows, partition=partition)

    def __init__(self, store: Store, checkpoint: Checkpoint) -> None:
        super().__init__(store, checkpoint)
        self.feed = QueueFeed(store, [store.queue("source")], store.consumer("reader"))

    def latest(self, previous: Any) -> Any:
        before = self.feed.initial() if previous is None else QueueOffset.of_json(previous)
        found = self.feed.latest(before)
        return None if found == before else found.to_json()

    def run_batch(self, batch: int, start: Any, end: Any) -> None:
        first = self.feed.initial() if start is None else QueueOffset.of_json(start)
        last = QueueOffset.of_json(end)
        staged: list[Staged] = []
        if not self.publisher.published(batch):
            source = self.store.queue("source")
            for part in self.feed.ranges(first, last):
                rows = [_addressed(page.rows, part.partition) for page in read_rows(source, part)]
                staged += self.publisher.stage_append(batch, self.sink, rows)
        before, after = first.queues.get("source"), last.queues["source"]
        advances = [] if before is None or not self.advances else [Advance("reader", "source", after, before)]
        append = Append(self.sink, tuple(staged), self.replace)
        self.publisher.publish(batch, [append], advances=advances, content=json.dumps(end))

    def check(self) -> None:
        sink, source = self.store.queue(self.sink), self.store.queue("source")
        for partition in range(2):
            written = data_in(source, partition)
            assert data_in(sink, partition) == self.expected(written)
            rounds = {f"{partition}-{number}-{row}" for number in range(ROUNDS) for row in range(ROWS)}
            assert rounds <= set(written)
            assert len(written) == len(set(written))
        ends = {number: bounds.upper for number, bounds in source.bounds().items()}
        assert self.store.consumer("reader").offsets("source") == ends

    def expected(self, written: list[str]) -> list[str]:
        """Return the expected rows of a partition of the sink."""
        return written


class FollowedQueuePipeline(QueuePipeline):
    """The same with source and sink in different stores: the consumer advances when the next batch is requested."""

    advances = False


class ReplacingQueuePipeline(QueuePipeline):
    """Into a queue that holds the rows of the last batch. A YTsaurus cluster publishes such batches in parts."""

    replace = True

    def write_more(self) -> None:
        """Write nothing: otherwise the last batch would depend on the failpoint."""

    def expected(self, written: list[str]) -> list[str]:
        return written[-ROWS:]


def _addressed(rows: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    numbers = pa.array([partition] * rows.num_rows, pa.int64())
    return pa.RecordBatch.from_arrays([*rows.columns, numbers], [*rows.schema.names, TABLET_INDEX])


def run(kind: type[Pipeline], place: Place, checkpoint: Path, point: str | None = None) -> None:
    """Run a pipeline to its end, or until a failpoint kills it."""
    failpoints.arm(point)
    with place.open() as store:
        kind(store, Checkpoint(checkpoint)).run()
    # Exit at once: an exit handler must not hide that the process was not killed.
    os._exit(0)
