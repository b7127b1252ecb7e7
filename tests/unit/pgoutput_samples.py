"""Messages of pgoutput and values in PostgreSQL's binary formats, written value by value."""

from __future__ import annotations

import datetime
import struct
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from headrace.model.tables.changes import Changes
from headrace.model.tables.schema import TableSchema
from headrace.stores.postgres.tunnels import table_images as images_of_tables
from headrace.stores.postgres.tunnels.snapshots import Snapshots
from headrace.stores.postgres.tunnels.table_images import TableColumns, TableImages, nulls
from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.messages import Images, Truncation

EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
MICROSECOND = datetime.timedelta(microseconds=1)


class Unchanged:
    """An unchanged TOASTed value."""


Cell = bytes | str | None | type[Unchanged]
"""A value in binary format (bytes), in text format (str), null, or an unchanged value."""


def table_images(images: Images, table: TableColumns) -> TableImages:
    """Return images whose columns have the names that they have in the table now."""
    return TableImages(images, table, {column.name: place for place, column in enumerate(images.relation.columns)})


def changes(
    pieces: Sequence[TableImages],
    schema: TableSchema,
    snapshots: Snapshots | None = None,
    truncations: Sequence[Truncation] = (),
) -> Changes:
    """Return the changes of images of one table, in order."""
    return images_of_tables.changes(
        pieces,
        schema,
        lambda part, ops: part.as_changes(schema, ops),
        lambda _: nulls(schema),
        snapshots,
        truncations,
    )


def begin(lsn: int, time: int = 0, xid: int = 1) -> bytes:
    return b"B" + struct.pack(">QqI", lsn, time, xid)


def commit(lsn: int, time: int = 0) -> bytes:
    return b"C" + struct.pack(">bQQq", 0, lsn, lsn + 1, time)


def relation(
    oid: int, name: str, columns: Sequence[tuple[str, int]], identity: str = "d", schema: str = "public"
) -> bytes:
    described = b"".join(
        struct.pack(">b", place == 0) + column.encode() + b"\0" + struct.pack(">Ii", kind, -1)
        for place, (column, kind) in enumerate(columns)
    )
    head = struct.pack(">I", oid) + schema.encode() + b"\0" + name.encode() + b"\0" + identity.encode()
    return b"R" + head + struct.pack(">H", len(columns)) + described


def insert(oid: int, cells: Sequence[Cell]) -> bytes:
    return b"I" + struct.pack(">I", oid) + b"N" + row(cells)


def update(
    oid: int, cells: Sequence[Cell], *, key: Sequence[Cell] | None = None, old: Sequence[Cell] | None = None
) -> bytes:
    before = b"" if key is None else b"K" + row(key)
    before = before if old is None else b"O" + row(old)
    return b"U" + struct.pack(">I", oid) + before + b"N" + row(cells)


def delete(oid: int, *, key: Sequence[Cell] | None = None, old: Sequence[Cell] | None = None) -> bytes:
    return (
        b"D" + struct.pack(">I", oid) + (b"O" + row(old) if key is None and old is not None else b"K" + row(key or ()))
    )


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack(">IB", len(oids), 0) + b"".join(struct.pack(">I", oid) for oid in oids)


def row(cells: Sequence[Cell]) -> bytes:
    return struct.pack(">H", len(cells)) + b"".join(map(_cell, cells))


def _cell(cell: Cell) -> bytes:
    if cell is None:
        return b"n"
    if isinstance(cell, bytes):
        return b"b" + struct.pack(">I", len(cell)) + cell
    if isinstance(cell, str):
        return b"t" + struct.pack(">I", len(cell.encode())) + cell.encode()
    return b"u"


def binary(oid: int, value: Any) -> bytes | None:
    """Return a value in binary format."""
    if value is None:
        return None
    if oid in types.ARRAYS:
        return _array(types.ARRAYS[oid], value)
    return _BINARY[oid](value) if oid in _BINARY else str(value).encode()


def _array(element: int, values: Sequence[Any]) -> bytes:
    cells = [binary(element, value) for value in values]
    has_nulls = any(cell is None for cell in cells)
    if not cells:
        return struct.pack(">IiI", 0, 0, element)
    body = b"".join(struct.pack(">i", -1) if cell is None else struct.pack(">i", len(cell)) + cell for cell in cells)
    return struct.pack(">IiIii", 1, has_nulls, element, len(cells), 1) + body


def numeric(value: Decimal) -> bytes:
    """Return a decimal in the format of ``numeric``: groups of four digits around the point."""
    sign, digits, exponent = value.as_tuple()
    if value.is_nan():
        return struct.pack(">HhHH", 0, 0, 0xC000, 0)
    if value.is_infinite():
        return struct.pack(">HhHH", 0, 0, 0xF000 if sign else 0xD000, 0)
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    if exponent > 0:
        text, exponent = text + "0" * exponent, 0
    text = text.rjust(-exponent + 1, "0")
    whole, fraction = text[: len(text) + exponent], text[len(text) + exponent :]
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int((whole + fraction)[at : at + 4]) for at in range(0, len(whole + fraction), 4)]
    weight = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    if not groups:
        sign, weight = 0, 0
    head = struct.pack(">HhHH", len(groups), weight, 0x4000 if sign else 0, -exponent)
    return head + b"".join(struct.pack(">H", group) for group in groups)


def _days(value: datetime.date) -> bytes:
    return struct.pack(">i", (value - EPOCH.date()).days)


def _microseconds(value: datetime.datetime) -> bytes:
    aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
    return struct.pack(">q", (aware - EPOCH) // MICROSECOND)


def _time(value: datetime.time) -> bytes:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return struct.pack(">q", seconds * 1_000_000 + value.microsecond)


_BINARY: dict[int, Callable[[Any], bytes]] = {
    types.BOOL: lambda value: struct.pack(">?", value),
    types.INT2: lambda value: struct.pack(">h", value),
    types.INT4: lambda value: struct.pack(">i", value),
    types.INT8: lambda value: struct.pack(">q", value),
    types.OID: lambda value: struct.pack(">I", value),
    types.FLOAT4: lambda value: struct.pack(">f", value),
    types.FLOAT8: lambda value: struct.pack(">d", value),
    types.BYTEA: bytes,
    types.NUMERIC: numeric,
    types.UUID: lambda value: uuid.UUID(value).bytes,
    types.JSONB: lambda value: b"\x01" + value.encode(),
    types.DATE: _days,
    types.TIME: _time,
    types.TIMESTAMP: _microseconds,
    types.TIMESTAMPTZ: _microseconds,
}
