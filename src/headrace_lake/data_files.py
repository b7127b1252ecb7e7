"""Parquet files with rows: writing with statistics, reading, and writes that reach the disk.

A file of headrace has its rows in the order of the primary key, each key once. Its metadata says so, and names the
table and the key: another program's file has rows in any order, and the key of a table is a property that can change.
"""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.errors import SchemaError, StoreDamagedError, StoreError
from headrace.model.tables.schema import TableSchema
from headrace.rows import key_years
from headrace.rows.by_position import are_sorted, sort_indices
from headrace.rows.fields import with_fields
from headrace_lake.nested_nulls import with_inner_values
from headrace_lake.places import Place, open_input, write_new

ROW_GROUP_ROWS = 65_536
# A dictionary of many different values takes most of the time of a write, and is larger than compressed values.
_SETTINGS: Mapping[str, Any] = {"compression": "zstd", "dictionary_pagesize_limit": 64 << 10}
_SAMPLE_ROWS = 4096
PREFIX = "hr-"
"""The first characters of the names of headrace's files, so that orphans can be recognized."""
_TABLE, _KEY, _STATISTICS = b"headrace.table", b"headrace.key", b"headrace.statistics"
# Delta Lake's default: statistics of the first 32 columns.
_INDEXED_COLUMNS = 32
_TEXT_LENGTH = 32
_EPOCH = datetime.datetime(1970, 1, 1)
_LAST_CODE_POINT = "\U0010ffff"


RowNumbers: TypeAlias = npt.NDArray[np.uint64]
"""Different numbers of rows of a file, ascending."""


class MissingFileError(StoreError):
    """A data file does not exist."""


def write_sorted(
    path: Place,
    rows: pa.Table,
    schema: TableSchema,
    table: str,
    without: Sequence[str] = (),
    fields: pa.Schema | None = None,
    *,
    in_order: bool = False,
) -> str:
    """Write rows with different keys into a new file, in key order, and wait until they are on the disk.

    Args:
        rows: rows in the types of the schema.
        table: the identity of the table.
        without: the partition columns, which the file does not have.
        fields: the columns with the metadata that the file has; those of the schema by default.
        in_order: whether the rows are known to be in key order.

    Returns:
        The statistics of the rows for the log. The file has them, too.

    Raises:
        SchemaError: a date or timestamp of a key is outside the years 1 to 9999, or a key is null.
    """
    if schema.primary_key:
        _check_key(rows, schema.primary_key)
        # Much of what streams have is in order.
        if not in_order and not are_sorted(rows, schema.primary_key):
            rows = rows.take(sort_indices(rows, schema.primary_key))
    rows = with_fields(rows, schema.arrow if fields is None else fields).drop_columns(list(without))
    statistics = _text(_statistics(rows, schema.primary_key))
    write(path, rows.replace_schema_metadata(_marks(table, schema.primary_key, statistics)))
    return statistics


def write_ordered(
    path: Place,
    parts: Iterator[pa.Table],
    least_bytes: int,
    schema: TableSchema,
    table: str,
    without: Sequence[str] = (),
    fields: pa.Schema | None = None,
) -> str:
    """Write the next rows of an iterator into a new file, until it has a size; see `write_sorted`.

    Args:
        parts: the rows, at least some, in key order.
        least_bytes: the size. The last part is written as a whole.
    """
    found: list[_Statistics] = []

    def run(file: Any) -> None:
        kept = pa.schema([each for each in (schema.arrow if fields is None else fields) if each.name not in without])
        first = next(parts)
        with pq.ParquetWriter(file, kept, **_settings(first.select(kept.names))) as writer:
            for part in itertools.chain([first], parts):
                _check_key(part, schema.primary_key)
                rows = with_fields(part.select(kept.names), kept)
                found.append(_statistics(rows, schema.primary_key))
                writer.write_table(_filled(rows), row_group_size=ROW_GROUP_ROWS)
                if file.tell() >= least_bytes:
                    break
            writer.add_key_value_metadata(_marks(table, schema.primary_key, _text(_together(found))))

    _write(path, run)
    return _text(_together(found))


def marked_as_sorted(rows: pa.Table, table: str, key: Sequence[str]) -> pa.Table:
    """Return rows with the metadata of a file whose rows are in key order; see `is_sorted`."""
    return rows.replace_schema_metadata(_marks(table, key, json.dumps({"numRecords": rows.num_rows})))


