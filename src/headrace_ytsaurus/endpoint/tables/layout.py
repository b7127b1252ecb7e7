"""Conversion between rows of a sorted dynamic table and rows of a table of the embedded store.

If the embedded store supports the key columns (up to four strings, binaries or whole numbers), they are its key
columns. Any other key becomes one binary key column ``$key``, whose bytes have the sort order of the key. The key
columns are then attributes, so without the endpoint the table has one more column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.model.queues.values import partition_of_keys
from headrace.model.tables.conditions import Predicate
from headrace.model.tables.schema import MAX_KEY_COLUMNS, Column, TableSchema
from headrace.rows.byte_order import ordered_bytes
from headrace.support.cached import cached_property
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.types import YtColumn

PACKED_KEY = "$key"
MAX_KEY_BYTES = 256 << 10
"""The maximum length of a key. Inserts compare their keys with whole existing keys."""
_HASHES = 1 << 62


class SortedLayout:
    """The layout for a schema.

    Args:
        columns: all columns, key columns first.

    Raises:
        SchemaError: a column is computed, or the type of a key column is not supported.
    """

    def __init__(self, columns: Sequence[YtColumn]) -> None:
        self.columns = tuple(columns)
        self.keys = tuple(column for column in columns if column.sort_order is not None)
        for column in self.columns:
            if column.expression is not None:
                raise SchemaError(
                    f"column {column.name!r} is computed, which this endpoint does not support",
                    received=column.expression,
                    remedy="compute it before rows are inserted",
                )
        for column in self.keys:
            if column.sort_order != "ascending" or pa.types.is_nested(column.type) or column.yt in ("yson", "null"):
                raise SchemaError(
                    f"key column {column.name!r} has a type or order that this endpoint does not support",
                    received=f"{column.yt}, {column.sort_order}",
                    valid="ascending columns that are not composite",
                )

    @cached_property
    def packed(self) -> bool:
        """Whether the key is one binary column."""
        return len(self.keys) > MAX_KEY_COLUMNS or not all(_fits(column.type) for column in self.keys)

    @cached_property
    def stored(self) -> TableSchema:
        """The schema of the embedded table."""
        if self.packed:
            plain = [Column(column.name, column.type, nullable=not column.required) for column in self.columns]
            return TableSchema((Column(PACKED_KEY, pa.binary()), *plain), (PACKED_KEY,))
        names = tuple(column.name for column in self.keys)
        return TableSchema(
            tuple(
                Column(column.name, _key_type(column.type))
                if column.name in names
                else Column(column.name, column.type, nullable=not column.required)
                for column in self.columns
            ),
            names,
        )

    def to_stored(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows with the key and any other columns to rows of the embedded table.

        Raises:
            YtError: 307, a key or a required column is null; 1, a key is too long.
        """
        require_values(self.columns, rows)
        if self.packed:
            key = self._packed_key(rows)
            _check_lengths([key])
            return pa.RecordBatch.from_arrays([key, *rows.columns], names=[PACKED_KEY, *rows.schema.names])
        require_values(self.keys, rows, what="Key")
        _check_lengths([rows.column(column.name) for column in self.keys])
        names = {column.name for column in self.keys}
        arrays = [
            array.cast(_key_type(array.type)) if name in names else array
            for name, array in zip(rows.schema.names, rows.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, names=rows.schema.names)

    def from_stored(self, rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Return columns of rows of the embedded table in the types of the schema."""
        by_name = {column.name: column for column in self.columns}
        arrays = [rows.column(name).cast(by_name[name].type) for name in names]
        schema = pa.schema([pa.field(name, by_name[name].type) for name in names])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def hashes(self, stored: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return a hash of the key of each row of the embedded table."""
        return partition_of_keys(stored, self.stored.primary_key, _HASHES)

    def predicates(self, conditions: Sequence[Predicate]) -> list[Predicate]:
        """Return the conditions that a scan of the embedded table can evaluate."""
        if self.packed:
            return []
        types = {column.name: _key_type(column.type) for column in self.keys}
        conditions = [each for each in conditions if each.column in types]
        conditions = [_as_bytes(each) if pa.types.is_binary(types[each.column]) else each for each in conditions]
        return [each for each in conditions if _can_compare(types[each.column], each.value)]

    def _packed_key(self, rows: pa.RecordBatch) -> pa.Array:
        parts = [_sortable(rows.column(column.name)) for column in self.keys]
        return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def require_values(columns: Sequence[YtColumn], rows: pa.RecordBatch, *, what: str = "Required") -> None:
    """Raise an error if a column has a forbidden null.

    Args:
        columns: columns of the table. Columns that the rows do not have are ignored.
        what: "Required" checks the required columns, "Key" all of them.

    Raises:
        YtError: 307.
    """
    names = set(rows.schema.names)
    for column in columns:
        if column.name in names and (column.required or what == "Key") and rows.column(column.name).null_count:
            raise YtError(
                Code.SCHEMA_VIOLATION,
                f"{what} column {column.name!r} cannot have a null value",
                received=f"null in row {pc.index(rows.column(column.name).is_null(), True).as_py()}",
                valid=str(column.yt),
            )


def _check_lengths(key: Sequence[pa.Array]) -> None:
    """Raise an error if the total length of a key's strings is too large. The arrays have no nulls."""
    lengths = [pc.binary_length(array).cast(pa.int64()) for array in key if _is_text(array.type)]
    if lengths and len(lengths[0]):
        longest = max(np.sum([each.to_numpy(zero_copy_only=False) for each in lengths], axis=0))
        if longest > MAX_KEY_BYTES:
            raise YtError(
                Code.GENERIC,
                "A key of a dynamic table is too long",
                received=f"{longest} bytes",
                valid=f"at most {MAX_KEY_BYTES}",
            )


def _fits(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(data_type) or pa.types.is_string(data_type) or pa.types.is_binary(data_type))


def _key_type(data_type: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_integer(data_type) else data_type


def _can_compare(data_type: pa.DataType, value: Any) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    if pa.types.is_integer(data_type):
        return all(isinstance(each, int) and -(1 << 63) <= each < 1 << 63 for each in values)
    python_type = bytes if pa.types.is_binary(data_type) else str
    return _is_text(data_type) and all(isinstance(each, python_type) for each in values)


def _as_bytes(condition: Predicate) -> Predicate:
    """Return a condition with bytes in place of texts."""

    def plain(value: Any) -> Any:
        return value.encode() if isinstance(value, str) else value

    value = condition.value
    return replace(condition, value=tuple(map(plain, value)) if isinstance(value, tuple) else plain(value))


def _sortable(array: pa.Array) -> pa.Array:
    """Return values as bytes with the same sort order, null first. No result is a prefix of another."""
    if _is_text(array.type):
        # Zeros are escaped, so that the end of a text sorts before any continuation.
        escaped = pc.replace_substring(array.cast(pa.binary()), b"\x00", b"\x00\xff")
        ended = pc.binary_join_element_wise(
            pa.scalar(b"\x01", pa.binary()), escaped, pa.scalar(b"\x00\x00", pa.binary()), pa.scalar(b"", pa.binary())
        )
        return ended.fill_null(b"\x00")
    matrix = ordered_bytes(array)
    marked = np.ones((len(array), matrix.shape[1] + 1), dtype=np.uint8)
    marked[:, 1:] = matrix
    width = marked.shape[1]
    offsets = np.arange(len(array) + 1, dtype=np.int32) * width
    sortable = pa.Array.from_buffers(
        pa.binary(), len(array), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(marked))]
    )
    return pc.if_else(array.is_valid(), sortable, pa.scalar(b"\x00", pa.binary()))


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_binary(data_type))


def rows_of(values: Mapping[str, Sequence[Any]], columns: Sequence[YtColumn]) -> pa.RecordBatch:
    """Return rows from the Python values of each column."""
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    arrays = [pa.array(values[column.name], column.type) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
