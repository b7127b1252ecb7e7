"""Encoding of rows from Arrow to YSON, for writes to a cluster and for answers of the endpoint.

Rows become a list fragment of maps with one item for each column, in the order of the columns; null is ``#``. There is
no loop over rows, except for composite types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.errors import SchemaError
from headrace_ytsaurus.wire.types import RANGES, UNSIGNED, YtColumn, carried_as_yson, type_parts, untagged
from headrace_ytsaurus.wire.yson.conversion_errors import conversion_error
from headrace_ytsaurus.wire.yson.documents import YsonError, dumps, loads
from headrace_ytsaurus.wire.yson.message import Effort, Marker, Mask, Message, UnusualError, zigzag
from headrace_ytsaurus.wire.yson.nesting import value_ends
from headrace_ytsaurus.wire.yson.numbers import check_uuids, decimal_bytes, whole_numbers
from headrace_ytsaurus.wire.yson.pieces import Pieces
from headrace_ytsaurus.wire.yson.python_values import as_values, decimal_width
from headrace_ytsaurus.wire.yson.text_cells import Notation, text_cells

Block: TypeAlias = Sequence[tuple[YtColumn, pa.Array]]
"""Columns, and their values in a block of rows."""

_BINARY: Final = pa.large_binary()
# Rows in one block. The state of a block should fit into the processor's cache.
_BLOCK: Final = 16_384


def encode_rows(rows: pa.RecordBatch, columns: Sequence[YtColumn], *, text: bool = False) -> bytes:
    """Encode rows as a list fragment.

    Args:
        rows: rows with these columns in their Arrow types; other columns are ignored.
        columns: the columns to write, in this order.
        text: write text YSON, one row on each line, instead of binary.

    Raises:
        SchemaError: a column is missing or has another type, or a value does not fit the type in YTsaurus; the message
            names column and row.
    """

    def encode_block(block: Block, size: int, first_row: int) -> Pieces:
        return _text_pieces(block, size, first_row) if text else _binary_pieces(block, size, first_row)

    return encode_blocks(rows, columns, encode_block)


def encode_blocks(
    rows: pa.RecordBatch, columns: Sequence[YtColumn], encode_block: Callable[[Block, int, int], Pieces]
) -> bytes:
    """Encode rows in blocks.

    Args:
        encode_block: encodes a block, from its columns, its number of rows, and the number of its first row.

    Raises:
        SchemaError: a column is missing or has another type, or ``encode_block`` raises it.
    """
    whole = [(column, _column(rows, column)) for column in columns]
    texts = []
    for first in range(0, rows.num_rows, _BLOCK):
        size = min(_BLOCK, rows.num_rows - first)
        block = [(column, values.slice(first, size)) for column, values in whole]
        texts.append(_as_bytes(encode_block(block, size, first).joined()))
    return b"".join(texts)


def _as_bytes(texts: pa.LargeBinaryArray) -> bytes:
    """Concatenate texts that are not null."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[[texts.offset, texts.offset + len(texts)]]
    return b"" if data is None else bytes(data[int(ends[0]) : int(ends[1])])


def _column(rows: pa.RecordBatch, column: YtColumn) -> pa.Array:
    """Return the values of a column, or raise an error if it is missing or has another type."""
    place = rows.schema.get_field_index(column.name)
    if place < 0:
        raise SchemaError(f"the rows do not have column {column.name!r}", received=rows.schema.names)
    values = rows.column(place)
    if values.type != column.type:
        raise SchemaError(
            f"the rows have another type in column {column.name!r}", received=values.type, valid=str(column.type)
        )
    return values


def _text_pieces(block: Block, size: int, first_row: int) -> Pieces:
    pieces = Pieces(size)
    pieces.constant(b"{")
    for column, values in block:
        pieces.constant(dumps(column.name) + b"=")
        pieces.array(text_cells(values, column, first_row, Notation()).fill_null(b"#"))
        pieces.constant(b";")
    pieces.constant(b"};\n")
    return pieces


