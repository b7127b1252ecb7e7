"""The layout of Tablestore's rows in tables of typed columns.

In Tablestore, a cell has a type and a column has none. So the table has a column for each name and type of the cells
written so far. The first type of a name gets the name, another type gets ``name:TYPE``. In a row, at most one of the
columns of a name is not null. Names with a colon are therefore refused, although Tablestore accepts them.

Cells have timestamps. ``:timestamp`` is the time of the last write to the row (ms). It is the timestamp of all its
cells except those in ``:timestamps``. Tables that headrace has created have neither column; the timestamp of their
cells is the current time.

A table that keeps several versions of a cell has two more columns. The column of a cell has its newest version.
``:versions`` has the older versions of all cells of the row. ``:change`` has the cells of the row's last update as the
client sent them, because the columns do not show which versions the update set or deleted.
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

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.tables.schema import Column, TableSchema
from headrace.model.types import type_name
from headrace_tablestore.endpoint.errors import refused
from headrace_tablestore.wire.limits import MAX_VALUE_BYTES, is_attribute_name
from headrace_tablestore.wire.plainbuffer.rows import decode_row, encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, Row, Value

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
    """The types of the values of cells."""

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
    """Return the type of a value; None for null and markers, which are not values of cells."""
    return _OF_VALUE.get(type(value))


def type_of_column(data_type: pa.DataType) -> CellType | None:
    """Return the type of an Arrow column's cells on the wire; None if Tablestore has no such type."""
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
    """Raise `ServiceError` if a value is too long for a cell."""
    if isinstance(value, str | bytes) and len(value) * 4 > MAX_VALUE_BYTES:
        size = len(value.encode() if isinstance(value, str) else value)
        if size > MAX_VALUE_BYTES:
            raise refused(
                f"The length of attribute column: '{column}' exceeds the MaxLength:{MAX_VALUE_BYTES} "
                f"with CurrentLength:{size}."
            )


def is_valid(array: pa.Array) -> Mask:
    """Return which values of an array are not null."""
    return as_mask(array.is_valid())


def as_mask(flags: pa.BooleanArray) -> Mask:
    """Return an Arrow array of booleans without nulls as a NumPy array."""
    result: Mask = flags.to_numpy(zero_copy_only=False)
    return result


def any_valid(arrays: Iterable[pa.Array], count: int) -> Mask:
    """Return which of ``count`` rows have a value that is not null in one of the arrays."""
    result = np.zeros(count, np.bool_)
    for array in arrays:
        result |= is_valid(array)
    return result


@functools.lru_cache(maxsize=256)
def wire_schema(names: tuple[str, ...], types: tuple[pa.DataType, ...], key_columns: int) -> TableSchema:
    """Return the schema of rows to encode. The first ``key_columns`` columns are the key."""
    columns = tuple(Column(name, data_type) for name, data_type in zip(names, types, strict=True))
    return TableSchema(columns, names[:key_columns])


@dataclass(frozen=True)
class CellColumn:
    """The column of the table with the cells of one name and type.

    Attributes:
        name: the name of the cells on the wire.
        type: the type of the cells on the wire.
        column: the name of the table's column.
        index: the index of the table's column, which never changes.
    """

    name: str
    type: CellType
    column: str
    index: int