def _marks(table: str, key: Sequence[str], statistics: str) -> dict[bytes, bytes]:
    return {_TABLE: table.encode(), _KEY: json.dumps(list(key)).encode(), _STATISTICS: statistics.encode()}


def _check_key(rows: pa.Table, key: Sequence[str]) -> None:
    check_years(rows, key)
    for name in key:
        if rows.column(name).null_count:
            # New rows are checked before: it is a row that another program has written.
            raise SchemaError(
                "a row of the table has a key that is null, so its file cannot be written anew",
                received=f"column {name!r}",
                remedy="delete such rows by the program that has written them, or remove the key of the table",
            )


def check_years(rows: pa.Table, key: Sequence[str]) -> None:
    """Raise `SchemaError` for a date or time of a key that Python does not have."""
    for column in rows.select(list(key)).columns:
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            key_years.check_years(column)


def write(path: Place, rows: pa.Table) -> None:
    """Write rows into a new file, and wait until they are on the disk. After an error there is no file."""
    rows = _filled(rows)
    settings = _settings(rows)
    _write(path, lambda file: pq.write_table(rows, file, row_group_size=ROW_GROUP_ROWS, **settings))


def _settings(rows: pa.Table) -> dict[str, Any]:
    """Return the settings of a file that begins with some rows.

    Numbers, dates and times that are nearly all different, such as keys and the times of rows, are written as
    differences. These take less time than the values, and fewer bytes.
    """
    sample = rows.slice(0, _SAMPLE_ROWS)
    different = {
        name
        for name, column in zip(sample.column_names, sample.columns, strict=True)
        # A name with a dot is also the path of a nested field.
        if "." not in name and _is_number(column.type) and _are_different(column)
    }
    if not different:
        return {**_SETTINGS}
    rest = [path for field in rows.schema if field.name not in different for path in _paths(field.name, field.type)]
    return {**_SETTINGS, "use_dictionary": rest, "column_encoding": dict.fromkeys(different, "DELTA_BINARY_PACKED")}


