"""The columns of a file, for a new table or queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from headrace.cli.exact_values import Widened, exact_type, is_checked
from headrace.cli.file_formats import InputFile
from headrace.cli.row_files import (
    NULL_MARKERS,
    PLAIN,
    TextRules,
    arrow_reader,
    check_lines_are_not_null,
    csv_options,
    file_errors,
    parquet_file,
)
from headrace.cli.row_places import csv_error, csv_header
from headrace.errors import SchemaError
from headrace.model.tables.schema import Column, RowSchema
from headrace.model.types import parse_type, type_name

SAMPLE_BYTES = 16 << 20
"""The beginning of a text file from which the types of its columns are inferred."""
_TIME = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?"
_TIMES = {
    r"^\d{4}-\d\d-\d\d$": "date",
    _TIME + "$": "timestamp_ntz",
    _TIME + r"(Z|[+-]\d\d(:?\d\d)?)$": "timestamp",
}


class FileColumns(NamedTuple):
    """The columns of a file.

    Attributes:
        schema: the columns.
        widened: why columns have a wider type than most of their values need, by name.
    """

    schema: RowSchema
    widened: Mapping[str, Widened]


def infer_columns(source: InputFile, file_format: str, rules: TextRules = PLAIN) -> FileColumns:
    """Return the columns of a file: those of a Parquet or Arrow file, or those that fit the beginning of a text file.

    Types that no column can have become the nearest one: a column without values and a time of the day are strings.
    The type of a CSV column keeps each value: a column with ``007`` is one of strings.

    With a time zone for timestamps without one, they are timestamps.

    Raises:
        OptionError: the file cannot be read.
        SchemaError: the file is not of the format, has no columns, or has one with a type that no column can have.
    """
    widened: dict[str, Widened] = {}
    with file_errors(source, file_format):
        schema = _file_schema(source, file_format, rules.nulls, widened)
        _check_names(schema.names, source.path)
        columns = [Column(field.name, _column_type(field, rules.timezone), field.nullable) for field in schema]
    return FileColumns(RowSchema(tuple(columns)), widened)


def _check_names(names: Sequence[str], path: str) -> None:
    if not names:
        raise SchemaError("the file has no columns", received=path)
    for number, name in enumerate(names, start=1):
        if not name.strip():
            raise SchemaError(
                f"column {number} of the file has no name", received=path, remedy="give each column of the file a name"
            )
        if name in names[: number - 1]:
            first = names.index(name) + 1
            raise SchemaError(
                f"columns {first} and {number} of the file have the same name",
                received=f"{name!r} in {path}",
                remedy="give each column of the file its own name",
            )


def spoiled_by_markers(source: InputFile, found: RowSchema, rules: TextRules) -> list[tuple[str, str, str]]:
    """Return the string columns of a CSV file that have another type without one of the `NULL_MARKERS`.

    Returns:
        The name, the marker and the type for each column.
    """
    spoiled = {}
    for marker in (marker for marker in NULL_MARKERS if marker not in rules.nulls):
        # Searching is faster than parsing, and most files have no marker.
        if marker.encode() not in source.beginning(SAMPLE_BYTES):
            continue
        without = infer_columns(source, "csv", TextRules(rules.timezone, (*rules.nulls, marker))).schema
        for before, after in zip(found.columns, without.columns, strict=True):
            if pa.types.is_string(before.type) and not pa.types.is_string(after.type):
                spoiled[before.name] = (before.name, marker, type_name(after.type))
    return list(spoiled.values())


def _file_schema(source: InputFile, file_format: str, nulls: Sequence[str], widened: dict[str, Widened]) -> pa.Schema:
    match file_format:
        case "parquet":
            schema = parquet_file(source).schema_arrow
            source.seekable().seek(0)
        case "arrow":
            schema = arrow_reader(source).schema
            source.seekable().seek(0)
        case "csv":
            schema = _csv_schema(source, nulls, widened)
        case _:
            schema = _json_schema(source.beginning(SAMPLE_BYTES))
    return schema


def _csv_schema(source: InputFile, nulls: Sequence[str], widened: dict[str, Widened]) -> pa.Schema:
    sample = _whole_rows(source.beginning(SAMPLE_BYTES))
    if not sample.strip():
        return pa.schema([])
    header = csv_header(source)
    # With threads, Arrow's errors have no row numbers.
    options = pyarrow.csv.ReadOptions(block_size=len(sample) + 1, use_threads=False)
    parse, convert = csv_options(header.separator, nulls=nulls)
    try:
        schema = pyarrow.csv.open_csv(_copied(sample), options, parse, convert).schema
    except pa.ArrowInvalid as error:
        raise csv_error(error, source.path, header, None) from None
    _check_names(schema.names, source.path)
    checked = [field.name for field in schema if is_checked(field.type) or pa.types.is_timestamp(field.type)]
    if checked:
        parse, convert = csv_options(header.separator, pa.schema([(name, pa.string()) for name in checked]), nulls)
        convert.include_columns = checked
        texts = pyarrow.csv.read_csv(_copied(sample), options, parse, convert)
        for name in checked:
            index = schema.get_field_index(name)
            kind, change = exact_type(texts.column(name), schema.field(index).type)
            if change is not None:
                widened[name] = change
                schema = schema.set(index, pa.field(name, kind))
    return schema


def _copied(sample: bytes) -> pa.BufferReader:
    """Return bytes as a file in Arrow's memory. Its threads abort a process if they free Python's memory at the end."""
    copy = pa.BufferOutputStream()
    copy.write(sample)
    return pa.BufferReader(copy.getvalue())


def _whole_rows(sample: bytes) -> bytes:
    """Return a sample without a last row that may be cut off."""
    if len(sample) < SAMPLE_BYTES:
        return sample
    end = len(sample)
    while (end := sample.rfind(b"\n", 0, end)) > 0:
        if sample.count(b'"', 0, end) % 2 == 0:
            return sample[: end + 1]
    return sample


def _json_schema(sample: bytes) -> pa.Schema:
    if len(sample) == SAMPLE_BYTES:
        sample = sample[: sample.rfind(b"\n") + 1] or sample
    if not sample.strip():
        return pa.schema([])
    check_lines_are_not_null(sample)
    options = pyarrow.json.ReadOptions(block_size=len(sample) + 1)
    schema = pyarrow.json.read_json(pa.BufferReader(sample), options).schema
    # Arrow takes a date, and a time with a zone, for a time without one.
    texts = [
        pa.field(field.name, pa.string())
        for field in schema
        if pa.types.is_timestamp(field.type) or pa.types.is_string(field.type)
    ]
    parse = pyarrow.json.ParseOptions(explicit_schema=pa.schema(texts), unexpected_field_behavior="ignore")
    if texts:
        table = pyarrow.json.read_json(pa.BufferReader(sample), options, parse)
        for field in texts:
            kind = _type_of_texts(table.column(field.name))
            schema = schema.set(schema.get_field_index(field.name), field.with_type(kind))
    return schema


def _type_of_texts(texts: pa.ChunkedArray) -> pa.DataType:
    """Return the type of texts: that of dates and times if all of them have its form, or else string."""
    for pattern, kind in _TIMES.items():
        if pc.all(pc.match_substring_regex(texts, pattern), min_count=1).as_py():
            return parse_type(kind)
    return pa.string()


def _column_type(field: pa.Field, timezone: str | None) -> pa.DataType:
    found = _inferred(field.type)
    if timezone is not None and pa.types.is_timestamp(found):
        return parse_type("timestamp")
    try:
        return parse_type(found)
    except SchemaError as error:
        raise SchemaError(
            f"column {field.name!r} of the file has a type that no column can have",
            received=str(field.type),
            valid=error.valid,
            remedy=f"name another one: --column {field.name}=string",
        ) from None


def _inferred(found: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_null(found) or types.is_time(found):
        return pa.string()
    if types.is_list(found):
        return pa.list_(_inferred(found.value_type))
    if types.is_struct(found) and found.num_fields:
        return pa.struct([pa.field(inner.name, _inferred(inner.type), inner.nullable) for inner in found])
    if types.is_unsigned_integer(found):
        wider = {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}
        return wider.get(found.bit_width, pa.decimal128(20, 0))
    if types.is_float16(found):
        return pa.float32()
    return found
