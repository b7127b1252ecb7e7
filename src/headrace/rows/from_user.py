"""Users' rows as an Arrow table with the columns of a schema, and the errors for rows that do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError, shown
from headrace.model.tables.schema import Column, RowSchema, TableSchema
from headrace.model.types import type_name
from headrace.ports import Rows
from headrace.rows.arrow_values import from_arrow
from headrace.rows.conversion_errors import ConversionError
from headrace.rows.python_values import from_python

ColumnSet: TypeAlias = Literal["all", "given", "keys"]
_Values: TypeAlias = "pa.Array | Sequence[Any]"
_UserColumns: TypeAlias = "Mapping[str, pa.Array | pa.ChunkedArray | Sequence[Any]]"


def to_arrow(rows: Rows, schema: RowSchema, *, columns: ColumnSet) -> pa.Table:
    """Return rows with exactly the types of a table or queue.

    Args:
        columns: ``all`` returns all columns of the schema, missing attributes as null, except those that the store
            fills; ``given`` returns the key and the attributes of the rows; ``keys`` returns the key and ignores other
            columns.

    Returns:
        A table with the columns in the schema's order. With ``given``, NOT NULL attributes may be null, because null
        may mean an unchanged cell in an update; see `check_not_null`.

    Raises:
        SchemaError: a column is unknown, a key is missing or null, a column cannot represent a value, or a NOT NULL
            column is missing or null.
    """
    primary_key = _primary_key(schema)
    given, length = _by_name(rows, schema, columns)
    known = set(schema.names)
    unknown = [name for name in given if name not in known]
    if unknown and columns != "keys":
        raise SchemaError(
            f"the {'table' if primary_key else 'queue'} does not have a column of the rows",
            received=repr(unknown[0]) if isinstance(unknown[0], str) else shown(unknown[0]),
            valid=schema.names,
        )
    for name in primary_key:
        if name not in given:
            raise SchemaError(f"the rows have no key column {name!r}", received=list(given), valid=primary_key)
    wanted = [
        column
        for column in schema.columns
        if column.name in primary_key
        or (columns != "keys" and column.name in given)
        or (columns == "all" and not column.filled)
    ]
    arrays = [
        to_column(given[column.name], column) if column.name in given else _nulls(length, column.type)
        for column in wanted
    ]
    for column, array in zip(wanted, arrays, strict=True):
        if column.name in primary_key and array.null_count:
            row = pc.index(array.is_null(), True).as_py()
            raise SchemaError(
                f"key column {column.name!r} is null in row {row}", remedy="set all key columns in every row"
            )
    if columns == "all":
        for column, array in zip(wanted, arrays, strict=True):
            _check_column_not_null(column, array, given=column.name in given)
    fields = [
        pa.field(
            column.name,
            column.type,
            nullable=column.name not in primary_key and (column.nullable or columns != "all"),
        )
        for column in wanted
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def check_not_null(rows: pa.Table, schema: RowSchema) -> None:
    """Raise `SchemaError` if a NOT NULL column of converted rows has a null."""
    for name in rows.column_names:
        _check_column_not_null(schema.column(name), rows.column(name))


def check_sets(rows: pa.Table, schema: TableSchema) -> None:
    """Raise `SchemaError` if the converted rows of an update have no column besides the key."""
    if rows.num_columns == len(schema.primary_key):
        raise SchemaError(
            "an update needs a column to set besides the key",
            received=rows.column_names,
            valid=[column.name for column in schema.attributes],
        )


def to_column(values: pa.Array | pa.ChunkedArray | Sequence[Any], column: Column) -> pa.ChunkedArray:
    """Return values with exactly the type of a column; raise `SchemaError` with the first row that does not fit."""
    chunks: list[_Values] = list(values.chunks) if isinstance(values, pa.ChunkedArray) else [values]
    converted = []
    row = 0
    for chunk in chunks:
        convert = from_arrow if isinstance(chunk, pa.Array) else from_python
        try:
            converted.append(convert(chunk, column.type))
        except ConversionError:
            bad, reason, path = _first_error(chunk, column.type, convert)
            at = f" at {column.name}{path}" if path else ""
            raise SchemaError(
                f"column {column.name!r} cannot hold the value in row {row + bad}{at} ({reason})",
                received=_shown(chunk[bad]),
                valid=type_name(column.type),
            ) from None
        row += len(chunk)
    return pa.chunked_array(converted, type=column.type)


def _primary_key(schema: RowSchema) -> tuple[str, ...]:
    """Return the key columns of a table's schema; empty for other schemas."""
    if isinstance(schema, TableSchema) and not schema.appends:
        schema.check_keyed()
    key: tuple[str, ...] = getattr(schema, "primary_key", ())
    return key