def _paths(path: str, kind: pa.DataType) -> Iterator[str]:
    """Yield the paths of the columns of a file that have the values of a column."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _paths(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from _paths(f"{path}.key_value.key", kind.key_type)
        yield from _paths(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _paths(f"{path}.list.element", kind.value_type)
    else:
        yield path


def _are_different(values: pa.ChunkedArray) -> bool:
    return bool(pc.count_distinct(values).as_py() > 7 / 8 * (len(values) - values.null_count))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def _filled(rows: pa.Table) -> pa.Table:
    return pa.Table.from_arrays([with_inner_values(column) for column in rows.columns], schema=rows.schema)


def _write(path: Place, run: Callable[[Any], None]) -> None:
    try:
        write_new(path, run)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise StoreError(f"a data file cannot be written: {error.strerror}", received=str(path)) from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def is_sorted(file: pq.ParquetFile, table: str, key: Sequence[str]) -> bool:
    """Return whether the rows of a file are in key order, because headrace has written it for this very table."""
    metadata = file.metadata.metadata or {}
    # A program that rewrites files could keep the metadata of one of them.
    rows = json.loads(metadata.get(_STATISTICS, b"{}")).get("numRecords")
    # Files of release 0.1.0 do not name the key.
    sorted_by = json.loads(metadata.get(_KEY, b"null"))
    return metadata.get(_TABLE) == table.encode() and sorted_by in (None, [*key]) and rows == file.metadata.num_rows


def opened(path: Place) -> pq.ParquetFile:
    """Open a file for reading.

    Raises:
        MissingFileError: the file does not exist.
        StoreDamagedError: it is no Parquet file.
    """
    try:
        source = path if isinstance(path, Path) else open_input(path)
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
    except FileNotFoundError:
        raise MissingFileError(
            "a data file of the table does not exist",
            received=str(path),
            remedy="read again: VACUUM may have deleted a file that was replaced meanwhile",
        ) from None
    except (OSError, pa.ArrowInvalid) as error:
        if isinstance(error, OSError) and not isinstance(path, Path):
            raise StoreError("a data file cannot be reached", received=str(path)) from None
        raise StoreDamagedError("a data file cannot be read", received=f"{path}: {error}") from error


def read(
    file: pq.ParquetFile,
    fields: pa.Schema,
    groups: Sequence[int] | None = None,
    constants: Mapping[str, pa.Scalar] | None = None,
    deleted: RowNumbers | None = None,
    known: pa.Table | None = None,
) -> pa.Table:
    """Return the rows of a file in the types of a table. A column that was added later is null.

    Args:
        fields: the columns of the result.
        groups: the row groups; all by default.
        constants: the values of columns that are the same in all rows, and not in the file.
        deleted: the rows of the file that are left out.
        known: columns that were read before: of the same row groups, with all their rows.

    Raises:
        StoreDamagedError: a column of the file has values that the column of the table cannot have.
    """
    same = constants or {}
    before = () if known is None else known.column_names
    there = set(file.schema_arrow.names) - same.keys() - {*before}
    names = [name for name in fields.names if name in there]
    chosen = list(range(file.num_row_groups)) if groups is None else list(groups)
    # Files are read in parallel. A name is also the path of a nested field: the columns of other names are dropped.
    rows = file.read_row_groups(chosen, columns=names, use_threads=False) if names else None
    count = rows.num_rows if rows is not None else sum(file.metadata.row_group(n).num_rows for n in chosen)
    found = pa.table({"": pa.nulls(count)}).select([]) if rows is None else rows
    for field in fields:
        if known is not None and field.name in before:
            found = found.append_column(field.with_nullable(True), known.column(field.name))
        elif field.name not in there:
            value = same.get(field.name)
            column = pa.nulls(count, field.type) if value is None else pa.repeat(value, count)
            found = found.append_column(field.with_nullable(True), column)
    found = _typed(found, fields) if fields else found
    if deleted is None or not len(deleted):
        return found
    left = pa.array(_is_left(file, chosen, deleted))
    # Arrow filters a table row by row, and a column by runs of rows.
    return pa.Table.from_arrays([column.filter(left) for column in found.columns], schema=found.schema)


def _typed(rows: pa.Table, fields: pa.Schema) -> pa.Table:
    """Return columns of a file in the types of a table, if these have the same values."""
    typed = []
    for field in fields:
        column = rows.column(field.name)
        problem = f"{column.type}, {field.type} in the table"
        if _values_of(column.type) != _values_of(field.type) and column.null_count < len(column):
            raise _other_type(field.name, problem)
        try:
            typed.append(with_fields(rows.select([field.name]), pa.schema([field.with_nullable(True)])).column(0))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _other_type(field.name, f"{problem}: {error}") from None
    return pa.table(typed, pa.schema([field.with_nullable(True) for field in fields]))


def _values_of(kind: pa.DataType) -> object:
    """Return what the values of a type are. Arrow also casts dates to numbers, numbers to texts and to booleans."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_timestamp(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind):
        return kind.id
    return "nested" if pa.types.is_nested(kind) else "bytes"


def _other_type(name: str, received: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"a data file has other values in column {name!r} than its table",
        received=received,
        remedy="if another program has replaced the columns of the table, create the tunnels of the table again, to "
        "read it as it is now",
    )


def group_starts(file: pq.ParquetFile) -> npt.NDArray[np.int64]:
    """Return the number of the first row of each row group, and the number of all rows."""
    counts = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    return np.cumsum([0, *counts], dtype=np.int64)


def _is_left(file: pq.ParquetFile, groups: Sequence[int], deleted: RowNumbers) -> npt.NDArray[np.bool_]:
    """Return which rows of row groups are not deleted."""
    starts = group_starts(file)
    parts = []
    for group in groups:
        left = np.ones(starts[group + 1] - starts[group], np.bool_)
        first, end = np.searchsorted(deleted, starts[group : group + 2].astype(np.uint64))
        left[deleted[first:end].astype(np.int64) - starts[group]] = False
        parts.append(left)
    return np.concatenate(parts) if parts else np.ones(0, np.bool_)


def read_rows(
    file: pq.ParquetFile, fields: pa.Schema, numbers: RowNumbers, constants: Mapping[str, pa.Scalar] | None = None
) -> pa.Table:
    """Return some rows of a file; see `read`."""
    starts = group_starts(file)
    parts = [read(file, fields, [], constants)]
    for group in range(file.num_row_groups):
        first, end = np.searchsorted(numbers, starts[group : group + 2].astype(np.uint64))
        if first < end:
            places = numbers[first:end].astype(np.int64) - starts[group]
            parts.append(read(file, fields, [group], constants).take(pa.array(places)))
    return pa.concat_tables(parts)


