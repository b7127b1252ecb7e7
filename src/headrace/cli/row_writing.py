"""Writing rows as CSV, JSON lines, Parquet or Arrow, in the forms that `headrace.cli.row_files` reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from headrace.cli.file_formats import ARROW_STREAM_SUFFIX, COMPRESSIONS, STANDARD, TABS_SUFFIX
from headrace.cli.output import to_json
from headrace.errors import SchemaError
from headrace.model.tables.json_forms import Decimals, JsonForm
from headrace.model.types import type_name
from headrace.rows.json_rows import with_objects
from headrace.rows.json_texts import base64_texts, json_texts, objects
from headrace.rows.shown_values import shown_rows

_JSON = JsonForm(decimals=Decimals.STRING)


def write_rows(
    file: BinaryIO, path: str, file_format: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> int:
    """Write rows to an open file; return their number.

    Args:
        path: the name of the file, whose suffix chooses the stream format of Arrow (``.arrows``, and standard output)
            and tabs in CSV (``.tsv``).

    Raises:
        SchemaError: a column has a type that the format does not have.
    """
    plain = path.removesuffix(next((end for end in COMPRESSIONS if path.endswith(end)), ""))
    match file_format:
        case "csv":
            return _write_csv(file, "\t" if plain.endswith(TABS_SUFFIX) else ",", schema, batches)
        case "jsonl":
            return _write_json_lines(file, schema, batches)
        case "parquet":
            with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
                return _write_batches(writer, batches)
        case _:
            stream = path == STANDARD or plain.endswith(ARROW_STREAM_SUFFIX)
            opened = pyarrow.ipc.new_stream(file, schema) if stream else pyarrow.ipc.new_file(file, schema)
            with opened as writer:
                return _write_batches(writer, batches)


def _write_batches(writer: pa.RecordBatchWriter | pa.parquet.ParquetWriter, batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    for batch in batches:
        writer.write_batch(batch)
        rows += batch.num_rows
    return rows


def _write_csv(file: BinaryIO, separator: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    without = [field for field in schema if pa.types.is_nested(field.type) or pa.types.is_duration(field.type)]
    if without:
        raise SchemaError(
            "CSV has no form for some columns",
            received=", ".join(f"{field.name} {type_name(field.type)}" for field in without),
            remedy="leave them out with --columns, or choose another format: jsonl, parquet or arrow",
        )
    texts = pa.schema([field.with_type(pa.string()) if pa.types.is_binary(field.type) else field for field in schema])
    rows, options = 0, pyarrow.csv.WriteOptions(delimiter=separator)
    with pyarrow.csv.CSVWriter(file, texts, write_options=options) as writer:
        for batch in batches:
            columns = [base64_texts(each) if pa.types.is_binary(each.type) else each for each in batch.columns]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=texts))
            rows += batch.num_rows
    return rows


def _write_json_lines(file: BinaryIO, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    by_column = all(_has_json_text(field.type) for field in schema)
    rows = 0
    for batch in batches:
        if by_column and batch.num_rows:
            texts = {name: json_texts(values, _JSON) for name, values in zip(schema.names, batch.columns, strict=True)}
            lines = objects(texts, batch.num_rows).to_pylist()
        else:
            lines = [to_json(row) for row in with_objects(shown_rows(batch), schema)]
        if lines:
            file.write(("\n".join(lines) + "\n").encode())
        rows += batch.num_rows
    return rows


def _has_json_text(data_type: pa.DataType) -> bool:
    """Return whether `json_texts` has a form for a type; objects and intervals are written row by row."""
    if pa.types.is_list(data_type):
        return _has_json_text(data_type.value_type)
    return not (pa.types.is_nested(data_type) or pa.types.is_duration(data_type))
