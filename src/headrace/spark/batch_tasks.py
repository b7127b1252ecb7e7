"""The batches of ``foreachBatch``: tasks stage rows for one or several targets, and the driver publishes them once.

`write_stream` and all queries that change tables by key use it. `headrace.batches.sinks.batch_writer` has the steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from headrace.batches.sinks import published_rows
from headrace.batches.sinks.batch_writer import BatchWriter
from headrace.batches.sinks.targets import Target
from headrace.ports import Claim, Staged, Store
from headrace.spark.checkpoint import batch_content, query_id, queue_progress
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

    def tasks(self, job: str, batch: int, targets: Sequence[Target]) -> BatchTasks:
        """Return a batch of the query."""
        return BatchTasks(self.store, job, batch, tuple(targets), self.rows_per_write)


@dataclass(frozen=True)
class BatchTasks:
    """One batch of a query, and what its tasks need to stage rows. Picklable.

    Attributes:
        store: the absolute address of the store of all targets.
        job: the identity of the job.
        batch: the batch id.
        targets: the tables and queues, in the order of the receipts.
        rows_per_write: the maximum number of rows in one write to the store; None is no limit.
    """

    store: StoreAddress
    job: str
    batch: int
    targets: tuple[Target, ...]
    rows_per_write: int | None = None

    def open_store(self) -> AbstractContextManager[Store]:
        """Open the store, and check that it is the driver's; see `headrace.spark.executors.task_store`."""
        return task_store(self.store)

    def writer(self, store: Store) -> BatchWriter:
        return BatchWriter(store, self.job, self.targets)

    def stage(self, rows: DataFrame, target: int) -> Receipts:
        """Stage rows for one target, in a Spark job."""

        def stage_in_task(store: Store, parts: Iterator[pa.RecordBatch]) -> list[Staged]:
            return self.writer(store).stage(self.batch, self.targets[target], parts, self.rows_per_write)

        return self._run(rows, lambda store, parts: [(target, stage_in_task(store, parts))])

    def stage_routed(self, rows: DataFrame, route: Route) -> Receipts:
        """Stage the rows that ``route`` makes of each partition, in a Spark job."""

        def stage_in_task(store: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[Staged]]]:
            writer = self.writer(store)
            done: list[Staged] = []
            earlier: list[tuple[int, Staged]] = []

            def rows() -> Iterator[tuple[int, pa.RecordBatch]]:
                for target, routed in route(store, parts):
                    if isinstance(routed, Staged):
                        earlier.append((target, routed))
                    else:
                        yield target, routed

            try:
                for target, collected in _collected(rows(), len(self.targets)):
                    staged = writer.stage(self.batch, self.targets[target], collected, self.rows_per_write)
                    done += staged
                    yield target, staged
                yield from ((target, [receipt]) for target, receipt in earlier)
            except BaseException:
                writer.discard(self.batch, done)
                raise

        return self._run(rows, stage_in_task)

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


def joined(receipts: Iterable[Receipts]) -> Receipts:
    """Return the receipts of several Spark jobs, by target."""
    return [list(chain.from_iterable(of_target)) for of_target in zip(*receipts, strict=True)]


def _collected(
    routed: Iterable[tuple[int, pa.RecordBatch]], targets: int
) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Yield rows by target, in pieces of `_ROUTED_BYTES` for all targets together."""
    waiting: list[list[pa.RecordBatch]] = [[] for _ in range(targets)]
    size = 0
    for target, rows in routed:
        if not rows.num_rows:
            continue
        waiting[target].append(rows)
        size += rows.nbytes
        if size >= _ROUTED_BYTES:
            yield from ((target, parts) for target, parts in enumerate(waiting) if parts)
            waiting, size = [[] for _ in range(targets)], 0
    yield from ((target, parts) for target, parts in enumerate(waiting) if parts)


def publishing(
    sink: LocatedSink,
    targets: Sequence[Target],
    stage: Callable[[DataFrame, BatchTasks], Receipts],
    *,
    stateful: bool,
    claim: Claim | None = None,
    named_targets: int | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that stages and publishes each batch; see `publish_batch`.

    Args:
        targets: the tables and queues.
    """
    job: str | None = None
    checked = False

    def stage_and_publish(batch_df: DataFrame, batch: int) -> None:
        nonlocal job, checked
        with task_store(sink.store) as store:
            job = job or query_id(batch_df.sparkSession, sink.checkpoint, store)
            publish_batch(
                store,
                sink.tasks(job, batch, targets),
                sink.checkpoint,
                batch_df,
                stage,
                stateful=stateful,
                check=not checked,
                claim=claim,
                named_targets=named_targets,
            )
            checked = True

    return stage_and_publish


def publish_batch(
    store: Store,
    tasks: BatchTasks,
    checkpoint: str,
    batch_df: DataFrame,
    stage: Callable[[DataFrame, BatchTasks], Receipts],
    *,
    stateful: bool,
    check: bool,
    claim: Claim | None = None,
    named_targets: int | None = None,
) -> None:
    """Stage and publish a batch.

    Args:
        store: the open store of the targets.
        checkpoint: the query's checkpoint location, as Spark has it.
        stage: runs the Spark jobs of a batch, with `BatchTasks.stage` and `BatchTasks.stage_routed`.
        stateful: the query can have state in Spark, so that a published batch that is repeated must be read again.
        check: whether to check that no earlier batch is missing.
        claim: what must be unchanged for the publication.
        named_targets: how many of the first targets the user has named. The others are state, whose rows do not count
            as rows out. None for all.
    """
    spark, batch, writer = batch_df.sparkSession, tasks.batch, tasks.writer(store)
    try:
        if check:
            writer.check_complete(batch)
        # `stage` may read the rows of the targets, of which a part of the batch must not be visible.
        published = writer.resume(batch)
        staged = stage(batch_df, tasks) if stateful or not published else [[] for _ in tasks.targets]
        # For a published batch, too: `publish` checks that the batch has the same content as before.
        writer.publish(
            batch,
            staged,
            advances=queue_progress(checkpoint, batch, store.id, spark, store=store),
            content=batch_content(checkpoint, batch, spark, store=store),
            claim=claim,
        )
        written = sum(each.rows for of_target in staged[:named_targets] for each in of_target)
        published_rows.note(tasks.job, batch, written)
    except Exception:
        writer.discard(batch)
        raise
