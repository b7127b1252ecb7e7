"""Reading rows from CSV, JSON lines, Parquet and Arrow files.

In CSV, an empty field is null and ``""`` is an empty text. In CSV and JSON, binary is base64, and dates and timestamps
are ISO 8601 (timestamps with their offset from UTC). In JSON, structs and maps are objects and intervals are seconds;
CSV does not support these types.
"""

from __future__ import annotations

import base64
import binascii
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.json
import pyarrow.parquet

from headrace.cli.json_rows import JsonRowError, needs_this_reader, read_nested_json_lines
from headrace.errors import OptionError, SchemaError
from headrace.tables.schema import RowSchema
from headrace.types import type_name

_BLOCK_BYTES = 8 << 20
_ARROW_FILE_MAGIC = b"ARROW1"


def read_rows(path: str, file_format: str | None, schema: RowSchema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the column types of a table or queue. The batches have the columns of the file.

    Args:
        path: the file; ``-`` is standard input.
        file_format: one of `FORMATS`. None selects it by the file's suffix, and JSON lines on standard input.

    Raises:
        OptionError: the file cannot be read, or its format is unknown.
        SchemaError: the file has columns that the table does not have, or values that do not fit.
    """
    chosen = file_format or ("jsonl" if path == "-" else _SUFFIXES.get(Path(path).suffix.lower()))
    if chosen is None:
        raise OptionError(
            "unknown suffix of the file",
            received=path,
            valid=list(_SUFFIXES),
            remedy=f"give --format with one of {', '.join(FORMATS)}",
        )
    try:
        with sys.stdin.buffer if path == "-" else Path(path).open("rb") as file:
            yield from (batch for batch in FORMATS[chosen](file, schema) if batch.num_rows)
    except OSError as error:
        raise OptionError(f"cannot read the file: {error.strerror or error}", received=path) from error
    except (pa.ArrowException, binascii.Error, UnicodeDecodeError, JsonRowError) as error:
        raise SchemaError(
            f"cannot read the rows of the file: {error}",
            received=f"{path} as {chosen}",
            valid=_columns_text(schema),
        ) from error


def _read_csv(file: BinaryIO, schema: RowSchema) -> Iterator[pa.RecordBatch]:
    options = pyarrow.csv.ConvertOptions(
        column_types=_text_schema(schema),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    for batch in pyarrow.csv.open_csv(file, convert_options=options):
        yield _typed(batch, schema)


def _read_json_lines(file: BinaryIO, schema: RowSchema) -> Iterator[pa.RecordBatch]:
    if needs_this_reader(schema):
        yield from read_nested_json_lines(file, schema)
        return
    line = 1
    while block := file.read(_BLOCK_BYTES):
        block += file.readline()
        if block.strip():
            try:
                batches = _json_batches(block, schema)
            except (pa.ArrowException, binascii.Error):
                # The slower reader raises an error that names line, column and value; Arrow's error does not.
                for _ in read_nested_json_lines(io.BytesIO(block), schema, first_line=line):
                    pass
                raise
            yield from batches
        line += block.count(b"\n")


def _json_batches(block: bytes, schema: RowSchema) -> list[pa.RecordBatch]:
    options = pyarrow.json.ParseOptions(explicit_schema=_text_schema(schema), unexpected_field_behavior="error")
    table = pyarrow.json.read_json(pa.BufferReader(block), parse_options=options)
    return [_typed(batch, schema) for batch in table.combine_chunks().to_batches()]


def _read_parquet(file: BinaryIO, schema: RowSchema) -> Iterator[pa.RecordBatch]:
    # A Parquet file is read from its end, so standard input must be read completely first.
    source = file if file.seekable() else pa.BufferReader(file.read())
    for batch in pyarrow.parquet.ParquetFile(source).iter_batches():
        yield _typed(batch, schema)


def _read_arrow(file: BinaryIO, schema: RowSchema) -> Iterator[pa.RecordBatch]:
    source = pa.BufferReader(file.read())
    if source.read(len(_ARROW_FILE_MAGIC)) == _ARROW_FILE_MAGIC:
        source.seek(0)
        reader = pyarrow.ipc.open_file(source)
        batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
    else:
        source.seek(0)
        batches = iter(pyarrow.ipc.open_stream(source))
    for batch in batches:
        yield _typed(batch, schema)


FORMATS: dict[str, Callable[[BinaryIO, RowSchema], Iterator[pa.RecordBatch]]] = {
    "csv": _read_csv,
    "jsonl": _read_json_lines,
    "parquet": _read_parquet,
    "arrow": _read_arrow,
}
_SUFFIXES = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
}


def _text_schema(schema: RowSchema) -> pa.Schema:
    """Return the types with which Arrow reads the text formats. `_typed` then converts them to the schema's types."""
    as_text = (pa.date32(), pa.binary())
    return pa.schema(
        [(column.name, pa.string() if column.type in as_text else column.type) for column in schema.columns]
    )


def _typed(batch: pa.RecordBatch, schema: RowSchema) -> pa.RecordBatch:
    """Return the rows with the column types of the schema."""
    columns = [converted(batch.column(name), schema.column(name).type) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def converted(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert values to a type. Texts for binary columns are base64."""
    if pa.types.is_binary(target) and pa.types.is_string(values.type):
        return pa.array(
            [None if text is None else base64.b64decode(text, validate=True) for text in values.to_pylist()], target
        )
    return values.cast(target)


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
