"""Rows in JSON, one object on each line, for clients without YSON.

For strings see `json_values`. JSON numbers do not show whether they are unsigned, and a double may be written without a
point; the column's type determines both.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.json

from headrace_ytsaurus.wire.types import YtColumn, type_parts, untagged
from headrace_ytsaurus.wire.yson.documents import MAX_SIZE, YsonError
from headrace_ytsaurus.wire.yson.json_values import USUAL, JsonStyle, restored
from headrace_ytsaurus.wire.yson.pieces import Pieces
from headrace_ytsaurus.wire.yson.rows_decoding import Decoded, decoded_rows
from headrace_ytsaurus.wire.yson.rows_encoding import Block, encode_blocks
from headrace_ytsaurus.wire.yson.text_cells import Notation, text_cells

_WHITE: Final = " \t\r\n"
_SMALL_BLOCK: Final = 1 << 16


def encode_json_rows(
    rows: pa.RecordBatch,
    columns: Sequence[YtColumn],
    *,
    encode_utf8: bool = True,
    absent: pa.BooleanArray | None = None,
) -> bytes:
    """Encode rows as lines; for the arguments see `rows_encoding.encode_rows`.

    Raises:
        SchemaError: a column is missing or has another type, or YTsaurus' type or JSON cannot represent a value; the
            message names column and row.
    """
    notation = Notation(json=True, encode_utf8=encode_utf8)

    def encode_block(block: Block, size: int, first_row: int) -> Pieces:
        pieces = Pieces(size)
        for place, (column, values) in enumerate(block):
            name = column.name.encode().decode("latin-1") if encode_utf8 else column.name
            name = "$" + name if name.startswith("$") else name
            pieces.constant(b"," if place else b"{")
            pieces.constant(json.dumps(name, ensure_ascii=False).encode() + b":")
            pieces.array(text_cells(values, column, first_row, notation).fill_null(b"null"))
        pieces.constant(b"}\n" if block else b"{}\n")
        return pieces

    return encode_blocks(rows, columns, encode_block, absent, b"null\n")


def decode_json_rows(data: bytes, columns: Sequence[YtColumn], style: JsonStyle = USUAL) -> pa.RecordBatch:
    """Decode rows with the columns in this order; missing values are null, and other columns are ignored.

    Raises:
        YsonError: the bytes are not JSON, or not rows.
        SchemaError: a value does not fit its column; the message names column and row.
    """
    found = _read_fast(data, columns, style.encode_utf8) if data and columns else None
    return read_json_rows(data, columns, style).rows if found is None else found


def read_json_rows(data: bytes, columns: Sequence[YtColumn], style: JsonStyle = USUAL) -> Decoded:
    """Decode rows, with information on missing values and unknown columns; slower.

    Raises:
        YsonError: the bytes are not JSON, or not rows.
        SchemaError: a value does not fit its column; the message names column and row.
    """
    if len(data) > MAX_SIZE:
        raise YsonError("JSON of too many bytes", received=len(data), valid=f"at most {MAX_SIZE}")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise YsonError("JSON that is not UTF-8") from None
    decoder, rows, at = json.JSONDecoder(), [], _behind_white(text, 0)
    while at < len(text):
        try:
            row, at = decoder.raw_decode(text, at)
            rows.append(restored(row, style))
        except (ValueError, RecursionError) as error:
            if isinstance(error, YsonError):
                raise
            raise YsonError(f"broken JSON in row {len(rows)}", received=str(error)[:100]) from None
        at = _behind_white(text, at)
    return decoded_rows(rows, columns, whole_doubles=True)


def _behind_white(text: str, at: int) -> int:
    while at < len(text) and text[at] in _WHITE:
        at += 1
    return at


def _read_fast(data: bytes, columns: Sequence[YtColumn], encode_utf8: bool) -> pa.RecordBatch | None:
    """Decode rows with Arrow's parser; None if it is not exact for them, or fails."""
    fields = []
    for column in columns:
        kind = _parsed_as(column)
        if kind is None or column.name.startswith("$"):
            return None
        name = column.name.encode().decode("latin-1") if encode_utf8 else column.name
        fields.append(pa.field(name, kind))
    options = pa.json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")
    reading = pa.json.ReadOptions(use_threads=False, block_size=max(_SMALL_BLOCK, len(data) + 1))
    try:
        table = pa.json.read_json(io.BytesIO(data), read_options=reading, parse_options=options)
        arrays = [_as_column(table.column(place), column, encode_utf8) for place, column in enumerate(columns)]
    except pa.ArrowException:
        return None
    if any(array is None for array in arrays):
        return None
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([(column.name, column.type) for column in columns]))


def _parsed_as(column: YtColumn) -> pa.DataType | None:
    """Return the type as which Arrow reads a column exactly."""
    name, _ = type_parts(untagged(column.yt))
    if name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        return getattr(pa, name)()
    return {"double": pa.float64(), "bool": pa.bool_(), "string": pa.string(), "utf8": pa.string()}.get(name)


def _as_column(values: pa.ChunkedArray, column: YtColumn, encode_utf8: bool) -> pa.Array | None:
    array = values.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], type=values.type)
    if not pa.types.is_string(array.type):
        return array.cast(column.type)
    array.validate(full=True)
    if encode_utf8:
        array = _as_bytes(array)
    return None if array is None else array.cast(column.type)


def _as_bytes(array: pa.StringArray) -> pa.Array | None:
    """Return each code point as one byte; None if a code point is greater than 255."""
    valid, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
    text = np.frombuffer(data or b"", dtype=np.uint8)[: ends[-1]]
    if (text < 0x80).all():
        return array.cast(pa.binary())
    if (text > 0xC3).any():
        return None
    leads = np.flatnonzero(text >= 0xC0)
    joined = text.copy()
    joined[leads] = (text[leads] & 3) << 6 | (text[leads + 1] & 0x3F)
    kept = (text & 0xC0) != 0x80
    places = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(kept)))[ends].astype(np.int32)
    if array.offset:
        array = pa.concat_arrays([array])
        valid = array.buffers()[0]
    return pa.Array.from_buffers(
        pa.binary(), len(array), [valid, pa.py_buffer(places), pa.py_buffer(np.ascontiguousarray(joined[kept]))]
    )
