"""Arrow columns as texts of JSON, column by column: no step works row by row.

Texts of ISO 8601, numbers and nested arrays are as Spark's ``from_json`` reads them. Numbers that JSON does not have
(NaN, infinity) are strings, as Spark and Debezium write them. Binaries are in base64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UnsupportedError
from headrace.model.tables.json_forms import Decimals, JsonForm
from headrace.model.types import type_name

_TO_ESCAPE: Final = '["\\\\\x00-\x1f]'
_ESCAPED_BYTES: Final = np.zeros(256, np.bool_)
_ESCAPED_BYTES[[*range(0x20), ord('"'), ord("\\")]] = True
_SHORT: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_LONG: Final = {chr(code): f"\\u{code:04x}" for code in range(0x20) if chr(code) not in _SHORT}
_PADDING: Final = ord("=")
_DECIMAL_BYTES: Final = 16


def objects(columns: Mapping[str, pa.Array], rows: int) -> pa.StringArray:
    """Return one object for each row.

    Args:
        columns: the texts of values, as `json_texts` returns them, by the names of the fields.
        rows: the number of rows.
    """
    if not columns:
        return pa.repeat(pa.scalar("{}"), rows)
    pieces: list[pa.Array | pa.Scalar] = []
    for name, texts in columns.items():
        pieces += [pa.scalar(f"{',' if pieces else '{'}{json.dumps(name, ensure_ascii=False)}:"), texts]
    return pc.binary_join_element_wise(*pieces, pa.scalar("}"), pa.scalar(""))


def json_texts(values: pa.Array, form: JsonForm) -> pa.StringArray:
    """Return each value as JSON; a null is the text ``null``.

    Raises:
        UnsupportedError: the type of the values has no form in JSON.
    """
    return pc.fill_null(_texts(values, form), "null")


def quoted(texts: pa.StringArray) -> pa.StringArray:
    """Return texts as strings of JSON; nulls stay null."""
    return _in_quotes(_escaped(texts))


def iso_times(values: pa.TimestampArray) -> pa.StringArray:
    """Return timestamps in µs as ``2024-02-29T12:00:00.5``, with as many digits as each needs, and ``Z`` for UTC."""
    local = values.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
    trimmed = pc.ascii_rtrim(pc.ascii_rtrim(local, "0"), ".")
    zone = "Z" if values.type.tz else ""
    return pc.binary_join_element_wise(pc.replace_substring(trimmed, " ", "T"), zone, "")


def _texts(values: pa.Array, form: JsonForm) -> pa.StringArray:
    kind = values.type
    if pa.types.is_string(kind):
        return quoted(values)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return values.cast(pa.string())
    if pa.types.is_floating(kind):
        return _numbers(values)
    if pa.types.is_decimal128(kind):
        return _decimals(values, form.decimals)
    if pa.types.is_binary(kind):
        return _in_quotes(base64_texts(values))
    if pa.types.is_date32(kind):
        return values.view(pa.int32()).cast(pa.string()) if form.debezium else _in_quotes(values.cast(pa.string()))
    if pa.types.is_timestamp(kind):
        if form.debezium and kind.tz is None:
            return values.view(pa.int64()).cast(pa.string())
        return _in_quotes(iso_times(values))
    if pa.types.is_list(kind):
        return _arrays(values, form)
    raise UnsupportedError("values of this type have no form in JSON", received=type_name(kind))


def _in_quotes(texts: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _escaped(texts: pa.StringArray) -> pa.StringArray:
    # A look at all bytes takes a tenth of the time of the expression.
    if not _ESCAPED_BYTES[_bytes(texts)].any():
        return texts
    found = pc.fill_null(pc.match_substring_regex(texts, _TO_ESCAPE), False)
    part = texts.filter(found)
    for character, escape in _SHORT.items():
        part = pc.replace_substring(part, character, escape)
    if pc.any(pc.match_substring_regex(part, "[\x00-\x1f]")).as_py():
        for character, escape in _LONG.items():
            part = pc.replace_substring(part, character, escape)
    return pc.replace_with_mask(texts, found, part)


def _numbers(values: pa.FloatingPointArray) -> pa.StringArray:
    texts = values.cast(pa.string())
    if pc.all(pc.is_finite(values), min_count=0).as_py():
        return texts
    names = pc.if_else(pc.is_nan(values), '"NaN"', pc.if_else(pc.greater(values, 0), '"Infinity"', '"-Infinity"'))
    return pc.if_else(pc.is_finite(values), texts, names)


def _decimals(values: pa.Decimal128Array, form: Decimals) -> pa.StringArray:
    if form is not Decimals.PRECISE:
        texts = values.cast(pa.string())
        return texts if form is Decimals.DOUBLE else _in_quotes(texts)
    count = len(values)
    stored = np.frombuffer(values.buffers()[1], np.uint8)[_DECIMAL_BYTES * values.offset :]
    digits = np.ascontiguousarray(stored[: _DECIMAL_BYTES * count].reshape(count, _DECIMAL_BYTES)[:, ::-1])
    # The bytes of the sign before another byte with the same sign are not needed.
    signs = digits >> 7
    needless = (digits[:, :-1] == np.where(signs[:, :1], 255, 0)) & (signs[:, 1:] == signs[:, :1])
    first = np.logical_and.accumulate(needless, axis=1).sum(axis=1, dtype=np.int64)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.where(valid, _DECIMAL_BYTES - first, 0)
    starts = np.arange(0, _DECIMAL_BYTES * count, _DECIMAL_BYTES) + first
    return _in_quotes(_base64(digits.reshape(-1), starts, lengths, valid))


def base64_texts(values: pa.BinaryArray) -> pa.StringArray:
    """Return binaries in base64; nulls stay null."""
    if len(values) == 0:
        # Arrow may have no offsets.
        return pa.array([], pa.string())
    filled = pc.fill_null(values, b"")
    offsets = _offsets(filled).astype(np.int64)
    starts = offsets[:-1] - offsets[0]
    return _base64(_bytes(filled), starts, np.diff(offsets), values.is_valid().to_numpy(zero_copy_only=False))


def _offsets(values: pa.StringArray | pa.BinaryArray) -> npt.NDArray[np.int32]:
    return np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]


def _bytes(values: pa.StringArray | pa.BinaryArray) -> npt.NDArray[np.uint8]:
    """Return the bytes of all values, one value after the other."""
    buffer = values.buffers()[2]
    if buffer is None or len(values) == 0:
        return np.empty(0, np.uint8)
    offsets = _offsets(values)
    return np.frombuffer(buffer, np.uint8)[offsets[0] : offsets[-1]]


def _base64(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    valid: npt.NDArray[np.bool_],
) -> pa.StringArray:
    """Return byte ranges of a buffer in base64: all of them at once, each filled up to a multiple of three bytes."""
    groups = (lengths + 2) // 3
    ends = np.cumsum(groups)
    padded = np.zeros(3 * int(ends[-1]) if len(ends) else 0, np.uint8)
    into = 3 * (ends - groups)
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    padded[np.repeat(into, lengths) + within] = data[np.repeat(starts, lengths) + within]
    encoded = np.frombuffer(base64.b64encode(padded.data), np.uint8).copy()
    encoded[4 * ends[lengths % 3 != 0] - 1] = _PADDING
    encoded[4 * ends[lengths % 3 == 1] - 2] = _PADDING
    offsets = np.concatenate([[0], 4 * ends]).astype(np.int32)
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(encoded)]
    return pa.Array.from_buffers(pa.string(), len(lengths), buffers)


def _arrays(values: pa.ListArray, form: JsonForm) -> pa.StringArray:
    elements = json_texts(values.flatten(), form)
    lengths = pc.fill_null(values.value_lengths(), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), elements), ",")
    texts = pc.binary_join_element_wise("[", joined, "]", "")
    return texts if values.null_count == 0 else pc.if_else(values.is_valid(), texts, pa.scalar(None, pa.string()))