def no_value(column: str) -> str:
    """Return the begin of the error of a row without a value in a NOT NULL column."""
    return f"column {column!r} is NOT NULL and has no value"


def _check_column_not_null(column: Column, values: pa.ChunkedArray, *, given: bool = True) -> None:
    if column.nullable or not values.null_count:
        return
    row = pc.index(values.is_null(), True).as_py()
    raise SchemaError(
        f"{no_value(column.name)} in row {row}",
        received="null" if given else "rows without the column",
        valid=type_name(column.type),
    )


def _by_name(rows: Rows, schema: RowSchema, columns: ColumnSet) -> tuple[_UserColumns, int]:
    """Return the columns of the rows, and the number of rows."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        try:
            names = rows.column_names
        except UnicodeDecodeError as error:
            raise SchemaError("the rows have a column whose name is not UTF-8", received=repr(error.object)) from None
        repeated = sorted(name for name, count in Counter(names).items() if count > 1)
        if repeated:
            raise SchemaError("two columns of the rows have the same name", received=", ".join(repeated))
        return dict(zip(names, rows.columns, strict=True)), rows.num_rows
    if isinstance(rows, Mapping):
        rows = [rows]
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes | memoryview):
        return _from_dicts(rows, _primary_key(schema), columns), len(rows)
    if type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
        return _from_pandas(rows, schema), len(rows)
    raise SchemaError(
        "rows have an unsupported type",
        received=type(rows).__name__,
        valid="Arrow, pandas, a list of dicts, or one dict",
    )


def _from_dicts(rows: Sequence[Any], primary_key: tuple[str, ...], columns: ColumnSet) -> Mapping[str, Sequence[Any]]:
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaError(f"row {index} is not a dict", received=type(row).__name__)
    if not rows:
        return {name: [] for name in primary_key}
    names = dict.fromkeys(name for row in rows for name in row)
    if columns == "given":
        for index, row in enumerate(rows):
            if len(row) != len(names):
                missing = next(name for name in names if name not in row)
                raise SchemaError(
                    f"row {index} has no column {missing!r}, which other rows have",
                    remedy="write rows with different columns in separate calls",
                )
    for name in primary_key:
        for index, row in enumerate(rows):
            if name not in row:
                raise SchemaError(f"row {index} has no key column {name!r}", received=list(row))
    return {name: [row.get(name) for row in rows] for name in names}


def _from_pandas(frame: Any, schema: RowSchema) -> Mapping[str, pa.Array | Sequence[Any]]:
    result: dict[str, pa.Array | Sequence[Any]] = {}
    for position, name in enumerate(frame.columns):
        if name in result:
            raise SchemaError("two columns of the rows have the same name", received=repr(name))
        series = frame.iloc[:, position]
        if name in schema.names and series.dtype == object:
            # Arrow's inferred type could lose information, such as the time of a datetime.
            result[name] = series.astype(object).where(series.notna(), None).tolist()
        elif name in schema.names:
            try:
                array = pa.array(series, from_pandas=True)
            except (pa.ArrowException, TypeError, ValueError):
                raise SchemaError(
                    f"column {name!r} cannot hold values of this pandas type",
                    received=str(series.dtype),
                    valid=type_name(schema.column(name).type),
                ) from None
            result[name] = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        else:
            result[name] = ()
    return result


def _first_error(
    values: _Values, target: pa.DataType, convert: Callable[[Any, pa.DataType], pa.Array]
) -> tuple[int, str, str]:
    """Return the index of the first value that does not fit, with reason and path, by bisection over prefixes.

    Not its error: the caller would be in a circle with it, and the caller's store would not be closed at its end.
    """
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            convert(values[low : middle + 1], target)
        except ConversionError:
            high = middle
        else:
            low = middle + 1
    try:
        convert(values[low : low + 1], target)
    except ConversionError as error:
        return low, error.reason, error.path
    return low, "the values of this column have incompatible types", ""


def _shown(value: Any) -> str | None:
    if isinstance(value, pa.Scalar):
        try:
            value = value.as_py()
        except (ValueError, OverflowError, LookupError):
            # Python cannot represent the value: invalid UTF-8, a date out of range, an unknown time zone.
            return None
    return shown(value)


def _nulls(length: int, data_type: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(length, data_type)])