class Layout:
    """The columns of the cells of a table.

    Attributes:
        schema: the schema of the table.
        cell_columns: the columns of all attributes that have a wire type, in the order of their wire names.
        of_name: the columns by wire name.
        of_cell: the column by wire name and type.
        names: the wire names of all columns, including the key.
        timed: whether cells have timestamps.
        versioned: whether cells have several versions.
    """

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.timed = TIMESTAMP in schema.names
        self.versioned = VERSIONS in schema.names
        columns = []
        self._without_wire_type: dict[str, pa.DataType] = {}
        for index, column in enumerate(schema.columns):
            if column.name in schema.primary_key or column.name.startswith(":"):
                continue
            kind = type_of_column(column.type)
            if kind is None:
                self._without_wire_type[column.name] = column.type
            else:
                columns.append(CellColumn(_wire_name(column.name), kind, column.name, index))
        self.cell_columns = tuple(sorted(columns, key=lambda each: (each.name, each.index)))
        self.of_name: dict[str, tuple[CellColumn, ...]] = {}
        for each in self.cell_columns:
            self.of_name[each.name] = (*self.of_name.get(each.name, ()), each)
        self.of_cell = {(each.name, each.type): each for each in self.cell_columns}
        self.names = frozenset((*schema.primary_key, *self.of_name))

    def cell_column(self, name: str, kind: CellType) -> CellColumn:
        """Return the column of the cells of a name and type.

        Raises:
            SchemaError: the table has no such column; see `missing`.
        """
        found = self.of_cell.get((name, kind))
        if found is None:
            raise SchemaError("the table has no column for a cell", received=f"{name!r} with a value of type {kind}")
        return found

    def missing(self, cells: Iterable[tuple[str, CellType]]) -> dict[str, pa.DataType]:
        """Return the types of the columns to add for these cells, by column name."""
        taken = set(self.schema.names)
        added: dict[str, pa.DataType] = {}
        for name, kind in dict.fromkeys(cells):
            if (name, kind) not in self.of_cell:
                column = f"{name}:{kind}" if name in taken or name in added else name
                added[column] = ARROW_TYPES[kind]
        return added

    def check_wire_types(self) -> None:
        """Raise `UnsupportedError` if the table has a column without a wire type."""
        for name, data_type in self._without_wire_type.items():
            raise UnsupportedError(
                f"Tablestore has no type for column {name!r}",
                received=type_name(data_type),
                valid="long, int, short, byte, double, float, boolean, string, binary",
                remedy="name the columns to read",
            )


def is_valid_cell_name(name: str) -> bool:
    """Return whether a table can have columns for cells of this name. A colon separates a name from a type."""
    return ":" not in name and is_attribute_name(name)


def _wire_name(column: str) -> str:
    name, colon, kind = column.rpartition(":")
    return name if colon and kind in CellType.__members__ else column


@functools.lru_cache(maxsize=1024)
def layout_of(schema: TableSchema) -> Layout:
    """Return the layout of a table with a schema."""
    return Layout(schema)


# -- timestamps -----------------------------------------------------------------------------------------


