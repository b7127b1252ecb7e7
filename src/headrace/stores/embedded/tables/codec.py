"""The format of rows in SQLite: one packed value ``f`` for all columns of fixed width, and native texts and binaries.

``f`` holds one slot for each column of the table, in the order in which the columns were created:

* a column of fixed width: a presence byte (1, or 0 for null), then the value, big-endian and transformed so that
  comparing bytes compares values (null slots are all zeros);
* a string or binary column: a presence byte, then the length in bytes as a big-endian u32. The text itself is a native
  SQLite column, ``k<i>`` in the key or ``v<i>`` among the attributes;
* a composite column: as a binary column of the bytes that `headrace.rows.packing` packs its values into.

A new column adds its slot at the end. An older ``f`` is then a prefix, and padding with zeros makes the new columns
null. Keys of fixed width are both in ``f`` and in their own column. So a page of rows is one concatenated ``f`` and one
concatenated text for each string column, which numpy cuts without a loop over rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.model.tables.schema import TableSchema
from headrace.rows.byte_order import Bytes, bytes_of, data_of_ordered, ordered_bytes
from headrace.rows.packing import fixed_width, is_text_or_bytes, pack, unpack
from headrace.stores.embedded.tables.keys import stored_values

PRESENCE = 1
"""Width of the presence byte."""
_LENGTH = 4
# SQLite holds at most 1 GB in a row.
MAX_ROW_BYTES = 900 << 20


def is_variable(data_type: pa.DataType) -> bool:
    """Return whether a type has values of variable width, which are in a native SQLite column."""
    return is_text_or_bytes(data_type) or bool(pa.types.is_nested(data_type))


def value_width(data_type: pa.DataType) -> int:
    """Return the width of a value in its slot in bytes, without the presence byte."""
    return _LENGTH if is_variable(data_type) else fixed_width(data_type)


@dataclass(frozen=True)
class Slot:
    """The place of a column in ``f``: the offset of its presence byte, and the width of the value after it."""

    offset: int
    width: int


@dataclass(frozen=True)
class Encoded:
    """Rows for SQLite: one list for each native column and one of packed values; all have the same length."""

    keys: tuple[list[Any], ...]
    packed: list[bytes]
    values: tuple[list[Any], ...]


class RowCodec:
    """Packs and unpacks the rows of a table with the given columns.

    Attributes:
        key_types: the types of the key columns.
        native: the physical name (``k0``, ``v1``) of each column with a native SQLite column.
        slots: the place of each column in ``f``.
        row_width: length of ``f``.
    """

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.key_types = tuple(schema.column(name).type for name in schema.primary_key)
        self.native: dict[str, str] = {name: f"k{index}" for index, name in enumerate(schema.primary_key)}
        self.slots: dict[str, Slot] = {}
        offset = 0
        for column in schema.columns:
            self.slots[column.name] = Slot(offset, value_width(column.type))
            offset += PRESENCE + value_width(column.type)
        self.row_width = offset
        self.variable_attributes = tuple(c.name for c in schema.attributes if is_variable(c.type))
        self.native.update({name: f"v{index}" for index, name in enumerate(self.variable_attributes)})
        self._composite = {c.name for c in schema.attributes if pa.types.is_nested(c.type)}

    def blobs(self, columns: Sequence[str]) -> list[str]:
        """Return the physical names of the native columns that `decode` needs for some columns."""
        return [self.native[name] for name in columns if is_variable(self.schema.column(name).type)]

    # -- encoding ---------------------------------------------------------------------------------------

    def encode(self, rows: pa.RecordBatch) -> Encoded:
        """Encode rows that have all columns of the table.

        Raises:
            SchemaError: a row is larger than SQLite's limit.
        """
        rows = self.stored(rows)
        return Encoded(
            keys=self.encode_keys(rows),
            packed=self.pack(rows).view(f"V{self.row_width}").ravel().tolist(),
            values=tuple(_python_values(rows.column(name)) for name in self.variable_attributes),
        )

    def encode_keys(self, rows: pa.RecordBatch) -> tuple[list[Any], ...]:
        """Return the key columns as lists of SQLite's values, in key order."""
        return tuple(stored_values(rows.column(name)) for name in self.schema.primary_key)

    def stored(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with packed composite values; the rows have all columns of the table."""
        if not self._composite:
            return rows
        names = rows.schema.names
        arrays = [pack(rows.column(name)) if name in self._composite else rows.column(name) for name in names]
        return pa.RecordBatch.from_arrays(arrays, names)

    def pack(self, rows: pa.RecordBatch) -> Bytes:
        """Return the ``f`` of `stored` rows as a matrix of bytes. Equal values of fixed width have equal bytes."""
        packed = np.zeros((rows.num_rows, self.row_width), dtype=np.uint8)
        total = np.zeros(rows.num_rows, dtype=np.int64)
        for column in self.schema.columns:
            array = rows.column(column.name)
            slot = self.slots[column.name]
            start = slot.offset + PRESENCE
            if is_variable(column.type):
                lengths = pc.binary_length(array).fill_null(0).to_numpy()
                total += lengths
                values = bytes_of(lengths.astype(">u4"))
            else:
                values = ordered_bytes(array)
            packed[:, start : start + slot.width] = values
            if array.null_count:
                present = array.is_valid().to_numpy(zero_copy_only=False)
                packed[:, slot.offset] = present
                packed[~present, start : start + slot.width] = 0
            else:
                packed[:, slot.offset] = 1
        if total.max(initial=0) > MAX_ROW_BYTES:
            raise SchemaError(
                "a row is too large", received=f"{int(total.max())} bytes", valid=f"at most {MAX_ROW_BYTES} bytes"
            )
        return packed

    # -- decoding ---------------------------------------------------------------------------------------

    def decode(self, packed: bytes, blobs: Mapping[str, bytes], columns: Sequence[str]) -> pa.RecordBatch:
        """Decode rows from their concatenated parts.

        Args:
            packed: the ``f`` of all rows, each padded to `row_width`.
            blobs: physical name → the concatenated bytes of a native column, for all of `blobs`.
            columns: the columns to decode, in the order of the result.
        """
        schema = pa.schema([self.schema.arrow.field(name) for name in columns])
        if not packed:
            return pa.RecordBatch.from_pylist([], schema=schema)
        count = len(packed) // self.row_width
        arrays = []
        for name in columns:
            data_type = self.schema.column(name).type
            slot = self.slots[name]
            presence = self._view(packed, count, slot.offset, "u1")
            validity = None if presence.all() else pa.py_buffer(np.packbits(presence, bitorder="little"))
            start = slot.offset + PRESENCE
            if is_variable(data_type):
                offsets = np.zeros(count + 1, dtype=np.int32)
                np.cumsum(self._view(packed, count, start, ">u4"), out=offsets[1:])
                buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(blobs[self.native[name]])]
                if name in self._composite:
                    arrays.append(unpack(pa.Array.from_buffers(pa.binary(), count, buffers), data_type))
                    continue
            else:
                values = np.ndarray((count, slot.width), np.uint8, packed, start, (self.row_width, 1))
                buffers = [validity, pa.py_buffer(data_of_ordered(values, data_type))]
            arrays.append(pa.Array.from_buffers(data_type, count, buffers))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _view(self, packed: bytes, count: int, offset: int, kind: str) -> npt.NDArray[Any]:
        """Return a view of the numbers at one offset of every row."""
        return np.ndarray((count,), np.dtype(kind), packed, offset, (self.row_width,))


def _python_values(array: pa.Array) -> list[Any]:
    # numpy is several times faster than Array.to_pylist.
    values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return values
