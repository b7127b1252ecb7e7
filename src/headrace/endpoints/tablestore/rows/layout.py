"""How Tablestore's rows lie in tables of typed columns.

A column of Tablestore has no type, its cells have. So there is one column of the table for each name and type that a
cell has had: the first type has the plain name, another one the name ``name:TYPE``, and at most one of them is not
null in a row. So names with a colon are refused, although Tablestore takes them.

Cells have timestamps: ``:timestamp`` is when the row was last written (ms), which is the timestamp of all its
cells but for those that ``:timestamps`` lists. Tables that headrace itself has made have neither column; their cells
count as written now.

A table that keeps several versions of a cell has two more columns. A cell's column holds its newest version;
``:versions`` holds the older ones of all cells of the row. ``:change`` holds the cells of the row's last update as a
client sent them, since the columns do not tell which versions it set or deleted.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.endpoints.tablestore.errors import refused
from headrace.errors import SchemaError, UnsupportedError
from headrace.tables.schema import TableSchema
from headrace.types import type_name
from headrace.wire.plainbuffer.rows import decode_row, encode_row
from headrace.wire.plainbuffer.values import Cell, Row, Value
from headrace.wire.tablestore.limits import MAX_VALUE_BYTES, is_attribute_name

TIMESTAMP = ":timestamp"
TIMESTAMPS = ":timestamps"
HIDDEN_COLUMNS = {TIMESTAMP: pa.int64(), TIMESTAMPS: pa.binary()}
VERSIONS = ":versions"
CHANGE = ":change"
VERSION_COLUMNS = {VERSIONS: pa.binary(), CHANGE: pa.binary()}
Numbers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_ENTRY = np.dtype([("column", "<u4"), ("timestamp", "<i8")])


class CellType(enum.StrEnum):
    """The types that the value of a cell can have."""

    INTEGER = "INTEGER"
    DOUBLE = "DOUBLE"
    BOOLEAN = "BOOLEAN"
    STRING = "STRING"
    BINARY = "BINARY"


_OF_VALUE: dict[type, CellType] = {
    int: CellType.INTEGER,
    float: CellType.DOUBLE,
    bool: CellType.BOOLEAN,
    str: CellType.STRING,
    bytes: CellType.BINARY,
}
ARROW_TYPES: dict[CellType, pa.DataType] = {
    CellType.INTEGER: pa.int64(),
    CellType.DOUBLE: pa.float64(),
    CellType.BOOLEAN: pa.bool_(),
    CellType.STRING: pa.string(),
    CellType.BINARY: pa.binary(),
}


def cell_type(value: Value) -> CellType | None:
    """Return the type of a value; None for null and markers, which no cell can hold."""
    return _OF_VALUE.get(type(value))


def type_of_column(data_type: pa.DataType) -> CellType | None:
    """Return the type that the cells of an Arrow column have on the wire; None if they cannot be sent."""
    types = pa.types
    if types.is_boolean(data_type):
        return CellType.BOOLEAN
    if types.is_signed_integer(data_type):
        return CellType.INTEGER
    if types.is_float32(data_type) or types.is_float64(data_type):
        return CellType.DOUBLE
    if types.is_string(data_type):
        return CellType.STRING
    return CellType.BINARY if types.is_binary(data_type) else None


def check_value_size(column: str, value: Value) -> None:
    """Refuse a value that is too long for a cell."""
    if isinstance(value, str | bytes) and len(value) * 4 > MAX_VALUE_BYTES:
        size = len(value.encode() if isinstance(value, str) else value)
        if size > MAX_VALUE_BYTES:
            raise refused(
                f"The length of attribute column: '{column}' exceeds the MaxLength:{MAX_VALUE_BYTES} "
                f"with CurrentLength:{size}."
            )


@dataclass(frozen=True)
class Placed:
    """Where the cells of one name and type are.

    Attributes:
        name: the column's name on the wire.
        type: the cells' type on the wire.
        column: the name of the table's column.
        index: its place among the table's columns, which never changes.
    """

    name: str
    type: CellType
    column: str
    index: int


class Layout:
    """How cells lie in the columns of a table with a given schema.

    Attributes:
        schema: the table's.
        placed: all attributes that can be sent, in the order of their names on the wire.
        of_name: name on the wire → its columns.
        of_cell: (name, type) → its column.
        names: names on the wire of all columns, those of the key too.
        timed: cells have timestamps of their own.
        versioned: cells may have several versions.
    """

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.timed = TIMESTAMP in schema.names
        self.versioned = VERSIONS in schema.names
        placed = []
        self._unsendable: dict[str, pa.DataType] = {}
        for index, column in enumerate(schema.columns):
            if column.name in schema.primary_key or column.name.startswith(":"):
                continue
            kind = type_of_column(column.type)
            if kind is None:
                self._unsendable[column.name] = column.type
            else:
                placed.append(Placed(_wire_name(column.name), kind, column.name, index))
        self.placed = tuple(sorted(placed, key=lambda each: (each.name, each.index)))
        self.of_name: dict[str, tuple[Placed, ...]] = {}
        for each in self.placed:
            self.of_name[each.name] = (*self.of_name.get(each.name, ()), each)
        self.of_cell = {(each.name, each.type): each for each in self.placed}
        self.names = frozenset((*schema.primary_key, *self.of_name))

    def place(self, name: str, kind: CellType) -> Placed:
        """Return where the cells of a name and type are.

        Raises:
            SchemaError: the table has no column for them; see `missing`.
        """
        found = self.of_cell.get((name, kind))
        if found is None:
            raise SchemaError("the table has no column for a cell", received=f"{name!r} with a value of type {kind}")
        return found

    def missing(self, cells: Iterable[tuple[str, CellType]]) -> dict[str, pa.DataType]:
        """Return the columns to be added so that these cells have a place: name → type."""
        taken = set(self.schema.names)
        added: dict[str, pa.DataType] = {}
        for name, kind in dict.fromkeys(cells):
            if (name, kind) not in self.of_cell:
                column = f"{name}:{kind}" if name in taken or name in added else name
                added[column] = ARROW_TYPES[kind]
        return added

    def check_sendable(self) -> None:
        """Raise `UnsupportedError` if the table has a column that Tablestore has no type for."""
        for name, data_type in self._unsendable.items():
            raise UnsupportedError(
                f"column {name!r} cannot be given to Tablestore's clients",
                received=type_name(data_type),
                valid="long, int, short, byte, double, float, boolean, string, binary",
                remedy="name the columns to get",
            )


def is_holdable(name: str) -> bool:
    """Tell whether a table can have columns for the cells of a name; a colon separates a name from a type."""
    return ":" not in name and is_attribute_name(name)


def _wire_name(column: str) -> str:
    name, colon, kind = column.rpartition(":")
    return name if colon and kind in CellType.__members__ else column


@functools.lru_cache(maxsize=1024)
def layout_of(schema: TableSchema) -> Layout:
    """Return the layout of a table with this schema."""
    return Layout(schema)


# -- timestamps -----------------------------------------------------------------------------------------


def cell_timestamps(rows: pa.RecordBatch, layout: Layout, now: int) -> dict[str, Numbers]:
    """Return the timestamps (ms) of all cells.

    Args:
        rows: with the columns `TIMESTAMP` and `TIMESTAMPS`, if the table has them.
        layout: the table's.
        now: the timestamp of cells that have none.

    Returns:
        Name of the table's column → int64 array with an entry for each row, whether it has that cell or not.
    """
    if not layout.timed:
        same = np.full(rows.num_rows, now, np.int64)
        return {each.column: same for each in layout.placed}
    base: Numbers = rows.column(TIMESTAMP).fill_null(now).to_numpy()
    result = {each.column: base for each in layout.placed}
    own = rows.column(TIMESTAMPS)
    if own.null_count == len(own):
        return result
    filled = own.fill_null(b"")
    offsets = np.frombuffer(filled.buffers()[1], np.int32)[filled.offset : filled.offset + len(filled) + 1]
    entries = np.frombuffer(filled.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].view(_ENTRY)
    row = np.repeat(np.arange(len(filled)), np.diff(offsets) // _ENTRY.itemsize)
    columns = {each.index: each.column for each in layout.placed}
    for index in np.unique(entries["column"]).tolist():
        chosen = entries["column"] == index
        timestamps = base.copy()
        timestamps[row[chosen]] = entries["timestamp"][chosen]
        result[columns[index]] = timestamps
    return result


def pack_timestamps_of(kept: Mapping[int, tuple[Mask, Numbers]], now: int, count: int) -> pa.BinaryArray:
    """Return the values of `TIMESTAMPS` for ``count`` rows that are written now (ms); empty ones where none is needed.

    Args:
        kept: column index → which rows keep such a cell as it was, and the timestamps of the column's cells.
    """
    chosen = {index: np.flatnonzero(mask & (timestamps != now)) for index, (mask, timestamps) in kept.items()}
    row = np.concatenate([np.zeros(0, np.int64), *chosen.values()])
    entries = np.empty(len(row), _ENTRY)
    entries["column"] = np.repeat(np.array(list(chosen), np.uint32), [len(rows) for rows in chosen.values()])
    parts = [kept[index][1][rows] for index, rows in chosen.items()]
    entries["timestamp"] = np.concatenate([np.zeros(0, np.int64), *parts])
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(row, minlength=count) * _ENTRY.itemsize, out=offsets[1:])
    ordered = entries[np.argsort(row, kind="stable")]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(ordered.tobytes())])


def pack_timestamps(timestamps: Mapping[int, int]) -> bytes | None:
    """Return the value of `TIMESTAMPS` for the cells whose timestamp is not the row's: column index → ms."""
    if not timestamps:
        return None
    return np.array(list(timestamps.items()), _ENTRY).tobytes()


