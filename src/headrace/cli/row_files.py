"""Reading rows from CSV, JSON lines, Parquet and Arrow files.

In CSV, an empty field is null and ``""`` is an empty text. In CSV and JSON, binary is base64, and dates and timestamps
are ISO 8601 (timestamps with their offset from UTC, unless a time zone is given for those without one). In JSON,
structs and maps are objects and intervals are seconds; CSV does not support these types.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import re
import shlex
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc
import pyarrow.json
import pyarrow.parquet

from headrace.cli.exact_values import WAS_INFERRED, check_json_numbers, exactly, is_checked
from headrace.cli.file_formats import InputFile, format_of, open_input
from headrace.cli.row_places import CsvFile, RowError, csv_error, csv_header, place_of_row
from headrace.errors import OptionError, SchemaError
from headrace.model.tables.schema import Column, RowSchema
from headrace.model.types import type_name
from headrace.options.names import did_you_mean
from headrace.rows.json_rows import JsonRowError, needs_this_reader, read_nested_json_lines

_BLOCK_BYTES = 8 << 20
_ARROW_FILE_MAGIC = b"ARROW1"
_SHOWN = 100
# The first one can have a byte order mark.
_NULL_LINE = re.compile(rb"(?:\A|[\r\n])(?:\xef\xbb\xbf)?[ \t\r\n]*null")
_ZONE = r"(Z|[+-]\d\d(:?\d\d)?)$"
NULL_MARKERS = ("NA", "N/A", "NULL", "null", "None", "nan", "NaN", "-", "\\N")
"""Texts that programs write for a missing value. None of them is null unless ``--null`` names it."""
_NO_VALUE = re.compile(f"invalid value '({'|'.join(map(re.escape, NULL_MARKERS))})'")


@dataclass(frozen=True)
class TextRules:
    """How the values of text files are read.

    Attributes:
        timezone: the time zone of timestamps without one, a name such as ``Europe/Berlin``.
        nulls: the texts of CSV fields without quotes that are null, besides the empty field.
        inferred: the columns whose types were inferred. A value that such a type would change is an error.
    """

    timezone: str | None = None
    nulls: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()


PLAIN = TextRules()


def read_rows(
    path: str, file_format: str | None, schema: RowSchema, rules: TextRules = PLAIN
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the column types of a table or queue. The batches have the columns of the file.

    Args:
        path: the file; ``-`` is standard input. Compressed files are decompressed.
        file_format: one of `FORMATS`. None selects it by the file's suffix, and JSON lines on standard input.

    Raises:
        OptionError: the file cannot be read, or its format is unknown.
        SchemaError: the file has columns that the table does not have, or values that do not fit.
    """
    with open_input(path) as source:
        yield from rows_of(source, format_of(path, file_format, beginning=source.beginning(8)), schema, rules)


