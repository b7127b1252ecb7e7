"""Turning what callers hand in (Arrow, pandas, dicts) into rows of exactly a table's types.

A value is taken only if the column can hold it as it is. Wider integers, other units of time, large or
dictionary-encoded Arrow types and the like are converted when every value fits; a double is rounded to
a float column, as everywhere. Nothing else is rounded, cut or guessed: such a value is a `SchemaError` that
names the column and the row, counted from 0.

Timestamps without a time zone count as UTC; a date in a timestamp column is its midnight in UTC. In pandas, NaN
means "no value" in columns of every type (pandas has no other way to say it), so it becomes null; in Arrow and in
dicts NaN is a number and stays NaN.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.model import Column, TableSchema
from headrace.ports import Rows
from headrace.types import type_name

ColumnSet: TypeAlias = Literal["all", "given", "keys"]
_Values: TypeAlias = "pa.Array | Sequence[Any]"

_INTEGERS: tuple[type, ...] = (int, np.integer)
_FLOATS: tuple[type, ...] = (float, np.floating)


class _DoesNotFit(Exception):
    """The text says why values do not fit; where the cause is, is found out by the caller."""


def to_arrow(rows: Rows, schema: TableSchema, *, columns: ColumnSet) -> pa.Table:
    """Return rows with exactly the types of a table.

    Args:
        columns: ``all`` gives every column of the table, null where the rows leave an attribute out; ``given``
            gives the key and the attributes that the rows have; ``keys`` the key, ignoring all other columns.

    Returns:
        A table with the columns in the schema's order.

    Raises:
        SchemaError: an unknown column, no or null key, or a value that its column cannot hold.
    """
    given = _by_name(rows, schema, columns)
    unknown = [name for name in given if name not in schema.names]
    if unknown and columns != "keys":
        raise SchemaError(
            "the rows have a column that the table has not", received=repr(unknown[0]), valid=schema.names
        )
    for name in schema.primary_key:
        if name not in given:
            raise SchemaError(f"the rows have no key column {name!r}", received=list(given), valid=schema.primary_key)
    length = len(given[schema.primary_key[0]])
    wanted = [
        column
        for column in schema.columns
        if column.name in schema.primary_key or columns == "all" or (columns == "given" and column.name in given)
    ]
    arrays = [
        to_column(given[column.name], column) if column.name in given else _nulls(length, column.type)
        for column in wanted
    ]
    for column, array in zip(wanted, arrays, strict=True):
        if column.name in schema.primary_key and array.null_count:
            row = pc.index(array.is_null(), True).as_py()
            raise SchemaError(
                f"key column {column.name!r} is null in row {row}", remedy="every row needs its whole key"
            )
    fields = [schema.arrow.field(column.name) for column in wanted]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def to_column(values: pa.Array | pa.ChunkedArray | Sequence[Any], column: Column) -> pa.ChunkedArray:
    """Return values with exactly the type of a column, or raise `SchemaError` with the row that does not fit."""
    chunks: list[_Values] = list(values.chunks) if isinstance(values, pa.ChunkedArray) else [values]
    converted = []
    row = 0
    for chunk in chunks:
        convert = _from_arrow if isinstance(chunk, pa.Array) else _from_python
        try:
            converted.append(convert(chunk, column.type))
        except _DoesNotFit:
            bad, reason = _first_unfit(chunk, column.type, convert)
            raise SchemaError(
                f"column {column.name!r} cannot hold the value in row {row + bad} ({reason})",
                received=_shown(chunk[bad]),
                valid=type_name(column.type),
            ) from None
        row += len(chunk)
    return pa.chunked_array(converted, type=column.type)


def _by_name(
    rows: Rows, schema: TableSchema, columns: ColumnSet
) -> Mapping[str, pa.Array | pa.ChunkedArray | Sequence[Any]]:
    if isinstance(rows, pa.Table | pa.RecordBatch):
        repeated = {name for name in rows.column_names if rows.column_names.count(name) > 1}
        if repeated:
            raise SchemaError("the rows have a column twice", received=", ".join(sorted(repeated)))
        return dict(zip(rows.column_names, rows.columns, strict=True))
    if isinstance(rows, Mapping):
        rows = [rows]
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        return _from_dicts(rows, schema, columns)
    if type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
        return _from_pandas(rows, schema)
    raise SchemaError(
        "these are not rows", received=type(rows).__name__, valid="Arrow, pandas, a list of dicts, or one dict"
    )


def _from_dicts(rows: Sequence[Any], schema: TableSchema, columns: ColumnSet) -> Mapping[str, Sequence[Any]]:
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaError(f"row {index} is not a dict", received=type(row).__name__)
    if not rows:
        return {name: [] for name in schema.primary_key}
    names = dict.fromkeys(name for row in rows for name in row)
    if columns == "given":
        for index, row in enumerate(rows):
            if len(row) != len(names):
                missing = next(name for name in names if name not in row)
                raise SchemaError(
                    f"row {index} has no column {missing!r} and other rows have it",
                    remedy="write rows that set different columns with one call each",
                )
    for name in schema.primary_key:
        for index, row in enumerate(rows):
            if name not in row:
                raise SchemaError(f"row {index} has no key column {name!r}", received=list(row))
    return {name: [row.get(name) for row in rows] for name in names}


def _from_pandas(frame: Any, schema: TableSchema) -> Mapping[str, pa.Array | Sequence[Any]]:
    result: dict[str, pa.Array | Sequence[Any]] = {}
    for position, name in enumerate(frame.columns):
        if name in result:
            raise SchemaError("the rows have a column twice", received=repr(name))
        series = frame.iloc[:, position]
        if name in schema.names and series.dtype == object:
            # Python objects keep what an inferred Arrow type would have lost, such as the time of a datetime.
            result[name] = series.astype(object).where(series.notna(), None).tolist()
        elif name in schema.names:
            array = pa.array(series, from_pandas=True)
            result[name] = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        else:
            result[name] = ()
    return result


def _first_unfit(
    values: _Values, target: pa.DataType, convert: Callable[[Any, pa.DataType], pa.Array]
) -> tuple[int, str]:
    """Return the index of the first value that does not fit, and why; bisects, as a prefix fits or does not."""
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            convert(values[low : middle + 1], target)
        except _DoesNotFit:
            high = middle
        else:
            low = middle + 1
    try:
        convert(values[low : low + 1], target)
    except _DoesNotFit as reason:
        return low, str(reason)
    return low, "the values of this column have types that do not go together"


def _shown(value: Any) -> str | None:
    if isinstance(value, pa.Scalar):
        try:
            value = value.as_py()
        except (ValueError, OverflowError):
            # Python has no such value: a text that is not UTF-8, a date out of its calendar.
            return None
    text = ascii(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def _nulls(length: int, data_type: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(length, data_type)])


# -- Arrow ----------------------------------------------------------------------------------------------

_WRONG_TYPE = "wrong type"
_OUT_OF_RANGE = "out of range, or more digits than the column keeps"
_INVALID_UTF8 = "not valid UTF-8"


def _from_arrow(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not _goes_into(array.type, target):
        if array.null_count == len(array):
            return pa.nulls(len(array), target)
        raise _DoesNotFit(f"wrong type {array.type}")
    if pa.types.is_string(target):
        _check_utf8(array)
    if array.type == target:
        return array
    try:
        if pa.types.is_decimal(target):
            return _to_decimal(array, target)
        converted = array.cast(target)
    except pa.ArrowInvalid:
        raise _DoesNotFit(_OUT_OF_RANGE) from None
    if pa.types.is_floating(array.type) and pa.types.is_floating(target):
        _check_finite(array, converted)
    return converted


def _goes_into(source: pa.DataType, target: pa.DataType) -> bool:
    types = pa.types
    if types.is_integer(target):
        return bool(types.is_integer(source) or types.is_floating(source))
    if types.is_floating(target):
        return bool(types.is_integer(source) or types.is_floating(source))
    if types.is_decimal(target):
        return bool(types.is_integer(source) or types.is_decimal(source))
    if types.is_string(target):
        return bool(types.is_string(source) or types.is_large_string(source) or types.is_string_view(source))
    if types.is_binary(target):
        return bool(
            types.is_binary(source)
            or types.is_large_binary(source)
            or types.is_fixed_size_binary(source)
            or types.is_binary_view(source)
        )
    if types.is_timestamp(target):
        return bool(types.is_timestamp(source) or types.is_date(source))
    if types.is_date(target):
        return bool(types.is_date(source))
    return bool(source == target)


def _check_utf8(array: pa.Array) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise _DoesNotFit(_INVALID_UTF8) from None


def _check_finite(before: pa.Array, after: pa.Array) -> None:
    overflown = pc.and_(pc.is_finite(before), pc.invert(pc.is_finite(after)))
    if pc.any(overflown, min_count=0).as_py():
        raise _DoesNotFit(_OUT_OF_RANGE)


def _to_decimal(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(20, 0))
    # By way of 256 bits: Arrow's 128-bit rescaling overflows silently.
    return array.cast(pa.decimal256(76, target.scale)).cast(target)


# -- Python values --------------------------------------------------------------------------------------


def _from_python(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    kinds = set(map(type, values))
    # pandas' NaT and NA: as good as None, wherever the values come from.
    if absent := {kind for kind in kinds if kind.__name__ in ("NaTType", "NAType")}:
        values = [None if type(value) in absent else value for value in values]
    kinds -= {type(None), *absent}
    values = _prepared(values, kinds, target)
    try:
        array = pa.array(values, target)
    except (pa.ArrowException, UnicodeError, OverflowError, ValueError, TypeError) as error:
        raise _DoesNotFit(_INVALID_UTF8 if isinstance(error, UnicodeError) else _OUT_OF_RANGE) from None
    if pa.types.is_float32(target):
        _check_finite(pa.array(values, pa.float64()), array)
    return array


def _prepared(values: Sequence[Any], kinds: set[type], target: pa.DataType) -> Sequence[Any]:
    """Return the values as something that `pa.array` converts without loss, or an error."""
    types = pa.types
    if types.is_integer(target):
        _only(kinds, *_INTEGERS, *_FLOATS)
        if any(issubclass(kind, _FLOATS) for kind in kinds):
            return [_integral(value) for value in values]
    elif types.is_floating(target):
        _only(kinds, *_INTEGERS, *_FLOATS)
    elif types.is_boolean(target):
        _only(kinds, bool, np.bool_)
    elif types.is_string(target):
        _only(kinds, str)
    elif types.is_binary(target):
        _only(kinds, bytes, bytearray, memoryview)
    elif types.is_decimal(target):
        _only(kinds, decimal.Decimal, *_INTEGERS)
    elif types.is_date(target):
        _only(kinds, datetime.date)
        if any(issubclass(kind, datetime.datetime) for kind in kinds):
            raise _DoesNotFit(_WRONG_TYPE)
    else:
        _only(kinds, datetime.date)
        if any(getattr(value, "nanosecond", 0) for value in values):
            raise _DoesNotFit(_OUT_OF_RANGE)
        if not all(issubclass(kind, datetime.datetime) for kind in kinds):
            return [_midnight(value) for value in values]
    return values


def _only(kinds: set[type], *allowed: type) -> None:
    for kind in kinds:
        if not issubclass(kind, allowed) or (issubclass(kind, bool) and bool not in allowed):
            raise _DoesNotFit(_WRONG_TYPE)


def _integral(value: Any) -> Any:
    if value is None or isinstance(value, _INTEGERS):
        return value
    if not float(value).is_integer():
        raise _DoesNotFit(_OUT_OF_RANGE)
    return int(value)


def _midnight(value: Any) -> Any:
    if value is None or isinstance(value, datetime.datetime):
        return value
    return datetime.datetime(value.year, value.month, value.day, tzinfo=datetime.UTC)
