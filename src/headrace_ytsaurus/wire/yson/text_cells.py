"""The values of a column in text YSON, or in YTsaurus' JSON (see `json_values`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace_ytsaurus.wire.types import RANGES, UNSIGNED, YtColumn, carried_as_yson, type_parts, untagged
from headrace_ytsaurus.wire.yson.conversion_errors import conversion_error
from headrace_ytsaurus.wire.yson.documents import YsonError, dumps
from headrace_ytsaurus.wire.yson.json_values import JsonStyle, plain
from headrace_ytsaurus.wire.yson.message import Bytes, Places
from headrace_ytsaurus.wire.yson.numbers import check_uuids, decimal_bytes, whole_numbers
from headrace_ytsaurus.wire.yson.python_values import as_values, decimal_width

_BINARY: Final = pa.large_binary()
# Escapes in strings of YSON and JSON.
_NAMED: Final = {ord('"'): b'\\"', ord("\\"): b"\\\\", ord("\n"): b"\\n", ord("\r"): b"\\r", ord("\t"): b"\\t"}


@dataclass(frozen=True)
class Notation:
    """The notation: text YSON, JSON with one code point for each byte of a string, or JSON with strings in UTF-8."""

    json: bool = False
    encode_utf8: bool = True


def text_cells(values: pa.Array, column: YtColumn, first_row: int, notation: Notation) -> pa.LargeBinaryArray:
    """Return values as text; null stays null.

    Raises:
        SchemaError: YTsaurus' type or JSON cannot represent a value; ``first_row`` is added to the row in the message.
    """
    name, parts = type_parts(untagged(column.yt))
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    if name in RANGES:
        numbers = pa.array(whole_numbers(values, column, name, valid, first_row), mask=~valid)
        texts = numbers.cast(pa.string()).cast(_BINARY)
        if notation.json or name not in UNSIGNED:
            return texts
        return pc.binary_join_element_wise(texts, pa.scalar(b"u", _BINARY), pa.scalar(b"", _BINARY))
    if name in ("double", "float"):
        return _doubles(values.cast(pa.float64()), column, first_row, notation.json)
    if name == "bool":
        yes, no = (b"true", b"false") if notation.json else (b"%true", b"%false")
        return pc.if_else(values, pa.scalar(yes, _BINARY), pa.scalar(no, _BINARY))
    if name == "decimal":
        width = decimal_width(parts["precision"])
        return _strings(_fixed(decimal_bytes(values, width), width, values), column, first_row, notation)
    if name in ("string", "utf8", "json", "uuid") and not carried_as_yson(column.yt, values.type):
        if name == "uuid":
            check_uuids(values, column, first_row)
        return _strings(values.cast(_BINARY), column, first_row, notation)
    found = as_values(values, column, first_row)
    if notation.json:
        return _as_json(found, column, first_row, notation)
    return pa.array([None if one is None else dumps(one) for one in found], type=_BINARY)


def _as_json(values: list[Any], column: YtColumn, first_row: int, notation: Notation) -> pa.Array:
    written: list[bytes | None] = [None] * len(values)
    for row, value in enumerate(values):
        if value is not None:
            try:
                found = plain(value, JsonStyle(encode_utf8=notation.encode_utf8))
                written[row] = json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
            except YsonError as error:
                raise conversion_error(column, first_row + row, str(error)) from None
            except ValueError:
                raise conversion_error(column, first_row + row, "infinity or no number, which JSON has not") from None
    return pa.array(written, type=_BINARY)


def _doubles(values: pa.Array, column: YtColumn, first_row: int, as_json: bool) -> pa.Array:
    texts = values.cast(pa.string())
    if not pc.all(pc.is_finite(values), min_count=0).as_py():
        if as_json:
            wrong = pc.index(pc.is_finite(values), False).as_py()
            raise conversion_error(column, first_row + wrong, f"{values[wrong].as_py()}, for which JSON has no number")
        for found, word in (("nan", "%nan"), ("-inf", "%-inf"), ("inf", "%inf")):
            texts = pc.if_else(pc.equal(texts, found), word, texts)
    # Without a point or an exponent the text would be a whole number.
    whole = pc.invert(pc.match_substring_regex(texts, "[.e%]"))
    return pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts).cast(_BINARY)


def _strings(values: pa.Array, column: YtColumn, first_row: int, notation: Notation) -> pa.Array:
    """Return quoted strings."""
    _, text = _content(values)
    found = np.flatnonzero(np.bincount(text, minlength=256)).tolist()
    # The backslash is first, because the other escapes add backslashes.
    for byte in sorted(found, key=lambda byte: byte != ord("\\")):
        if byte < 0x20 or byte in _NAMED:
            escaped = _NAMED.get(byte, b"\\u%04x" % byte if notation.json else b"\\x%02x" % byte)
            values = pc.replace_substring(values, pattern=bytes([byte]), replacement=escaped)
    if notation.json and found and found[-1] > 0x7F:
        if notation.encode_utf8:
            values = _code_points(values)
        else:
            try:
                values.cast(pa.large_string())
            except pa.ArrowInvalid:
                # The slower conversion names the string that is not UTF-8.
                return _as_json(values.to_pylist(), column, first_row, notation)
    quote = pa.scalar(b'"', _BINARY)
    return pc.binary_join_element_wise(quote, values, quote, pa.scalar(b"", _BINARY))


def _content(values: pa.LargeBinaryArray) -> tuple[Places, Bytes]:
    """Return the offsets of the values, and their bytes."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[values.offset : values.offset + len(values) + 1]
    return ends - ends[0], np.frombuffer(data or b"", dtype=np.uint8)[ends[0] : ends[-1]]


def _code_points(values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Return each byte as a code point, in UTF-8."""
    ends, text = _content(values)
    lengths = 1 + (text > 0x7F)
    places = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))
    spread = np.repeat(text, lengths)
    high = np.flatnonzero(text > 0x7F)
    spread[places[high]] = 0xC0 | text[high] >> 6
    spread[places[high] + 1] = 0x80 | text[high] & 0x3F
    valid = values.is_valid().buffers()[1]
    return pa.LargeBinaryArray.from_buffers(
        _BINARY, len(values), [valid, pa.py_buffer(places[ends]), pa.py_buffer(spread)]
    )


def _fixed(data: np.ndarray[Any, Any], width: int, values: pa.Array) -> pa.Array:
    """Return bytes of one length as an Arrow array with the nulls of the values."""
    array = pa.Array.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(np.ascontiguousarray(data))])
    return pc.if_else(values.is_valid(), array.cast(_BINARY), pa.scalar(None, _BINARY))
