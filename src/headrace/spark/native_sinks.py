"""Tables and queues as sinks of Spark: tasks stage Arrow batches in the store, the driver publishes them at once.

A stream writer is made anew for each batch, so nothing is kept between batches but the marker in the store.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.errors import PublicationError
from headrace.ports import Advance, Queue, Staged, Store
from headrace.spark.checkpoint import BATCH_ID, QUERY_ID, batch_content, queue_progress
from headrace.spark.garbage_collection import freeze_loaded_modules
from headrace.spark.outputs import ROWS_PER_WRITE, QueueTarget, TableTarget, Target, rows_per_write, stage
from headrace.tables.changes import RowChange

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.sources import _StoreDataSource


@dataclass
class StagedRows(WriterCommitMessage):
    """What one task staged, for which batch of which job."""

    job: str
    batch: int
    staged: list[Staged]


def streaming_batch() -> tuple[str, int]:
    """Return the query id and batch id that the current task works for.

    Raises:
        PublicationError: the task does not belong to a streaming query.
    """
    job, batch = _task_property(QUERY_ID), _task_property(BATCH_ID)
    if job is None or batch is None:
        raise PublicationError("this task does not belong to a streaming query, so its rows have no batch")
    return job, int(batch)


def _task_property(name: str) -> str | None:
    context = TaskContext.get()
    return context.getLocalProperty(name) if context else None


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    # Spark gives None for a task that failed.
    return [message for message in messages if isinstance(message, StagedRows)]


class _Writer:
    """Finds and checks the target where Spark plans the write; tasks and commits get copies."""

    def __init__(self, source: _StoreDataSource, schema: StructType, *, overwrite: bool = False) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._source = source
        with source.open_store() as store:
            sink = source.open_sink(store)
            self._target: Target
            if isinstance(sink, Queue):
                self._target = QueueTarget(sink.name, source.key_columns() or (), replace=overwrite)
            else:
                change = RowChange.REPLACE_ALL if overwrite else source.row_change()
                self._target = TableTarget(sink.name, change, source.location.columns)
            self._target.check(store, to_arrow_schema(schema, timezone="UTC"))

    def _stage(self, job: str, batch: int, rows: Iterator[pa.RecordBatch]) -> StagedRows:
        most_rows = rows_per_write(self._source.name(), self._source.settings, _task_property(ROWS_PER_WRITE))
        with self._source.open_store() as store:
            publisher = store.publisher(job, self._target.name)
            staged = stage(store, self._target, publisher, batch, rows, most_rows)
        freeze_loaded_modules()
        return StagedRows(job, batch, staged)

    def _publish(
        self,
        store: Store,
        messages: Sequence[StagedRows],
        *,
        advances: Sequence[Advance] = (),
        content: str = "",
        last: bool = False,
    ) -> None:
        job, batch = messages[0].job, messages[0].batch
        write = self._target.write(receipt for message in messages for receipt in message.staged)
        publisher = store.publisher(job, self._target.name)
        publisher.publish(batch, [write], advances=advances, content=content, last=last)

    def _discard(self, messages: Sequence[StagedRows]) -> None:
        with self._source.open_store() as store:
            for message in messages:
                store.publisher(message.job, self._target.name).discard(message.batch, message.staged)


class StreamSinkWriter(_Writer, DataSourceStreamArrowWriter):
    """Native append: each micro-batch is published once, under the query's id."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(*streaming_batch(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = _staged(messages)
        if not staged:
            return
        checkpoint = self._source.options.get("checkpointlocation", "")
        with self._source.open_store() as store:
            self._publish(
                store,
                staged,
                advances=queue_progress(checkpoint, batchId, store.id, store=store) if checkpoint else (),
                content=batch_content(checkpoint, batchId, store=store) if checkpoint else "",
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._discard(_staged(messages))


class BatchSinkWriter(_Writer, DataSourceArrowWriter):
    """A batch write: all of its rows become visible at once. Overwrite replaces what the table or queue holds."""

    def __init__(self, source: _StoreDataSource, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(source, schema, overwrite=overwrite)
        self._job = f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(self._job, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        # Without any task there is no message, and an overwrite with nothing is still an overwrite.
        with self._source.open_store() as store:
            self._publish(store, _staged(messages) or [StagedRows(self._job, 0, [])], last=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._discard(_staged(messages))
