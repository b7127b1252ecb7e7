"""The values of one column as an Arrow array, from PostgreSQL's text formats.

The session must use the settings ``DateStyle = 'ISO'``, ``TimeZone = 'UTC'`` and ``bytea_output = 'hex'``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UnsupportedError
from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.errors import PgOutputError, value_error

_INFINITE: Final = pa.array(["infinity", "-infinity"])
_TIMES: Final = frozenset({types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ})
# The places of hexadecimal digits: their values, and 255 for other bytes.
_DIGITS: Final = np.full(256, 255, np.uint8)
_DIGITS[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_DIGITS[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)
# The elements of an array of boxes have a delimiter of their own.
_DELIMITERS: Final = {types.BOXES: ";"}
_ELEMENTS: Final = {
    delimiter: re.compile(rf'"((?:[^"\\]|\\.)*)"|([^{{}}{delimiter}"]+)', re.DOTALL) for delimiter in ",;"
}
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_REMEDY: Final = "replace the value in the table, or exclude the column from the publication"


def from_texts(texts: pa.StringArray, oid: int, data_type: pa.DataType, column: str) -> pa.Array:
    """Return values in text format as another type.

    Raises:
        PgOutputError: a text is not a value of this type.
        SchemaError: a value does not fit ``data_type``.
    """
    if pa.types.is_list(data_type):
        return _arrays(texts, oid, data_type, column)
    if oid in _TIMES:
        found = pc.filter(texts, pc.is_in(texts, _INFINITE))
        if len(found):
            raise value_error(column, found[0].as_py(), "finite dates and timestamps", _REMEDY)
    if oid == types.BYTEA and pa.types.is_binary(data_type):
        return _binaries(texts, column)
    if pa.types.is_string(data_type):
        return as_cast(texts, oid)
    if pa.types.is_boolean(data_type):
        return pc.equal(texts, "t")
    if oid == types.TIME and pa.types.is_duration(data_type):
        texts = texts.cast(pa.time64("us")).view(pa.int64())
    try:
        return texts.cast(data_type)
    except pa.ArrowNotImplementedError:
        raise UnsupportedError(
            f"column {column!r} has a type that the decoder does not convert",
            received=f"type {oid} of PostgreSQL in text format, as {data_type}",
        ) from None
    except pa.ArrowInvalid as error:
        raise value_error(column, str(error)[:200], str(data_type), _REMEDY) from None


def as_cast(texts: pa.StringArray, oid: int) -> pa.StringArray:
    """Return texts as a cast to ``text`` gives them: of some types, the log has other texts."""
    if oid == types.BPCHAR:
        return pc.ascii_rtrim(texts, " ")
    if oid == types.INET:
        # The log leaves out the length of the network of a single address.
        whole = pc.if_else(pc.match_substring(texts, ":"), "/128", "/32")
        return pc.binary_join_element_wise(texts, pc.if_else(pc.match_substring(texts, "/"), "", whole), "")
    return texts


def without_zeros(times: pa.StringArray) -> pa.StringArray:
    """Return times of Arrow, with six digits after the point, as PostgreSQL writes them."""
    return pc.ascii_rtrim(pc.ascii_rtrim(times, "0"), ".")


def _binaries(texts: pa.StringArray, column: str) -> pa.BinaryArray:
    """Return the bytes of texts such as ``\\xdeadbeef``."""
    error = PgOutputError(f"a value of column {column!r} is not hexadecimal", valid="bytea_output = 'hex'")
    if not pc.all(pc.starts_with(texts, "\\x"), min_count=0).as_py():
        raise error
    lengths = pc.fill_null(pc.binary_length(texts), 2).to_numpy(zero_copy_only=False).astype(np.int64) - 2
    joined = "".join(pc.fill_null(pc.utf8_slice_codeunits(texts, 2), "").to_pylist()).encode()
    digits = _DIGITS[np.frombuffer(joined, np.uint8)]
    if (lengths % 2).any() or (digits > 15).any():
        raise error
    data = digits[0::2] << 4 | digits[1::2]
    offsets = np.concatenate([[0], np.cumsum(lengths // 2)]).astype(np.int32)
    bitmap = None if texts.null_count == 0 else pc.is_valid(texts).buffers()[1]
    return pa.Array.from_buffers(
        pa.binary(), len(texts), [bitmap, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )


def _arrays(texts: pa.StringArray, oid: int, data_type: pa.ListType, column: str) -> pa.Array:
    """Return arrays in text format, one by one: only tables with unusual types are read in this format."""
    element, delimiter = types.ARRAYS.get(oid, types.UNKNOWN), _DELIMITERS.get(oid, ",")
    elements: list[str | None] = []
    lengths = []
    for text in texts.to_pylist():
        before = len(elements)
        elements.extend(() if text is None else _elements(text, delimiter, column))
        lengths.append(len(elements) - before)
    values = from_texts(pa.array(elements, pa.string()), element, data_type.value_type, column)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    bitmap = None if texts.null_count == 0 else pc.is_valid(texts).buffers()[1]
    return pa.Array.from_buffers(data_type, len(texts), [bitmap, pa.py_buffer(offsets)], children=[values])


def _elements(text: str, delimiter: str, column: str) -> Iterator[str | None]:
    """Yield the elements of an array such as ``{1,NULL,"a b"}``."""
    # An array whose index does not begin at 1 has its bounds before it.
    content = text[text.find("=") + 1 :] if text.startswith("[") else text
    if len(content) < 2 or content[0] != "{" or content[-1] != "}":
        raise PgOutputError(f"a value of column {column!r} is not an array")
    at, last = 1, len(content) - 1
    while at < last:
        if content[at] == "{":
            raise value_error(column, text[:200], "arrays with one dimension", _REMEDY)
        found = _ELEMENTS[delimiter].match(content, at, last)
        if found is None or (found.end() < last and content[found.end()] != delimiter):
            raise PgOutputError(f"a value of column {column!r} is not an array")
        if found[1] is not None:
            yield _ESCAPE.sub(r"\1", found[1])
        else:
            yield None if found[2] == "NULL" else found[2]
        at = found.end() + 1