def rows_of(
    source: InputFile, file_format: str, schema: RowSchema, rules: TextRules = PLAIN
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an open file; see `read_rows`."""
    if rules.nulls and file_format != "csv":
        raise OptionError("--null is for CSV; other formats have nulls", received=f"{source.path} as {file_format}")
    rows = 0
    with file_errors(source, file_format, schema):
        texts = _text_schema(schema, rules, file_format)
        for batch in FORMATS[file_format](source, texts, rules):
            if batch.num_rows:
                try:
                    yield _typed(batch, schema, texts, rules.timezone)
                except RowError as error:
                    place = place_of_row(source.path, file_format, rows + error.row)
                    raise RowError(f"{place}, {error}") from None
                rows += batch.num_rows


@contextlib.contextmanager
def file_errors(source: InputFile, file_format: str, schema: RowSchema | None = None) -> Iterator[None]:
    """Raise the errors of `read_rows` in a block that reads a file.

    Args:
        schema: the columns that the rows must fit; None if any columns are valid.
    """
    try:
        yield
    except OSError as error:
        raise OptionError(f"cannot read the file: {error.strerror or error}", received=source.path) from error
    except (pa.ArrowException, MemoryError, UnicodeDecodeError, JsonRowError, RowError) as error:
        raise SchemaError(
            # Arrow asks for the sizes in a file.
            f"cannot read the rows of the file: {str(error) or 'they need more memory than there is'}",
            received=f"{source.path} as {file_format}",
            valid=None if schema is None else _columns_text(schema),
            remedy=_remedy(str(error), source.path, file_format),
        ) from error


def _remedy(error: str, path: str, file_format: str) -> str | None:
    if "invalid UTF8" in error:
        utf8 = f"iconv -f LATIN1 -t UTF-8 {shlex.quote(path)}"
        return f"convert its text, from LATIN1 for example: {utf8} | headrace load - --format {file_format} …"
    if "expected a zone offset" in error or "zone offset" in error:
        return "give --timezone for timestamps without a time zone"
    if WAS_INFERRED in error:
        return "give the type of the column with --column"
    marker = _NO_VALUE.search(error)
    return None if marker is None else f"if {marker[1]} means that there is no value, give --null {marker[1]}"


def csv_options(
    separator: str, types: pa.Schema | None = None, nulls: Sequence[str] = ()
) -> tuple[pyarrow.csv.ParseOptions, pyarrow.csv.ConvertOptions]:
    """Return how CSV is read; without ``types``, Arrow infers them."""
    convert = pyarrow.csv.ConvertOptions(
        column_types=types, null_values=["", *nulls], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    return pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True), convert


def _read_csv(source: InputFile, texts: RowSchema, rules: TextRules) -> Iterator[pa.RecordBatch]:
    header = csv_header(source)
    parse, convert = csv_options(header.separator, texts.arrow, rules.nulls)
    file = CsvFile(source.file)
    # It copies: an Arrow thread that frees memory of Python at the end of the process would abort it.
    stream = pa.BufferedInputStream(pa.PythonFile(file, mode="r"), _BLOCK_BYTES)
    rows, last = 0, None
    try:
        # With threads, Arrow's errors have no row numbers, and it is not faster.
        for batch in pyarrow.csv.open_csv(stream, pyarrow.csv.ReadOptions(use_threads=False), parse, convert):
            if batch.num_rows:
                if last is not None:
                    yield last
                rows, last = rows + batch.num_rows, batch
    except pa.ArrowInvalid as error:
        if "Empty CSV file" not in str(error):
            raise csv_error(error, source.path, header, texts) from None
    if last is not None:
        # The end of the file is known now.
        unclosed = file.unclosed(last)
        if unclosed is not None:
            place = place_of_row(source.path, "csv", rows - 1)
            raise RowError(f"{place}, value {unclosed[:_SHOWN]!r}: its quote is not closed")
        yield last


def _read_json_lines(source: InputFile, texts: RowSchema, rules: TextRules) -> Iterator[pa.RecordBatch]:
    file = source.file
    nested, inferred = needs_this_reader(texts), [texts.column(name) for name in rules.inferred if name in texts]
    line = 1
    while block := file.read(_BLOCK_BYTES):
        block += file.readline()
        check_json_numbers(block, inferred, line)
        if nested:
            yield from read_nested_json_lines(io.BytesIO(block), texts, first_line=line)
        elif block.strip():
            try:
                batches = _json_batches(block, texts)
            except pa.ArrowException:
                # Slower. It also reads numbers that are texts, such as NaN, and its errors name line, column and value.
                batches = list(read_nested_json_lines(io.BytesIO(block), texts, first_line=line))
            yield from batches
        line += block.count(b"\n")


def check_lines_are_not_null(block: bytes) -> None:
    """Raise `pyarrow.ArrowInvalid` if a line is null: Arrow's reader would end the process (apache/arrow, 47409)."""
    found = _NULL_LINE.search(block)
    if found is not None:
        line = block.count(b"\n", 0, found.end()) + 1
        raise pa.ArrowInvalid(f"line {line} is not a JSON object")


def _json_batches(block: bytes, texts: RowSchema) -> list[pa.RecordBatch]:
    check_lines_are_not_null(block)
    options = pyarrow.json.ParseOptions(explicit_schema=texts.arrow, unexpected_field_behavior="error")
    table = pyarrow.json.read_json(pa.BufferReader(block), parse_options=options)
    batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    return batches


def parquet_file(source: InputFile) -> pyarrow.parquet.ParquetFile:
    """Return an open Parquet file."""
    return pyarrow.parquet.ParquetFile(source.seekable())


def _read_parquet(source: InputFile, texts: RowSchema, rules: TextRules) -> Iterator[pa.RecordBatch]:
    return parquet_file(source).iter_batches()  # type: ignore[no-any-return]


def arrow_reader(source: InputFile) -> pyarrow.ipc.RecordBatchFileReader | pyarrow.ipc.RecordBatchStreamReader:
    """Return an open Arrow file, in the file or the stream format."""
    if source.beginning(len(_ARROW_FILE_MAGIC)) == _ARROW_FILE_MAGIC:
        return pyarrow.ipc.open_file(source.seekable())
    return pyarrow.ipc.open_stream(source.file)


def _read_arrow(source: InputFile, texts: RowSchema, rules: TextRules) -> Iterator[pa.RecordBatch]:
    reader = arrow_reader(source)
    if isinstance(reader, pyarrow.ipc.RecordBatchStreamReader):
        batches: Iterable[pa.RecordBatch] = reader
    else:
        batches = map(reader.get_batch, range(reader.num_record_batches))
    for batch in batches:
        # Arrow trusts the sizes and offsets in a file: wrong ones would end the process.
        batch.validate(full=True)
        yield batch


FORMATS: dict[str, Callable[[InputFile, RowSchema, TextRules], Iterator[pa.RecordBatch]]] = {
    "csv": _read_csv,
    "jsonl": _read_json_lines,
    "parquet": _read_parquet,
    "arrow": _read_arrow,
}


def _text_schema(schema: RowSchema, rules: TextRules, file_format: str) -> RowSchema:
    """Return the types with which the text formats are read. `_typed` then converts them to the schema's types."""

    def read_as(column: Column) -> pa.DataType:
        as_text = column.type in (pa.date32(), pa.binary()) or (rules.timezone and _has_zone(column.type))
        checked = file_format == "csv" and column.name in rules.inferred and is_checked(column.type)
        return pa.string() if as_text or checked else column.type

    return RowSchema(tuple(Column(column.name, read_as(column)) for column in schema.columns))


def _has_zone(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(data_type) and data_type.tz)


def _typed(batch: pa.RecordBatch, schema: RowSchema, texts: RowSchema, timezone: str | None) -> pa.RecordBatch:
    """Return the rows with the column types of the schema.

    Args:
        texts: the types with which a text format was read.

    Raises:
        RowError: a value does not fit, or is null in a column that has no nulls.
    """
    columns = []
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        column = schema.column(name)
        numbers = is_checked(column.type) and texts.column(name).type != column.type

        def convert(values: pa.Array, target: pa.DataType = column.type, numbers: bool = numbers) -> pa.Array:
            if numbers:
                return exactly(values, target)
            return in_zone(values, timezone) if timezone and _has_zone(target) else converted(values, target)

        try:
            columns.append(convert(values))
        except (pa.ArrowException, binascii.Error) as error:
            row, reason = _first_error(values, convert) or (0, error)
            text = f"column {name!r}, value {str(values[row])[:_SHOWN]!r} for {type_name(column.type)}: {reason}"
            raise RowError(text, row) from None
        if values.null_count and not column.nullable and not column.filled:
            row = pc.index(values.is_null(), True).as_py()
            raise RowError(f"column {name!r}: it has no value, and the column cannot be null", row)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _first_error(values: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> tuple[int, Exception] | None:
    for row in range(len(values)):
        try:
            convert(values.slice(row, 1))
        except (pa.ArrowException, binascii.Error) as error:
            return row, error
    return None


def check_timezone(timezone: str | None) -> None:
    """Raise `OptionError` for a time zone that does not exist."""
    try:
        if timezone is not None:
            zoneinfo.ZoneInfo(timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise OptionError(
            "unknown time zone",
            received=repr(timezone),
            valid="a name such as Europe/Berlin, America/New_York or UTC",
            remedy=did_you_mean(timezone or "", zoneinfo.available_timezones()),
        ) from None


def in_zone(values: pa.Array, timezone: str) -> pa.Array:
    """Return texts or timestamps as timestamps; those without a time zone are in the given one.

    Raises:
        pyarrow.ArrowInvalid: a text is no timestamp, or a time does not exist in the zone, or exists twice.
    """
    instant = pa.timestamp("us", tz="UTC")
    if not pa.types.is_string(values.type):
        if pa.types.is_timestamp(values.type) and values.type.tz is None:
            values = pc.assume_timezone(values.cast(pa.timestamp("us")), timezone)
        return values.cast(instant)
    zoned = pc.match_substring_regex(values, _ZONE)
    with_zone = pc.if_else(zoned, values, None).cast(instant)
    without = pc.if_else(zoned, None, values).cast(pa.timestamp("us"))
    return pc.coalesce(with_zone, pc.assume_timezone(without, timezone).cast(instant))


def converted(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert values to a type. Texts for binary columns are base64."""
    if pa.types.is_binary(target) and pa.types.is_string(values.type):
        return pa.array(
            # As bytes, because b64decode has another error for a text with other characters than ASCII.
            [None if text is None else base64.b64decode(text.encode(), validate=True) for text in values.to_pylist()],
            target,
        )
    # Arrow cannot cast a null struct whose fields are not null.
    return values if values.type == target else values.cast(target)


def first_rows(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield batches with at most ``limit`` rows together; None is no limit."""
    for batch in batches:
        if limit is None:
            yield batch
            continue
        yield batch.slice(0, min(limit, batch.num_rows))
        limit -= min(limit, batch.num_rows)
        if limit == 0:
            return


def _columns_text(schema: RowSchema) -> str:
    return ", ".join(f"{column.name} {type_name(column.type)}" for column in schema.columns)
