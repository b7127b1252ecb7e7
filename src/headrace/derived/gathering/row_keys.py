"""Keys of rows, by which rows of one table find those of another: bytes that are equal whenever Spark's ``=`` is true.

They may be equal more often, because Spark evaluates the condition again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from headrace.derived.state.keys import group_keys, normalized, plain
from headrace.model.own_names import PREFIX
from headrace.rows.nested import one_array

ID = f"{PREFIX}id"
"""The column with the key of a row's primary key, by which a batch knows the row."""


def key_kind(data_type: pa.DataType) -> str | None:
    """Return the kind of a column's values: equal values of one kind have equal keys. None if it cannot be a key.

    Integers of all sizes are one kind, and decimals with the same number of digits after the point.
    """
    types = pa.types
    if types.is_integer(data_type):
        return "integer"
    if types.is_floating(data_type):
        return "double"
    if types.is_decimal(data_type):
        return f"decimal {data_type.scale}"
    if types.is_string(data_type) or types.is_large_string(data_type):
        return "string"
    if types.is_timestamp(data_type):
        return "timestamp_ntz" if data_type.tz is None else "timestamp"
    if types.is_binary(data_type) or types.is_boolean(data_type) or types.is_date(data_type):
        return str(data_type)
    return None


def row_keys(rows: pa.Table, columns: Sequence[str], *, nulls: bool = True) -> pa.BinaryArray:
    """Return the key of each row for some columns.

    Args:
        nulls: whether a null is a value; else rows with a null in one of the columns have no key.
    """
    found = [normalized(_common(plain(one_array(rows.column(name))))) for name in columns]
    keys = group_keys(found, rows.num_rows)
    if nulls:
        return keys
    return pc.if_else(reduce(pc.and_, map(pc.is_valid, found)), keys, pa.scalar(None, pa.binary()))


def row_bytes(rows: pa.Table) -> pa.BinaryArray:
    """Return a binary for each row, which is equal only if all values have the same bytes: 0.0 and -0.0 differ."""
    return group_keys([plain(one_array(column)) for column in rows.columns], rows.num_rows)


def _common(values: pa.Array) -> pa.Array:
    """Return values in the widest type of their kind."""
    types = pa.types
    if types.is_integer(values.type):
        return values.cast(pa.int64())
    if types.is_floating(values.type):
        return values.cast(pa.float64())
    if types.is_decimal(values.type):
        return values.cast(pa.decimal128(38, values.type.scale))
    return values