def _binary_pieces(block: Block, size: int, first_row: int) -> Pieces:
    pieces = Pieces(size)
    pieces.constant(b"{")
    for column, values in block:
        pieces.constant(dumps(column.name, text=False) + b"=")
        if values.null_count == size:
            pieces.constant(b"#")
        elif values.null_count == 0:
            _add_values(pieces, values, column, np.ones(size, dtype=np.bool_), first_row)
        else:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            pieces.begin(valid)
            _add_values(pieces, values, column, valid, first_row)
            pieces.begin(~valid)
            pieces.constant(b"#")
            pieces.begin(None)
        pieces.constant(b";")
    pieces.constant(b"};")
    return pieces


def _add_values(pieces: Pieces, values: pa.Array, column: YtColumn, valid: Mask, first_row: int) -> None:
    """Add the values of a column; bytes for null are undefined."""
    name, parts = type_parts(untagged(column.yt))
    if carried_as_yson(column.yt, values.type):
        pieces.array(_checked_yson(values, column, first_row))
    elif name in RANGES:
        numbers = whole_numbers(values, column, name, valid, first_row)
        pieces.constant(bytes([Marker.UINT if name in UNSIGNED else Marker.INT]))
        pieces.varints(numbers.view(np.uint64) if name in UNSIGNED else zigzag(numbers))
    elif name in ("double", "float"):
        doubles = values.fill_null(0.0) if values.null_count else values
        pieces.constant(bytes([Marker.DOUBLE]))
        pieces.fixed(doubles.to_numpy(zero_copy_only=False).astype("<f8", copy=False))
    elif name == "bool":
        flags = values.fill_null(False) if values.null_count else values
        pieces.fixed(flags.to_numpy(zero_copy_only=False).astype(np.uint8) + np.uint8(Marker.FALSE))
    elif name == "decimal":
        width = decimal_width(parts["precision"])
        pieces.constant(bytes([Marker.STRING, width << 1]))
        pieces.fixed(decimal_bytes(values, width))
    elif name in ("string", "utf8", "json", "uuid"):
        _add_strings(pieces, values, column, name, first_row)
    else:
        found = [None if one is None else dumps(one, text=False) for one in as_values(values, column, first_row)]
        pieces.array(pa.array(found, type=_BINARY))


def _add_strings(pieces: Pieces, values: pa.Array, column: YtColumn, name: str, first_row: int) -> None:
    texts = values.fill_null("" if pa.types.is_string(values.type) else b"") if values.null_count else values
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    lengths = np.diff(offsets).astype(np.int64)
    if name == "uuid":
        check_uuids(values, column, first_row)
    pieces.constant(bytes([Marker.STRING]))
    pieces.varints((lengths << 1).view(np.uint64))
    pieces.array(texts)


def _checked_yson(values: pa.Array, column: YtColumn, first_row: int) -> pa.Array:
    """Return YSON values; raise an error unless each is one value without attributes."""
    cells = values.drop_null().cast(_BINARY)
    data = _as_bytes(cells)
    ends = np.frombuffer(cells.buffers()[1], dtype=np.int64)[cells.offset : cells.offset + len(cells) + 1]
    ends = ends - ends[0]
    try:
        message = Message(data)
        if (value_ends(message, ends[:-1], ends[1:], Effort(message.size)) == ends[1:]).all() and b"<" not in data:
            return values
    except UnusualError:
        pass
    # Some values are text YSON, or malformed.
    for row, value in enumerate(values.to_pylist()):
        if value is not None:
            try:
                loads(value)
            except YsonError as error:
                raise conversion_error(column, first_row + row, f"{error.problem}: {error.received}") from None
            if value.lstrip().startswith(b"<"):
                raise conversion_error(column, first_row + row, "a value with attributes")
    return values