# -- rows one by one --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """The value of a cell of a row that is there, and its timestamp (ms)."""

    value: Value
    timestamp: int


@dataclass(frozen=True)
class RowState:
    """A row that is there, by name on the wire.

    Attributes:
        cells: the newest version of each cell, those that have expired too.
        written: when the row was last written (ms).
        older: the older versions of cells, the newest first.
    """

    cells: Mapping[str, Held]
    written: int
    older: Mapping[str, Sequence[Held]] = field(default_factory=dict)

    def visible(self, expired_before: int) -> dict[str, Held] | None:
        """Return the cells that have not expired; None if the whole row has."""
        cells = {name: held for name, held in self.cells.items() if held.timestamp >= expired_before}
        return cells if cells or self.written >= expired_before else None

    def versions(self, expired_before: int) -> dict[str, list[Held]]:
        """Return the versions of each cell that have not expired, the newest first."""
        return {
            name: [newest, *(held for held in self.older.get(name, ()) if held.timestamp >= expired_before)]
            for name, newest in self.cells.items()
            if newest.timestamp >= expired_before
        }


def pack_cells(cells: Sequence[Cell]) -> bytes | None:
    """Return the value of `VERSIONS` or `CHANGE` for cells."""
    return encode_row(Row((), tuple(cells))) if cells else None


