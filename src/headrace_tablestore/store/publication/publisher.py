"""Publication without transactions: staging writes the rows, and publication writes the marker of the batch.

Spark repeats a batch without a marker, with the same rows, so the second write changes nothing. Before the marker,
readers may see a part of a batch. Rows that replace the whole table cannot be written before the batch is complete.
They are staged in the meta table, and publication writes the differences.

In the meta table, tunnelId ``__published__`` has one row for each job and sink: the last published batch. tunnelId
``__staged__`` has staged rows as Arrow IPC streams in Base64, cut into parts.
"""

from __future__ import annotations

import base64
import hashlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import parse_where
from headrace.model.tables.schema import Column, TableSchema
from headrace.ports import Advance, Append, Claim, Publisher, Staged, Table, Write
from headrace.rows import to_arrow
from headrace.rows.by_position import compared, last_rows
from headrace.rows.rebatching import rebatched
from headrace.rows.staged_parts import missing, whole_content
from headrace.support import failpoints
from headrace_tablestore.store.connection import TablestoreConnection
from headrace_tablestore.store.meta_table import MetaRow, MetaTable
from headrace_tablestore.store.tables.conditions import filter_of
from headrace_tablestore.store.tables.reading import Reader
from headrace_tablestore.store.tables.stored_tables import declared
from headrace_tablestore.store.tables.writing import ROWS_AT_ONCE, Writer
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.plainbuffer.rows import encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, Row

PUBLISHED = "__published__"
STAGED = "__staged__"
PART_BYTES = 1 << 20
_WRITTEN = 0
"""The number of a receipt for rows that are already written to their table."""
_STREAM_BYTES = 8 << 20
_KEY_BYTES = 1000
# Rows that are still staged after a day belong to a job that no longer exists.
_ABANDONED_SECONDS = 86400.0


