"""The batches of ``foreachBatch``: tasks stage rows for one or several targets, and the driver publishes them once.

`write_stream` and all queries that change tables by key use it. `headrace.batches.sinks.batch_writer` has the steps.
`StreamBatches` is the function that Spark calls, `BatchContent` the part in which queries differ: the rows that they
write into their targets.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from headrace.batches.sinks import batch_figures
from headrace.batches.sinks.batch_writer import BatchWriter
from headrace.batches.sinks.feedback import check_batch
from headrace.batches.sinks.targets import Target
from headrace.ports import Claim, Staged, Store
from headrace.spark.checkpoint import BatchOffsets, query_id
from headrace.spark.executors import sent, task_store
from headrace.spark.garbage_collection import freeze_loaded_modules
from headrace.stores.registry import StoreAddress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

# A schema given as text would cost a call to the JVM in each batch.
_RECEIPT = StructType(
    [StructField("target", IntegerType()), StructField("id", LongType()), StructField("rows", LongType())]
)
_PLAIN_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
# A task with several targets collects rows in memory up to this size before it stages them.
_ROUTED_BYTES = 64 << 20

Route: TypeAlias = "Callable[[Store, Iterator[pa.RecordBatch]], Iterable[tuple[int, pa.RecordBatch | Staged]]]"
"""Runs in a task: from the rows of its partition to rows for targets, or receipts of rows that an earlier step of the
task has staged, each with the target's index."""

Receipts: TypeAlias = list[list[Staged]]
"""The receipts of all tasks, for each target in order."""


def all_receipts(parts: Iterable[Receipts]) -> Receipts:
    """Return the receipts of several jobs of a batch as those of one."""
    return [[receipt for each in of_target for receipt in each] for of_target in zip(*parts, strict=True)]


class DriverRows(NamedTuple):
    """All rows of a batch, if the driver has them: the process that publishes them stages them.

    Attributes:
        routed: the rows, each with its target's index.
    """

    routed: Sequence[tuple[int, pa.RecordBatch]]


@dataclass(frozen=True)
class LocatedSink:
    """Where a started query writes, the same in all processes. Picklable.

    Attributes:
        store: the absolute address of the store of all targets, with the instance of the store where the query was
            started. Over Spark Connect batches run on the server, where the URL can lead to another store.
        checkpoint: the query's checkpoint location, as Spark has it.
        rows_per_write: the maximum number of rows in one write to the store; None is no limit.
    """

    store: StoreAddress
    checkpoint: str = field(repr=False)
    rows_per_write: int | None = None


@dataclass(frozen=True)
class BatchTasks:
    """One batch of a query, and what its tasks need to stage rows. Picklable.

    Attributes:
        sink: the store of all targets.
        job: the identity of the job.
        batch: the batch id.
        targets: the tables and queues, in the order of the receipts.
    """

    sink: LocatedSink
    job: str
    batch: int
    targets: tuple[Target, ...]

    def open_store(self) -> AbstractContextManager[Store]:
        """Open the store, and check that it is the driver's; see `headrace.spark.executors.task_store`."""
        return task_store(self.sink.store)

    def writer(self, store: Store) -> BatchWriter:
        return BatchWriter(store, self.job, self.targets)

    def stage_all(self, rows: DataFrame, target: int) -> Receipts:
        """Stage all rows for one target, in a Spark job."""

        def in_task(store: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[Staged]]]:
            yield target, self.stage_in_task(self.writer(store), target, parts)

        return self._run(rows, in_task)

    def stage_routed(self, rows: DataFrame, route: Route) -> Receipts:
        """Stage the rows that ``route`` makes of each partition, in a Spark job."""

        def in_task(store: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[Staged]]]:
            writer = self.writer(store)
            done: list[Staged] = []
            try:
                for target, collected in _collected(route(store, parts), len(self.targets)):
                    if isinstance(collected, Staged):
                        yield target, [collected]
                        continue
                    staged = self.stage_in_task(writer, target, collected)
                    done += staged
                    yield target, staged
            except BaseException:
                writer.publisher.discard(self.batch, done)
                raise

        return self._run(rows, in_task)

    def stage_in_task(self, writer: BatchWriter, target: int, rows: Iterable[pa.RecordBatch]) -> list[Staged]:
        """Stage the rows that a task has for one target."""
        return writer.stage(self.batch, self.targets[target], rows, self.sink.rows_per_write)

    def stage_in_driver(self, writer: BatchWriter, routed: Iterable[tuple[int, pa.RecordBatch]]) -> Receipts:
        """Stage rows that the driver has, each with its target's index."""
        parts: list[list[pa.RecordBatch]] = [[] for _ in self.targets]
        for target, rows in routed:
            if rows.num_rows:
                parts[target].append(rows)
        return [self.stage_in_task(writer, target, rows) if rows else [] for target, rows in enumerate(parts)]

    def discard(self) -> None:
        """Delete all that a failed attempt at the batch has staged."""
        with self.open_store() as store:
            self.writer(store).publisher.discard(self.batch)

    def _run(
        self,
        rows: DataFrame,
        stage: Callable[[Store, Iterator[pa.RecordBatch]], Iterable[tuple[int, list[Staged]]]],
    ) -> Receipts:
        names = rows.columns

        def in_task(renamed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            columns = (pa.RecordBatch.from_arrays(part.columns, names=names) for part in renamed)
            with self.open_store() as store:
                found = [(target, receipt) for target, staged in stage(store, columns) for receipt in staged]
            freeze_loaded_modules()
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([target for target, _ in found], pa.int32()),
                    pa.array([receipt.id for _, receipt in found], pa.int64()),
                    pa.array([receipt.rows for _, receipt in found], pa.int64()),
                ],
                _RECEIPT.names,
            )

        renamed = rows if _are_plain(names) else rows.toDF(*(f"c{index}" for index in range(len(names))))
        receipts: Receipts = [[] for _ in self.targets]
        for receipt in renamed.mapInArrow(sent(in_task), _RECEIPT).collect():
            receipts[receipt.target].append(Staged(receipt.id, receipt.rows))
        return receipts