def unpack_cells(packed: bytes) -> tuple[Cell, ...]:
    """Return the cells of a value of `VERSIONS` or `CHANGE`."""
    return decode_row(packed).cells


def states_of(rows: pa.RecordBatch, present: Sequence[bool], layout: Layout, now: int) -> list[RowState | None]:
    """Return rows one by one, None for one that is not there.

    Args:
        rows: all columns of the table.
        present: which rows are there.
        now: see `cell_timestamps`.
    """
    timestamps = cell_timestamps(rows, layout, now)
    written = rows.column(TIMESTAMP).fill_null(now).to_pylist() if layout.timed else [now] * rows.num_rows
    cells: list[dict[str, Held]] = [{} for _ in present]
    for each in layout.placed:
        values = rows.column(each.column)
        if values.null_count == len(values):
            continue
        for row, value, timestamp in zip(cells, values.to_pylist(), timestamps[each.column].tolist(), strict=True):
            if value is not None:
                row[each.name] = Held(value, timestamp)
    older: list[dict[str, list[Held]]] = [{} for _ in present]
    for versions, packed in zip(older, rows.column(VERSIONS).to_pylist() if layout.versioned else (), strict=False):
        for cell in () if packed is None else unpack_cells(packed):
            assert cell.timestamp is not None
            versions.setdefault(cell.name, []).append(Held(cell.value, cell.timestamp))
    return [
        RowState(row, at, versions) if there else None
        for row, at, versions, there in zip(cells, written, older, present, strict=True)
    ]


def whole_row(
    cells: Mapping[str, Held], layout: Layout, now: int, older: Mapping[str, Sequence[Held]] | None = None
) -> dict[str, Any]:
    """Return the columns that a row with these cells, written now (ms), has besides its key.

    Args:
        older: the older versions of the cells, the newest first. Only a layout that is versioned has a place for them.

    Raises:
        SchemaError: the table has no column for one of them.
    """
    row: dict[str, Any] = {}
    own: dict[int, int] = {}
    for name, cell in cells.items():
        kind = cell_type(cell.value)
        assert kind is not None
        place = layout.place(name, kind)
        row[place.column] = cell.value
        if cell.timestamp != now:
            own[place.index] = cell.timestamp
    if layout.timed:
        row[TIMESTAMP] = now
        row[TIMESTAMPS] = pack_timestamps(own)
    if layout.versioned:
        row[VERSIONS] = pack_cells(
            [Cell(name, held.value, None, held.timestamp) for name, each in (older or {}).items() for held in each]
        )
    return row