class TablestorePublisher(Publisher):
    """Publishes the batches of one sink of a job in a Tablestore instance: at least once, with identical rows."""

    def __init__(
        self,
        connection: TablestoreConnection,
        open_table: Callable[[str], Table],
        writer: Writer,
        meta: MetaTable,
        job: str,
        sink: str,
    ) -> None:
        self._connection = connection
        self._open_table = open_table
        self._writer = writer
        self._meta = meta
        self.job = job
        self.sink = sink

    def __repr__(self) -> str:
        return f"TablestorePublisher(job={self.job!r}, sink={self.sink!r})"

    def published(self, batch: int) -> bool:
        marker = self._marker()
        return marker is not None and int(marker.cells["batch"]) >= batch

    def last_batch(self) -> int | None:
        rows = self._meta.rows(PUBLISHED, self.job, columns=["batch"])
        return max((int(row.cells["batch"]) for row in rows), default=None)

    def stage(
        self,
        batch: int,
        rows: Iterable[pa.RecordBatch],
        *,
        table: str | None = None,
        change: RowChange | None = None,
    ) -> list[Staged]:
        """Write rows to their table, or stage them in the meta table; see `headrace.ports.Publisher.stage`.

        Rows are written unless they replace the whole table or the table is unknown. If the input fails, a part of
        them is in the table, and the next attempt of the batch writes them again. Rows of a published or older batch
        are not written: they would overwrite newer rows.

        Raises:
            RowsNotWrittenError: some rows could not be written.
        """
        if table is None or change is None or change is RowChange.REPLACE_ALL:
            return self._stage_in_meta_table(batch, rows)
        primary_key = self._open_table(table).schema.primary_key
        count = 0
        for part in rebatched(rows, ROWS_AT_ONCE):
            # Checked for each part: an abandoned task of Spark may still run while another attempt publishes.
            if self.published(batch):
                return []
            self._writer.write(table, _schema_of(part.schema, primary_key), change, part)
            count += part.num_rows
        failpoints.reach("rows-staged")
        return [Staged(_WRITTEN, count)] if count else []

    def publish(
        self,
        batch: int,
        writes: Sequence[Write | Append],
        *,
        advances: Sequence[Advance] = (),
        content: str = "",
        last: bool = False,
        claim: Claim | None = None,
    ) -> bool:
        """Write the staged rows, then the marker; see `headrace.ports.Publisher.publish`.

        A failure between them leaves some rows written and no marker: the batch must be published again.
        """
        if advances or any(isinstance(write, Append) for write in writes):
            raise UnsupportedError("Tablestore has no queues to append to, and no consumers to advance")
        marker = self._marker()
        if marker is not None and int(marker.cells["batch"]) >= batch:
            self._check_same(batch, content, int(marker.cells["batch"]), str(marker.cells.get("content", "")))
            return False
        if claim is not None:
            self.take(claim)
        tables = [write for write in writes if isinstance(write, Write)]
        # All staged rows are loaded before the first write.
        parts = [self._load(batch, write) for write in tables]
        for write, rows in zip(tables, parts, strict=True):
            self._apply(write, rows)
        failpoints.reach("rows-written")
        if not last:
            cells: dict[str, str | int] = {"batch": batch, "content": content, "published": time.time_ns() // 1000}
            self._meta.put(PUBLISHED, [MetaRow(self.job, self._sink_key, cells)])
        failpoints.reach("marker-written")
        if any(rows is not None for rows in parts):
            self._sweep(batch)
        failpoints.reach("published")
        return True

    def take(self, claim: Claim) -> None:
        """Put the row of a claim in a conditional write; see `headrace.ports.Publisher.take`."""
        schema = self._open_table(claim.table).schema
        if claim.before is None:
            condition = pb.Condition(row_existence=pb.EXPECT_NOT_EXIST)
        else:
            before = {name: value for name, value in claim.before.items() if name not in schema.primary_key}
            unchanged = filter_of(schema, parse_where(before))
            condition = pb.Condition(row_existence=pb.EXPECT_EXIST, column_condition=unchanged)
        key = tuple((name, claim.after[name]) for name in schema.primary_key)
        cells = tuple(Cell(name, value) for name, value in claim.after.items() if name not in schema.primary_key)
        request = pb.PutRowRequest(table_name=claim.table, row=encode_row(Row(key, cells)), condition=condition)
        try:
            self._connection.call("PutRow", request, pb.PutRowResponse, repeatable=True)
        except ServiceError as error:
            if error.code != "OTSConditionCheckFail":
                raise
            row = self._open_table(claim.table).get(dict(key))
            # A request that is repeated after a lost response finds its own row.
            if row != claim.after:
                raise claim.lost(row) from None

    def discard(self, batch: int, staged: Sequence[Staged] | None = None) -> None:
        """Remove staged rows from the meta table. Rows in their table stay; the next attempt writes them again."""
        ids = None if staged is None else {receipt.id for receipt in staged} - {_WRITTEN}
        if ids is None:
            self._remove(first=_batch_key(batch), end=_batch_key(batch + 1))
        for number in ids or ():
            self._remove(first=_receipt_key(batch, number), end=_receipt_key(batch, number) + "~")

    # -- the marker -------------------------------------------------------------------------------------

    @property
    def _sink_key(self) -> str:
        return _short(f"sink:{self.sink}")

    def _marker(self) -> MetaRow | None:
        return self._meta.get(PUBLISHED, self.job, self._sink_key)

    # -- staged rows ------------------------------------------------------------------------------------

    @property
    def _staging_key(self) -> str:
        return _short(f"{self.job}/{self.sink}")

    def _stage_in_meta_table(self, batch: int, rows: Iterable[pa.RecordBatch]) -> list[Staged]:
        staged: list[Staged] = []
        try:
            for part in rebatched(rows, _STREAM_BYTES, by_bytes=True):
                # First in the list, so that an incomplete receipt is discarded with the others.
                staged.append(Staged(uuid.uuid4().int >> 66 | 1, part.num_rows))
                for row in _parts(part, _receipt_key(batch, staged[-1].id)):
                    self._meta.put(STAGED, [MetaRow(self._staging_key, *row)])
        except BaseException:
            self.discard(batch, staged)
            raise
        failpoints.reach("rows-staged")
        return staged

    def _load(self, batch: int, write: Write) -> pa.Table | None:
        """Return the staged rows of a write; None if its rows are already in their table."""
        aside = [receipt for receipt in write.staged if receipt.id != _WRITTEN]
        if not aside and write.change is not RowChange.REPLACE_ALL:
            return None
        return whole_content([self._load_receipt(batch, receipt) for receipt in aside], pa.table({}))

    def _load_receipt(self, batch: int, receipt: Staged) -> pa.Table:
        key = _receipt_key(batch, receipt.id)
        rows = self._meta.rows(STAGED, self._staging_key, first=key, end=key + "~")
        if not rows or len(rows) != rows[0].cells["parts"]:
            raise missing(
                self.job, self.sink, batch, receipt, "its rows were discarded, or staged for another batch or sink"
            )
        data = b"".join(base64.b64decode(str(row.cells["rows"])) for row in rows)
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all()

    def _apply(self, write: Write, rows: pa.Table | None) -> None:
        if rows is None:
            return
        table = self._open_table(write.table)
        schema = table.schema if not rows.num_columns else _schema_of(rows.schema, table.schema.primary_key)
        if not rows.num_columns:
            rows = schema.arrow.empty_table()
        if write.change is not RowChange.REPLACE_ALL:
            self._writer.write(write.table, schema, write.change, rows)
            return
        rows = to_arrow(rows, schema, columns="all")
        declared_schema = declared(table.schema, schema.columns)
        stored, others = Reader(self._connection, write.table, declared_schema, schema.names).scan_with_others()
        put, deleted = differences(stored.select(schema.names), others, rows, schema)
        self._writer.write(write.table, schema, RowChange.PUT, put)
        self._writer.write(write.table, schema, RowChange.DELETE, deleted)

    def _sweep(self, batch: int) -> None:
        """Remove the rows that this sink staged for batches up to this one, and all rows that were staged long ago."""
        self._remove(end=_batch_key(batch + 1))
        long_ago = time.time() - _ABANDONED_SECONDS
        rows = self._meta.rows(STAGED, None, columns=["created"])
        self._meta.delete(STAGED, [row for row in rows if int(row.cells.get("created", 0)) < long_ago])

    def _remove(self, *, first: str | None = None, end: str | None = None) -> None:
        self._meta.delete(STAGED, self._meta.rows(STAGED, self._staging_key, first=first, end=end, columns=["created"]))


def _batch_key(batch: int) -> str:
    return f"{batch:020}/"


def _receipt_key(batch: int, number: int) -> str:
    return f"{_batch_key(batch)}{number:016x}/"


def _short(text: str) -> str:
    """Return a text as a part of a key; a long text is replaced by its first characters and its hash."""
    size = len(text.encode())
    return text if size <= _KEY_BYTES else f"{text[:100]}… {hashlib.sha256(text.encode()).hexdigest()}"


def _schema_of(columns: pa.Schema, primary_key: tuple[str, ...]) -> TableSchema:
    return TableSchema(tuple(Column(field.name, field.type) for field in columns), primary_key)


def _parts(rows: pa.Table, key: str) -> Iterator[tuple[str, dict[str, str | int]]]:
    """Yield rows as an IPC stream in the parts that one attribute can hold: the channel id and the cells of each."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data = sink.getvalue().to_pybytes()
    count = -(-len(data) // PART_BYTES)
    for number in range(count):
        part = base64.b64encode(data[number * PART_BYTES : (number + 1) * PART_BYTES]).decode()
        yield f"{key}{number:06}", {"rows": part, "parts": count, "created": int(time.time())}


def differences(
    stored: pa.Table, others: pa.ChunkedArray, rows: pa.Table, schema: TableSchema
) -> tuple[pa.Table, pa.Table]:
    """Return the rows to put, and the keys to delete, that replace the content of a table by other rows.

    Args:
        stored: the rows of the table.
        others: for each of these rows, whether it has cells of other columns, which must be removed.
        rows: the new rows of the table; of several rows with one key, the last one counts.
        schema: the columns of both.
    """
    key = list(schema.primary_key)
    stored, rows = stored.combine_chunks(), rows.combine_chunks()
    rows = rows.take(pa.array(last_rows(rows, key)))
    keys = compared(stored, rows, key)
    old_rows, new_rows = stored.take(keys.left), rows.take(keys.right)
    changed: np.ndarray = others.take(keys.left).to_numpy()
    for column in schema.attributes:
        changed = changed | ~_same(old_rows.column(column.name), new_rows.column(column.name))
    put = pa.concat_tables([rows.take(keys.only_right), new_rows.filter(pa.array(changed))])
    return put, stored.select(key).take(keys.only_left)


def _same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> np.ndarray:
    """Return a mask of the rows in which two values are both null or have equal bits."""
    first, second = left.combine_chunks(), right.combine_chunks()
    if pa.types.is_floating(first.type):
        bits = pa.int32() if first.type == pa.float32() else pa.int64()
        first, second = first.view(bits), second.view(bits)
    equal = pc.equal(first, second).fill_null(False).to_numpy(zero_copy_only=False)
    neither = pc.and_(first.is_null(), second.is_null()).to_numpy(zero_copy_only=False)
    result: np.ndarray = equal | neither
    return result