def cell_timestamps(rows: pa.RecordBatch, layout: Layout, now: int) -> dict[str, Numbers]:
    """Return the timestamps (ms) of all cells.

    Args:
        rows: rows with the columns `TIMESTAMP` and `TIMESTAMPS`, if the table has them.
        layout: the layout of the table.
        now: the timestamp of cells without one.

    Returns:
        By column of the table, an int64 array with an entry for each row, even if the row does not have the cell.
    """
    if not layout.timed:
        same = np.full(rows.num_rows, now, np.int64)
        return {each.column: same for each in layout.cell_columns}
    base: Numbers = rows.column(TIMESTAMP).fill_null(now).to_numpy()
    result = {each.column: base for each in layout.cell_columns}
    own = rows.column(TIMESTAMPS)
    if own.null_count == len(own):
        return result
    filled = own.fill_null(b"")
    offsets = np.frombuffer(filled.buffers()[1], np.int32)[filled.offset : filled.offset + len(filled) + 1]
    entries = np.frombuffer(filled.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].view(_ENTRY)
    row = np.repeat(np.arange(len(filled)), np.diff(offsets) // _ENTRY.itemsize)
    columns = {each.index: each.column for each in layout.cell_columns}
    for index in np.unique(entries["column"]).tolist():
        chosen = entries["column"] == index
        timestamps = base.copy()
        timestamps[row[chosen]] = entries["timestamp"][chosen]
        result[columns[index]] = timestamps
    return result


def pack_timestamps_of(kept: Mapping[int, tuple[Mask, Numbers]], now: int, count: int) -> pa.BinaryArray:
    """Return the values of `TIMESTAMPS` for ``count`` rows that are written ``now`` (ms). They may be empty.

    Args:
        kept: by column index, the rows that keep their cell, and the timestamps of the column's cells.
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
    """Return the value of `TIMESTAMPS` for the cells whose timestamp is not the row's, by column index (ms)."""
    if not timestamps:
        return None
    return np.array(list(timestamps.items()), _ENTRY).tobytes()


# -- rows one by one --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellVersion:
    """A version of a cell: its value and its timestamp (ms)."""

    value: Value
    timestamp: int

    def named(self, name: str) -> Cell:
        """Return the cell of a name with this version."""
        return Cell(name, self.value, None, self.timestamp)


@dataclass(frozen=True)
class RowState:
    """The cells of a row, by wire name.

    Attributes:
        cells: the newest version of each cell, including expired ones.
        written: the time of the last write to the row (ms).
        older: the older versions of cells, the newest first.
    """

    cells: Mapping[str, CellVersion]
    written: int
    older: Mapping[str, Sequence[CellVersion]] = field(default_factory=dict)

    def visible(self, expired_before: int) -> dict[str, CellVersion] | None:
        """Return the cells that have not expired; None if the whole row has expired."""
        cells = {name: version for name, version in self.cells.items() if version.timestamp >= expired_before}
        return cells if cells or self.written >= expired_before else None

    def versions(self, expired_before: int) -> dict[str, list[CellVersion]]:
        """Return the versions of each cell that have not expired, the newest first."""
        return {
            name: [newest, *(version for version in self.older.get(name, ()) if version.timestamp >= expired_before)]
            for name, newest in self.cells.items()
            if newest.timestamp >= expired_before
        }


def pack_cells(cells: Sequence[Cell]) -> bytes | None:
    """Return cells as a value of `VERSIONS` or `CHANGE`."""
    return encode_row(Row((), tuple(cells))) if cells else None


def unpack_cells(packed: bytes) -> tuple[Cell, ...]:
    """Return the cells of a value of `VERSIONS` or `CHANGE`."""
    return decode_row(packed).cells


def states_of(rows: pa.RecordBatch, present: Sequence[bool], layout: Layout, now: int) -> list[RowState | None]:
    """Return the states of rows; None for a row that does not exist.

    Args:
        rows: all columns of the table.
        present: whether each row exists.
        now: see `cell_timestamps`.
    """
    timestamps = cell_timestamps(rows, layout, now)
    written = rows.column(TIMESTAMP).fill_null(now).to_pylist() if layout.timed else [now] * rows.num_rows
    cells: list[dict[str, CellVersion]] = [{} for _ in present]
    for each in layout.cell_columns:
        values = rows.column(each.column)
        if values.null_count == len(values):
            continue
        for row, value, timestamp in zip(cells, values.to_pylist(), timestamps[each.column].tolist(), strict=True):
            if value is not None:
                row[each.name] = CellVersion(value, timestamp)
    older: list[dict[str, list[CellVersion]]] = [{} for _ in present]
    for versions, packed in zip(older, rows.column(VERSIONS).to_pylist() if layout.versioned else (), strict=False):
        for cell in () if packed is None else unpack_cells(packed):
            assert cell.timestamp is not None
            versions.setdefault(cell.name, []).append(CellVersion(cell.value, cell.timestamp))
    return [
        RowState(row, at, versions) if exists else None
        for row, at, versions, exists in zip(cells, written, older, present, strict=True)
    ]


def whole_row(
    cells: Mapping[str, CellVersion], layout: Layout, now: int, older: Mapping[str, Sequence[CellVersion]] | None = None
) -> dict[str, Any]:
    """Return the columns, without the key, of a row with these cells that is written ``now`` (ms).

    Args:
        older: the older versions of the cells, the newest first. Only a versioned layout stores them.

    Raises:
        SchemaError: the table has no column for a cell.
    """
    row: dict[str, Any] = {}
    own: dict[int, int] = {}
    for name, cell in cells.items():
        kind = cell_type(cell.value)
        assert kind is not None
        column = layout.cell_column(name, kind)
        row[column.column] = cell.value
        if cell.timestamp != now:
            own[column.index] = cell.timestamp
    if layout.timed:
        row[TIMESTAMP] = now
        row[TIMESTAMPS] = pack_timestamps(own)
    if layout.versioned:
        row[VERSIONS] = pack_cells([version.named(name) for name, each in (older or {}).items() for version in each])
    return row