def _are_plain(names: Sequence[str]) -> bool:
    """Return whether mapInArrow finds columns by these names: it parses them as paths, in any case."""
    return all(map(_PLAIN_NAME.fullmatch, names)) and len({name.lower() for name in names}) == len(names)


def _collected(
    routed: Iterable[tuple[int, pa.RecordBatch | Staged]], targets: int
) -> Iterator[tuple[int, list[pa.RecordBatch] | Staged]]:
    """Yield rows by target, in pieces of `_ROUTED_BYTES` for all targets together; and receipts as they are."""
    waiting: list[list[pa.RecordBatch]] = [[] for _ in range(targets)]
    size = 0
    for target, rows in routed:
        if isinstance(rows, Staged):
            yield target, rows
        elif rows.num_rows:
            waiting[target].append(rows)
            size += rows.nbytes
            if size >= _ROUTED_BYTES:
                yield from ((target, parts) for target, parts in enumerate(waiting) if parts)
                waiting, size = [[] for _ in range(targets)], 0
    yield from ((target, parts) for target, parts in enumerate(waiting) if parts)


class BatchContent(ABC):
    """What a query writes in a batch. Picklable."""

    rereads_published: ClassVar[bool]
    """Whether Spark can have state of the query, so that a published batch that is repeated must be read again."""

    @property
    @abstractmethod
    def targets(self) -> tuple[Target, ...]:
        """The tables and queues, in the order of the receipts."""

    @abstractmethod
    def run(self, batch: DataFrame, tasks: BatchTasks) -> Receipts | DriverRows:
        """Run the Spark jobs of a batch, whose tasks stage its rows, or compute all of them in the driver."""


@dataclass
class StreamBatches(ABC):
    """The function of ``foreachBatch`` of a query. Spark Connect pickles it.

    Attributes:
        sink: the store and the checkpoint.
    """

    sink: LocatedSink
    _job: str = field(default="", init=False)

    def __call__(self, batch: DataFrame, number: int) -> None:
        with task_store(self.sink.store) as store:
            self._job = self._job or query_id(batch.sparkSession, self.sink.checkpoint, store)
            self.publish(store, self._job, batch, number)

    @abstractmethod
    def publish(self, store: Store, job: str, batch: DataFrame, number: int) -> None:
        """Stage and publish a batch.

        Args:
            store: the open store of the targets.
            job: the identity of the query.
        """


@dataclass
class PublishedBatches(StreamBatches):
    """The batches of a query that writes the same in each batch.

    Attributes:
        content: what a batch writes.
    """

    content: BatchContent
    _checked: bool = field(default=False, init=False)

    def publish(self, store: Store, job: str, batch: DataFrame, number: int) -> None:
        tasks = BatchTasks(self.sink, job, number, self.content.targets)
        offsets = None
        if not self._checked:
            # At the start, a DataFrame of Spark Connect does not tell what it reads.
            offsets = BatchOffsets.read(self.sink.checkpoint, number, batch.sparkSession, store=store)
            check_batch(offsets.tunnels, store, tasks.targets)
        publish_batch(store, tasks, batch, self.content, check=not self._checked, offsets=offsets)
        self._checked = True


def publish_batch(
    store: Store,
    tasks: BatchTasks,
    batch: DataFrame,
    content: BatchContent,
    *,
    check: bool,
    claim: Claim | None = None,
    offsets: BatchOffsets | None = None,
) -> bool:
    """Stage and publish a batch; return False if it was published before, and nothing was changed.

    Args:
        store: the open store of the targets.
        content: what the batch writes.
        check: whether to check that no earlier batch is missing.
        claim: what must be unchanged for the publication; None for nothing.
        offsets: the offsets of the batch, if they were read.
    """
    spark, number, checkpoint, writer = batch.sparkSession, tasks.batch, tasks.sink.checkpoint, tasks.writer(store)
    publisher = writer.publisher
    try:
        if check:
            publisher.check_complete(number)
        # `run` may read the rows of the targets, of which a part of the batch must not be visible.
        published = publisher.resume(number)
        runs = content.rereads_published or not published
        batch_figures.begin(tasks.job, number)
        with batch_figures.part(tasks.job, number, "evaluate"):
            staged = content.run(batch, tasks) if runs else [[] for _ in tasks.targets]
            if isinstance(staged, DriverRows):
                # The store need not keep rows that never leave this process.
                publisher.in_process = True
                staged = tasks.stage_in_driver(writer, staged.routed)
        # For a published batch, too: `publish` checks that the batch has the same content as before.
        with batch_figures.part(tasks.job, number, "publish"):
            offsets = offsets or BatchOffsets.read(checkpoint, number, spark, store=store)
            published = publisher.publish(
                number,
                writer.writes(staged),
                advances=offsets.advances(store.id),
                content=offsets.content,
                claim=claim,
            )
        writer.warn_of_bad_rows(number)
        shown = (receipts for target, receipts in zip(tasks.targets, staged, strict=True) if not target.is_state)
        batch_figures.note_rows(tasks.job, number, sum(each.rows for receipts in shown for each in receipts))
        return published
    except Exception:
        publisher.discard(number)
        raise
