"""The columns of queues: schema, system columns that the store fills, and data weights of rows. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.model.tables.schema import RowSchema, parse_columns
from headrace.model.types import type_name

TABLET_INDEX, ROW_INDEX = "$tablet_index", "$row_index"
TIMESTAMP, CUMULATIVE_DATA_WEIGHT = "$timestamp", "$cumulative_data_weight"
SEQUENCE_NUMBER = "$sequence_number"
# Columns of pages and pushes that are not columns of the queue.
_ADDRESS = (TABLET_INDEX, ROW_INDEX, SEQUENCE_NUMBER)
_SYSTEM_TYPES: Mapping[str, tuple[pa.DataType, ...]] = {
    TIMESTAMP: (pa.timestamp("us", tz="UTC"), pa.int64()),
    CUMULATIVE_DATA_WEIGHT: (pa.int64(),),
}


@dataclass(frozen=True)
class QueueSchema(RowSchema):
    """The columns of a queue, in order. The store fills the system columns among them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.written.columns:
            raise SchemaError("a queue needs a column besides system columns", received=list(self.names))
        for column in self.columns:
            if column.name in _ADDRESS:
                raise SchemaError(
                    f"a queue cannot have a column {column.name!r}: the name is reserved for addresses and pushes",
                    remedy="leave it out",
                )
            if column.name in _SYSTEM_TYPES and column.type not in _SYSTEM_TYPES[column.name]:
                raise SchemaError(
                    f"system column {column.name!r} has another type",
                    received=type_name(column.type),
                    valid=[type_name(valid) for valid in _SYSTEM_TYPES[column.name]],
                )

    @classmethod
    def of(cls, columns: Mapping[str, str | pa.DataType] | pa.Schema) -> QueueSchema:
        """Build a schema from ``{name: type name}`` or an Arrow schema."""
        return cls(parse_columns(columns))

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Empty, because rows of a queue have an address instead of a key."""
        return ()

    @property
    def written(self) -> RowSchema:
        """The columns without the system columns."""
        return RowSchema(tuple(column for column in self.columns if column.name not in _SYSTEM_TYPES))


def data_weights(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the data weight of each row, by the rules of YTsaurus' queues.

    The weight is 1 plus the weights of the values: 8 for a number or a time, 16 for a decimal, 1 for a boolean, the
    number of bytes of a text or binary, the sum of the parts of a composite value, 0 for null. A decimal(20,0) has the
    weight 8, because stores without unsigned integers use it for 64-bit integers.
    """
    return sum((_weights(column) for column in rows.columns), start=np.ones(rows.num_rows, dtype=np.int64))


_WEIGHT_OF_NUMBER, _WEIGHT_OF_DECIMAL = 8, 16
_UNSIGNED = pa.decimal128(20, 0)


def _weights(array: pa.Array) -> npt.NDArray[np.int64]:
    kind = array.type
    weights: npt.NDArray[np.int64]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        weights = pc.binary_length(array).fill_null(0).to_numpy().astype(np.int64)
    elif pa.types.is_struct(kind):
        parts = (_weights(part) for part in array.flatten())
        weights = sum(parts, start=np.zeros(len(array), dtype=np.int64))
    elif pa.types.is_map(kind):
        weights = _summed(_weights(array.keys) + _weights(array.items), array)
    elif pa.types.is_list(kind):
        weights = _summed(_weights(array.values), array)
    elif pa.types.is_boolean(kind):
        weights = np.ones(len(array), dtype=np.int64)
    elif pa.types.is_decimal(kind) and kind != _UNSIGNED:
        weights = np.full(len(array), _WEIGHT_OF_DECIMAL)
    else:
        weights = np.full(len(array), _WEIGHT_OF_NUMBER)
    if array.null_count:
        weights[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return weights


def _summed(parts: npt.NDArray[np.int64], array: pa.ListArray | pa.MapArray) -> npt.NDArray[np.int64]:
    """Return the sum of the elements' weights for each list."""
    offsets = array.offsets.to_numpy()
    sums = np.concatenate([[0], np.cumsum(parts)])
    return np.asarray(sums[offsets[1:]] - sums[offsets[:-1]], dtype=np.int64)
