"""Rows in JSON, one object on each line, for clients without YSON.

For strings see `json_values`. JSON numbers do not show whether they are unsigned, and a double may be written without a
point; the column's type determines both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson.documents import MAX_SIZE, YsonError
from headrace_ytsaurus.wire.yson.json_values import USUAL, JsonStyle, restored
from headrace_ytsaurus.wire.yson.pieces import Pieces
from headrace_ytsaurus.wire.yson.rows_decoding import Decoded, decoded_rows
from headrace_ytsaurus.wire.yson.rows_encoding import Block, encode_blocks
from headrace_ytsaurus.wire.yson.text_cells import Notation, text_cells

_WHITE: Final = " \t\r\n"


def encode_json_rows(rows: pa.RecordBatch, columns: Sequence[YtColumn], *, encode_utf8: bool = True) -> bytes:
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

    return encode_blocks(rows, columns, encode_block)


def read_json_rows(data: bytes, columns: Sequence[YtColumn], style: JsonStyle = USUAL) -> Decoded:
    """Decode rows, with information on missing values and unknown columns.

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