def statistics_of(file: pq.ParquetFile) -> str:
    """Return the statistics of a file that `write_sorted` has written."""
    return str(file.metadata.metadata[_STATISTICS], "utf-8")


# -- statistics ---------------------------------------------------------------------------------------------------


def has_bounds(kind: pa.DataType) -> bool:
    """Return whether the bounds of a column in the log, and in a file, are bounds of its values in headrace's order.

    Delta Lake truncates times to milliseconds, and readers take decimals for floating-point numbers.
    """
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind))


def group_bounds(file: pq.ParquetFile, column: str) -> Iterator[tuple[Any, Any] | None]:
    """Yield the least and the greatest value of a column in each row group; None where they are unknown."""
    metadata = file.metadata
    paths = [metadata.schema.column(index).path for index in range(len(metadata.schema))]
    place = paths.index(column) if column in paths else None
    for number in range(metadata.num_row_groups):
        found = None if place is None else metadata.row_group(number).column(place).statistics
        yield None if found is None or not found.has_min_max else (found.min, found.max)


@dataclass(frozen=True)
class _Statistics:
    """The statistics of rows. A column has no bounds if all its values are null, or if the log has no form for them."""

    rows: int
    least: Mapping[str, Any]
    greatest: Mapping[str, Any]
    nulls: Mapping[str, int]


def _statistics(rows: pa.Table, key: Sequence[str]) -> _Statistics:
    """Return the statistics of rows in the order of a key."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in list(rows.schema)[:_INDEXED_COLUMNS]:
        if not has_bounds(field.type) and not pa.types.is_timestamp(field.type):
            continue
        column = rows.column(field.name)
        nulls[field.name] = column.null_count
        if column.null_count == len(column):
            continue
        bounds = {"min": column[0], "max": column[-1]} if field.name in key[:1] else pc.min_max(column)
        low, high = _bound(bounds["min"], up=False), _bound(bounds["max"], up=True)
        if low is not None and high is not None:
            least[field.name], greatest[field.name] = low, high
    return _Statistics(rows.num_rows, least, greatest, nulls)


def _together(parts: Sequence[_Statistics]) -> _Statistics:
    """Return the statistics of all rows of some parts."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for name in parts[0].nulls:
        # Bounds of texts, dates and times are texts in the order of their values.
        bounded = [each for each in parts if each.nulls[name] < each.rows]
        if bounded and all(name in each.least for each in bounded):
            least[name] = min(each.least[name] for each in bounded)
            greatest[name] = max(each.greatest[name] for each in bounded)
    nulls = {name: sum(each.nulls[name] for each in parts) for name in parts[0].nulls}
    return _Statistics(sum(each.rows for each in parts), least, greatest, nulls)


def _text(found: _Statistics) -> str:
    """Return statistics for an entry of the log."""
    values = {
        "numRecords": found.rows,
        "minValues": found.least,
        "maxValues": found.greatest,
        "nullCount": found.nulls,
    }
    return json.dumps(values, ensure_ascii=False)


def _bound(value: pa.Scalar, *, up: bool) -> Any:
    """Return a value, or one beyond it, in the form of the log; None if the form has none."""
    if pa.types.is_string(value.type):
        return text_bound(value.as_py(), _TEXT_LENGTH, up=up)
    if pa.types.is_integer(value.type):
        return value.as_py()
    try:
        if pa.types.is_date32(value.type):
            return str(value.as_py())
        milliseconds = value.value // 1000 + (1 if up and value.value % 1000 else 0)
        shown = (_EPOCH + datetime.timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
    except OverflowError:
        # Python, and the form, have the years 1 to 9999.
        return None
    return shown if value.type.tz is None else f"{shown}Z"


def text_bound(text: str, length: int, *, up: bool) -> str:
    """Return a text, or a shorter one that is below it, or beyond it."""
    if len(text) <= length:
        return text
    head, rest = text[:length], text[length:]
    # The rest can begin with the last code point, too.
    same = len(rest) - len(rest.lstrip(_LAST_CODE_POINT))
    return head + _LAST_CODE_POINT * (same + 1) if up else head
