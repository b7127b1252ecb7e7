"""JSON lines with arrays, structs, maps and intervals, which Arrow's own reader does not support completely.

A struct and a map are objects, an array is an array, and an interval is a number of seconds. The keys of a map are
written as texts.
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

from headrace.model.tables.schema import Column, RowSchema
from headrace.model.types import has_map

# Above the largest exponent of a double, 308.
_LARGEST_EXPONENT = 400
_LINES_PER_BATCH = 10_000


class JsonRowError(ValueError):
    """A line is not a JSON object, or a value does not fit its column."""


def needs_this_reader(schema: RowSchema) -> bool:
    """Return whether a column has a type that Arrow's own reader does not support."""
    return any(pa.types.is_nested(column.type) or pa.types.is_duration(column.type) for column in schema.columns)


def read_nested_json_lines(file: BinaryIO, schema: RowSchema, *, first_line: int = 1) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the types of the schema. A batch has only the columns that occur in its rows.

    Args:
        first_line: the number of the first line, for error messages.

    Raises:
        JsonRowError: with the number of the line, the name of the column and the value.
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
        at, reason = next(_conversion_errors(values, column.type), (0, error))
        value = json.dumps(values[at], default=str, ensure_ascii=False)
        raise JsonRowError(f"line {lines[at]}, column {column.name!r}, value {value}: {reason}") from None


def _conversion_errors(values: list[Any], data_type: pa.DataType) -> Iterator[tuple[int, Exception]]:
    """Yield the index of each value that cannot be converted to a type, and the error."""
    for index, value in enumerate(values):
        try:
            pa.array([value], data_type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            yield index, error


def _object(number: int, line: bytes, schema: RowSchema) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_float=decimal.Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise JsonRowError(f"line {number} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise JsonRowError(f"line {number} is not a JSON object")
    converted: dict[str, Any] = {}
    for name, value in row.items():
        if name not in schema:
            raise JsonRowError(f"line {number}: no column {name!r}")
        try:
            converted[name] = value_of(value, schema.column(name).type)
        except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
            shown = json.dumps(value, default=str, ensure_ascii=False)
            raise JsonRowError(f"line {number}, column {name!r}, value {shown}: {error}") from None
    return converted


def value_of(value: Any, data_type: pa.DataType) -> Any:
    """Return a JSON value in the form that `pyarrow.array` accepts for a type.

    Raises:
        ValueError, TypeError, ArithmeticError: the type does not have the value.
    """
    if value is None:
        return None
    if pa.types.is_struct(data_type):
        known = {field.name: field.type for field in data_type}
        unknown = [name for name in _checked(value, dict) if name not in known]
        if unknown:
            raise ValueError(f"no field {unknown[0]!r}; fields: {', '.join(known)}")
        return {name: value_of(item, known[name]) for name, item in value.items()}
    if pa.types.is_map(data_type):
        items = _checked(value, dict).items()
        return [(_key(key, data_type.key_type), value_of(item, data_type.item_type)) for key, item in items]
    if pa.types.is_list(data_type):
        return [value_of(item, data_type.value_type) for item in _checked(value, list)]
    return _scalar(value, data_type)


def _scalar(value: Any, data_type: pa.DataType) -> Any:
    if isinstance(value, decimal.Decimal):
        value = _bounded(value)
    if pa.types.is_floating(data_type):
        # Also reads the texts NaN, Infinity and -Infinity.
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
    """Return a number. Raises `ValueError` if its exponent is so large that its digits would exhaust the memory."""
    if number.is_finite() and abs(number.adjusted()) > _LARGEST_EXPONENT:
        raise ValueError(f"a number with an exponent above {_LARGEST_EXPONENT}")
    return number


def _key(text: str, data_type: pa.DataType) -> Any:
    if pa.types.is_integer(data_type) or pa.types.is_boolean(data_type):
        return pa.scalar(text).cast(data_type).as_py()
    return value_of(text, data_type)


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        wanted = "an object" if kind is dict else "an array" if kind is list else "a text"
        raise ValueError(f"expected {wanted}, not {json.dumps(value, default=str)}")
    return value


def with_objects(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> list[Mapping[str, Any]]:
    """Return rows of `pyarrow.RecordBatch.to_pylist` with maps, which are lists of pairs there, as mappings."""
    deep = [field for field in schema if has_map(field.type)]
    return [{**row, **{field.name: _plain(row[field.name], field.type) for field in deep}} for row in rows]


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
