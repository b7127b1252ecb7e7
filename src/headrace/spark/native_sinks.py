"""Native sinks of Spark: `df.writeStream.format(…)` in append mode, and batch writes with `df.write.format(…)`.

Both bind Spark's writer interfaces to `headrace.batches.sinks.batch_writer`. Spark creates a new stream writer for each
batch, so a writer keeps no state: the marker of the last batch is in the store.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.batches.sinks.bad_rows import bad_rows_of, prepare, refuse_queue
from headrace.batches.sinks.batch_writer import BatchWriter
from headrace.batches.sinks.feedback import check_batch
from headrace.batches.sinks.jobs import TargetJobs
from headrace.batches.sinks.targets import QueueTarget, TableTarget, Target
from headrace.errors import PublicationError
from headrace.formats.source import Source
from headrace.model.tables.changes import RowChange
from headrace.ports import Queue, Staged, Store
from headrace.spark import kept_stores
from headrace.spark.checkpoint import BATCH_ID, QUERY_ID, BatchOffsets, stored_query_id
from headrace.spark.executors import Sent, task_property, task_store
from headrace.spark.garbage_collection import freeze_loaded_modules
from headrace.spark.versions import DataSourceStreamArrowWriter, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class StagedByTask(WriterCommitMessage):
    """The receipts of one task, for one batch of a job."""

    job: str
    batch: int
    staged: list[Staged]


def streaming_batch() -> tuple[str, int]:
    """Return the query id and the batch id of the current task.

    Raises:
        PublicationError: the task does not belong to a streaming query.
    """
    job, batch = task_property(QUERY_ID), task_property(BATCH_ID)
    if job is None or batch is None:
        raise PublicationError("this task does not belong to a streaming query, so its rows have no batch")
    return job, int(batch)


def _staged_by_tasks(messages: Sequence[WriterCommitMessage | None]) -> list[StagedByTask]:
    # Spark passes None for a failed task.
    return [message for message in messages if isinstance(message, StagedByTask)]


class _NativeSink(Sent):
    """A writer for one target, which the constructor finds and checks while Spark plans the write."""

    def __init__(self, source: Source, schema: StructType, *, overwrite: bool = False) -> None:
        self._source = source
        with kept_stores.lent(source.location.store) as store:
            sink = source.location.open(store)
            self._target: Target
            if isinstance(sink, Queue):
                self._target = QueueTarget(sink.name, source.key_columns() or (), replace=overwrite)
            else:
                change = RowChange.REPLACE_ALL if overwrite else source.row_change()
                kept = source.keeps_bad_rows()
                bad_rows = bad_rows_of(sink.name, source.options.get("queryname")) if kept else None
                self._target = TableTarget(sink.name, change, source.location.columns, bad_rows=bad_rows)
            self._target.check(store, arrow_schema(schema))
            if source.keeps_bad_rows():
                refuse_queue(self._target)
            self._check_writer(store)
            prepare(store, self._target)
            self._store = source.location.store.of(store)

    def _check_writer(self, store: Store) -> None:
        """Raise an error if this writer cannot share the target with its other writers."""

    def _batch_writer(self, store: Store, job: str) -> BatchWriter:
        return BatchWriter(store, job, [self._target])

    def _stage(self, job: str, batch: int, rows: Iterator[pa.RecordBatch]) -> StagedByTask:
        limit = self._source.rows_per_write(task_property)
        with task_store(self._store) as store:
            staged = self._batch_writer(store, job).stage(batch, self._target, rows, limit)
        freeze_loaded_modules()
        return StagedByTask(job, batch, staged)

    def _discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with kept_stores.lent(self._source.location.store) as store:
            for task in _staged_by_tasks(messages):
                self._batch_writer(store, task.job).publisher.discard(task.batch, task.staged)


class StreamSink(_NativeSink, DataSourceStreamArrowWriter):
    """Append mode: publishes each batch once, with the query's id as the job."""

    def _check_writer(self, store: Store) -> None:
        if isinstance(self._target, TableTarget):
            TargetJobs(store).check_other(self._target.name, "this stream")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(*streaming_batch(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        tasks = _staged_by_tasks(messages)
        if not tasks:
            return
        job, batch = tasks[0].job, tasks[0].batch
        checkpoint = self._source.options.get("checkpointlocation", "")
        with kept_stores.lent(self._source.location.store) as store:
            if checkpoint and stored_query_id(checkpoint, store) not in (job, None):
                # A bare location, and this process has another environment than the driver at its start.
                checkpoint = ""
            writer = self._batch_writer(store, job)
            offsets = BatchOffsets.read(checkpoint, batchId, store=store) if checkpoint else None
            if offsets is not None and not writer.publisher.published(0):
                # The first batch: only its offsets tell what the stream reads.
                check_batch(offsets.tunnels, store, [self._target])
            writer.publisher.publish(
                batch,
                writer.writes([[receipt for task in tasks for receipt in task.staged]]),
                advances=() if offsets is None else offsets.advances(store.id),
                content="" if offsets is None else offsets.content,
            )
            writer.warn_of_bad_rows(batch)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._discard(messages)


class BatchSink(_NativeSink, DataSourceArrowWriter):
    """A batch write: publishes all rows as the only batch of a job. ``overwrite`` replaces the existing rows."""

    def __init__(self, source: Source, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(source, schema, overwrite=overwrite)
        self._job = f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(self._job, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        # Without messages too: an overwrite without rows deletes the existing rows.
        staged = [receipt for task in _staged_by_tasks(messages) for receipt in task.staged]
        with kept_stores.lent(self._source.location.store) as store:
            writer = self._batch_writer(store, self._job)
            writer.publisher.publish(0, writer.writes([staged]), last=True)
            writer.warn_of_bad_rows(0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._discard(messages)
