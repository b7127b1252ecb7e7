"""Rows of changes for a reader whose columns are fixed, while those of the table change. No I/O.

A stream of Spark keeps the columns of its start. As long as the table has just these, rows have them, and `PACKED` is
null. Otherwise a page of changes is packed, as an Arrow stream with the columns of the table, into `PACKED` of its
first row, and all other columns are null; the page has as many rows as before. `unpacked` is the inverse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from headrace.model.own_names import PREFIX
from headrace.model.tables.change_columns import CHANGE_COLUMNS, CHANGE_TYPE, ChangeShape, Shape
from headrace.model.tables.changes import Changes
from headrace.model.tables.schema import TableSchema
from headrace.model.types import type_name

PACKED = f"{PREFIX}packed"


class PackedShape(Shape):
    """The rows of `ChangeShape` without pre-images, some columns of it, and `PACKED`.

    Args:
        table: the columns of the table now.
        wanted: the columns of the rows.
    """

    def __init__(self, table: TableSchema, wanted: pa.Schema) -> None:
        names = [name for name in wanted.names if name != PACKED]
        self.schema = wanted
        self._whole = ChangeShape(table, pre_images=False)
        own = {
            field.name: type_name(field.type) for field in wanted if field.name not in (*CHANGE_COLUMNS.names, PACKED)
        }
        same = own == {column.name: type_name(column.type) for column in table.columns}
        self._typed = ChangeShape(table, names, pre_images=False) if same else None

    def rows(self, changes: Changes) -> pa.RecordBatch:
        if self._typed is not None:
            rows = self._typed.rows(changes)
            columns = {name: rows.column(name) for name in rows.schema.names}
            packed = pa.nulls(rows.num_rows, pa.binary())
        else:
            rows = self._whole.rows(changes)
            columns = {field.name: pa.nulls(rows.num_rows, field.type) for field in self.schema}
            data = _stream(rows) if rows.num_rows else b""
            packed = pa.array([data, *[None] * rows.num_rows][: rows.num_rows], pa.binary())
        columns[PACKED] = packed
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


def _stream(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


def unpacked(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a `PackedShape`, in their order: those of a page of changes have the columns of its time."""
    for part in parts:
        packed = part.column(PACKED)
        plain = part.drop_columns([PACKED])
        if packed.null_count == len(packed):
            yield from _typed(plain)
            continue
        begins = [place for place, is_null in enumerate(packed.is_null().to_pylist()) if not is_null]
        yield from _typed(plain.slice(0, begins[0]))
        for begin, end in zip(begins, [*begins[1:], len(packed)], strict=True):
            with pa.ipc.open_stream(packed[begin].as_buffer()) as page:
                yield from page
            yield from _typed(plain.slice(begin + 1, end - begin - 1))


def _typed(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows that are not in the place of packed ones."""
    typed = rows.column(CHANGE_TYPE).is_valid()
    if typed.true_count:
        yield rows if typed.false_count == 0 else rows.filter(typed)
