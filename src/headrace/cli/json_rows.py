"""Rows with arrays, structs, maps and intervals as JSON lines, which Arrow's own reader does not take in full.

A struct and a map are objects, an array is an array, an interval is its length in seconds; the keys of a map's object
are texts that stand for its keys.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from headrace.tables.schema import Column, RowSchema

# That of a double is 308.
_LARGEST_EXPONENT = 400
_LINES_PER_BATCH = 10_000


class JsonRowError(ValueError):
    """A line is no JSON object, or a value in it does not fit its column."""


def needs_this_reader(schema: RowSchema) -> bool:
    """Tell whether rows have a type that Arrow's own reader does not take."""
    return any(pa.types.is_nested(column.type) or pa.types.is_duration(column.type) for column in schema.columns)


def read_nested_json_lines(file: BinaryIO, schema: RowSchema, *, first_line: int = 1) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns' own types; columns that no row of a batch has are left out.

    Raises:
        JsonRowError: with the number of the line, the name of the column and the value; ``first_line`` is the number
            of the first.
    """
    lines = ((number, line) for number, line in enumerate(file, start=first_line) if line.strip())
    while portion := list(itertools.islice(lines, _LINES_PER_BATCH)):
        rows = [_object(number, line, schema) for number, line in portion]
        present = {name for row in rows for name in row}
        columns = [column for column in schema.columns if column.name in present]
        numbers = [number for number, _ in portion]
        values = [_array(column, [row.get(column.name) for row in rows], numbers) for column in columns]
        yield pa.RecordBatch.from_arrays(values, [column.name for column in columns])


def _array(column: Column, values: list[Any], lines: list[int]) -> pa.Array:
    try:
        return pa.array(values, column.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        at, reason = next(_unfit(values, column.type), (0, error))
        value = json.dumps(values[at], default=str, ensure_ascii=False)
        raise JsonRowError(f"line {lines[at]}, column {column.name!r}, value {value}: {reason}") from None


def _unfit(values: list[Any], data_type: pa.DataType) -> Iterator[tuple[int, Exception]]:
    """Yield the places of the values that are not of a type, and why."""
    for place, value in enumerate(values):
        try:
            pa.array([value], data_type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            yield place, error


def _object(number: int, line: bytes, schema: RowSchema) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_float=decimal.Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise JsonRowError(f"line {number} is no JSON: {error}") from None
    if not isinstance(row, dict):
        raise JsonRowError(f"line {number} is no JSON object")
    converted: dict[str, Any] = {}
    for name, value in row.items():
        if name not in schema:
            raise JsonRowError(f"line {number}: no column {name!r}")
        try:
            converted[name] = _value(value, schema.column(name).type)
        except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
            shown = json.dumps(value, default=str, ensure_ascii=False)
            raise JsonRowError(f"line {number}, column {name!r}, value {shown}: {error}") from None
    return converted


def _value(value: Any, data_type: pa.DataType) -> Any:
    """Return what a JSON value stands for, as `pyarrow.array` takes it for a type."""
    if value is None:
        return None
    if pa.types.is_struct(data_type):
        known = {field.name: field.type for field in data_type}
        unknown = [name for name in _checked(value, dict) if name not in known]
        if unknown:
            raise ValueError(f"no field {unknown[0]!r}; fields: {', '.join(known)}")
        return {name: _value(item, known[name]) for name, item in value.items()}
    if pa.types.is_map(data_type):
        items = _checked(value, dict).items()
        return [(_key(key, data_type.key_type), _value(item, data_type.item_type)) for key, item in items]
    if pa.types.is_list(data_type):
        return [_value(item, data_type.value_type) for item in _checked(value, list)]
    return _scalar(value, data_type)


def _scalar(value: Any, data_type: pa.DataType) -> Any:
    if isinstance(value, decimal.Decimal):
        value = _bounded(value)
    if pa.types.is_floating(data_type):
        # The texts NaN, Infinity and -Infinity, too.
        return float(value)
    if pa.types.is_decimal(data_type):
        return _bounded(decimal.Decimal(str(value)))
    if pa.types.is_duration(data_type):
        return int(_bounded(decimal.Decimal(value)) * 1_000_000)
    if pa.types.is_binary(data_type):
        return base64.b64decode(_checked(value, str), validate=True)
    if pa.types.is_date(data_type):
        return datetime.date.fromisoformat(_checked(value, str))
    if pa.types.is_timestamp(data_type):
        return datetime.datetime.fromisoformat(_checked(value, str))
    return value


def _bounded(number: decimal.Decimal) -> decimal.Decimal:
    """Return a number, or raise `ValueError` if its digits would fill the memory."""
    if number.is_finite() and abs(number.adjusted()) > _LARGEST_EXPONENT:
        raise ValueError(f"a number with an exponent above {_LARGEST_EXPONENT}")
    return number


def _key(text: str, data_type: pa.DataType) -> Any:
    if pa.types.is_integer(data_type) or pa.types.is_boolean(data_type):
        return pa.scalar(text).cast(data_type).as_py()
    return _value(text, data_type)


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        wanted = "an object" if kind is dict else "an array" if kind is list else "a text"
        raise ValueError(f"{wanted} is needed, not {json.dumps(value, default=str)}")
    return value


def with_objects(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> list[Mapping[str, Any]]:
    """Return rows as `pyarrow.RecordBatch.to_pylist` gives them, with maps as mappings, too."""
    deep = [field for field in schema if _has_map(field.type)]
    return [{**row, **{field.name: _plain(row[field.name], field.type) for field in deep}} for row in rows]


def _has_map(data_type: pa.DataType) -> bool:
    return pa.types.is_map(data_type) or (
        pa.types.is_nested(data_type)
        and any(_has_map(data_type.field(index).type) for index in range(data_type.num_fields))
    )


def _plain(value: Any, data_type: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(data_type):
        return {key: _plain(item, data_type.item_type) for key, item in value}
    if pa.types.is_list(data_type):
        return [_plain(item, data_type.value_type) for item in value]
    if pa.types.is_struct(data_type):
        return {field.name: _plain(value[field.name], field.type) for field in data_type}
    return value
