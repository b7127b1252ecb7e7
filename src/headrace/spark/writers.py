"""Tables as sinks of Spark: tasks stage Arrow batches in the store, the driver publishes them at once.

A stream writer is made anew for each batch, so nothing is kept between batches but the marker in the store.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.errors import PublicationError
from headrace.model import RowChange
from headrace.ports import Staged, Write
from headrace.spark.checkpoint import BATCH_ID, QUERY_ID, batch_content
from headrace.spark.workers import settle

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.ports import Store, Table
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
    context = TaskContext.get()
    job = context.getLocalProperty(QUERY_ID) if context else None
    batch = context.getLocalProperty(BATCH_ID) if context else None
    if job is None or batch is None:
        raise PublicationError("this task does not belong to a streaming query, so its rows have no batch")
    return job, int(batch)


def stage(
    store: Store, table: Table, change: RowChange, job: str, batch: int, rows: Iterable[pa.RecordBatch]
) -> StagedRows:
    """Stage a task's rows, checked against the table so that a misfit is found here and not at publication."""
    publisher = store.publisher(job, table.name)
    if publisher.published(batch):
        # A replay: the rows are taken, because Spark's state depends on that, and are not needed.
        for _ in rows:
            pass
        return StagedRows(job, batch, [])
    staged = publisher.stage(batch, fitting(table, change, rows))
    settle()
    return StagedRows(job, batch, staged)


def fitting(table: Table, change: RowChange, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the table's own types; raise `SchemaError` for one that does not fit."""
    from headrace.rows import to_arrow

    columns: Literal["all", "given", "keys"] = "all"
    if change is RowChange.UPDATE:
        columns = "given"
    elif change is RowChange.DELETE:
        columns = "keys"
    schema = table.schema
    for batch in rows:
        if batch.num_rows:
            yield from to_arrow(batch, schema, columns=columns).to_batches()


def publish(
    store: Store,
    table: str,
    change: RowChange,
    staged: Sequence[StagedRows],
    *,
    content: str = "",
    last: bool = False,
) -> bool:
    """Make what the tasks of a batch staged visible; tell whether it was this call that did."""
    if not staged:
        return False
    receipts = tuple(receipt for message in staged for receipt in message.staged)
    publisher = store.publisher(staged[0].job, table)
    return publisher.publish(staged[0].batch, [Write(table, change, receipts)], content=content, last=last)


class _TableWriter:
    def __init__(self, source: _StoreDataSource, schema: StructType) -> None:
        self._source = source
        self._schema = schema
        self._change = source.row_change()

    def _stage(self, job: str, batch: int, rows: Iterator[pa.RecordBatch]) -> StagedRows:
        with self._source.open_store() as store:
            return stage(store, self._source.open_table(store), self._change, job, batch, rows)

    def _publish(self, staged: Sequence[StagedRows], *, content: str = "", last: bool = False) -> None:
        with self._source.open_store() as store:
            table = self._source.open_table(store).name
            publish(store, table, self._change, staged, content=content, last=last)

    def _discard(self, staged: Sequence[StagedRows]) -> None:
        with self._source.open_store() as store:
            for message in staged:
                store.publisher(message.job, self._source.open_table(store).name).discard(message.batch, message.staged)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    # Spark gives None for a task that failed.
    return [message for message in messages if isinstance(message, StagedRows)]


class TableStreamWriter(_TableWriter, DataSourceStreamArrowWriter):
    """Native append: each micro-batch is published once, under the query's id."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(*streaming_batch(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        checkpoint = self._source.options.get("checkpointlocation", "")
        self._publish(_staged(messages), content=batch_content(checkpoint, batchId) if checkpoint else "")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._discard(_staged(messages))


class TableBatchWriter(_TableWriter, DataSourceArrowWriter):
    """A batch write: all of its rows become visible at once. Overwrite replaces the table's content."""

    def __init__(self, source: _StoreDataSource, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(source, schema)
        self._job = f"batch-{uuid.uuid4()}"
        if overwrite:
            self._change = RowChange.REPLACE_ALL

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(self._job, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        # Without any task there is no message, and an overwrite with nothing is still an overwrite.
        self._publish(_staged(messages) or [StagedRows(self._job, 0, [])], last=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._discard(_staged(messages))
