"""The values of one column as an Arrow array, from PostgreSQL's text formats.

The session must use the settings ``DateStyle = 'ISO'``, ``TimeZone = 'UTC'`` and ``bytea_output = 'hex'``.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UnsupportedError
from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.cells import Integers
from headrace.wire.pgoutput.errors import PgOutputError, UnfitValueError, value_error
from headrace.wire.pgoutput.numerics import FINITE_DECIMALS, SPECIAL

LAST_TIME: Final = 9_223_371_244_800_000_000
"""The beginning of the year 294247, in µs since 1970: headrace reads earlier timestamps. Arrow's 64 bits end soon."""
FINITE_DATES: Final = "finite dates"
FINITE_TIMES: Final = "timestamps up to the year 294246"
_TIMES: Final[Mapping[int, pa.DataType]] = {
    types.DATE: pa.date32(),
    types.TIMESTAMP: pa.timestamp("us"),
    types.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
}
# Dates and timestamps that Arrow's cast reads, and all of them.
_USUAL_TIME: Final = r"^\d{4}-[^B]*$"
_TIME: Final = re.compile(r"(\d+)-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?")
_DAY: Final = 86_400_000_000
# The Gregorian calendar repeats itself after this number of years.
_CYCLE, _DAYS_OF_CYCLE = 400, 146_097
_FIRST_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_SPECIAL_NUMBERS: Final = pa.array(SPECIAL.values())
_NESTED: Final = r"^(\[[^=]*=)?\{\{"
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


def from_texts(texts: pa.StringArray, oid: int, data_type: pa.DataType, column: str) -> pa.Array:
    """Return values in text format as another type.

    Raises:
        PgOutputError: a text is not a value of this type.
        SchemaError: a value does not fit ``data_type``.
    """
    if pa.types.is_list(data_type):
        return _arrays(texts, oid, data_type, column)
    if data_type == _TIMES.get(oid):
        return _times(texts, data_type, column)
    if oid == types.BYTEA and pa.types.is_binary(data_type):
        return _binaries(texts, column)
    if pa.types.is_string(data_type):
        return as_cast(texts, oid)
    if pa.types.is_boolean(data_type):
        return pc.equal(texts, "t")
    if pa.types.is_decimal(data_type):
        _check_fits(texts, pc.is_in(texts, _SPECIAL_NUMBERS), FINITE_DECIMALS, column)
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
        raise value_error(column, str(error)[:200], str(data_type)) from None


def as_cast(texts: pa.StringArray, oid: int) -> pa.StringArray:
    """Return texts as a cast to ``text`` gives them: of some types, the log has other texts."""
    if oid == types.BOOL:
        return pc.if_else(pc.equal(texts, "t"), "true", "false")
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


def _times(texts: pa.StringArray, data_type: pa.DataType, column: str) -> pa.Array:
    """Return dates or timestamps. Arrow's cast reads the years from 1 to 9999."""
    with suppress(pa.ArrowInvalid):
        return texts.cast(data_type)
    usual = pc.fill_null(pc.match_substring_regex(texts, _USUAL_TIME), True)
    times = pc.if_else(usual, texts, pa.scalar(None, pa.string())).cast(data_type)
    valid, unit = (FINITE_DATES, _DAY) if data_type == pa.date32() else (FINITE_TIMES, 1)
    _check_fits(texts, pc.ends_with(texts, "infinity"), valid, column)
    rare = pc.invert(usual)
    found = [_microseconds(text, column) for text in pc.filter(texts, rare).to_pylist()]
    if unit == 1 and max(found) >= LAST_TIME:
        late = rare.to_numpy(zero_copy_only=False).copy()
        late[late] = np.array(found) >= LAST_TIME
        _check_fits(texts, pa.array(late), valid, column)
    numbers = pa.array([each // unit for each in found], pa.int32() if unit == _DAY else pa.int64())
    return pc.replace_with_mask(times.view(numbers.type), rare, numbers).view(data_type)


def _microseconds(text: str, column: str) -> int:
    """Return a date or timestamp of any year in µs since 1970."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise PgOutputError(f"a value of column {column!r} is not a date or timestamp", valid="DateStyle = 'ISO'")
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    # 1 BC is the year 0.
    cycles, year = divmod(1 - year if found[8] else year, _CYCLE)
    days = datetime.date(_CYCLE + year, month, day).toordinal() - _FIRST_DAY + (cycles - 1) * _DAYS_OF_CYCLE
    seconds = (24 * days + hour) * 3600 + minute * 60 + second
    return seconds * 1_000_000 + int((found[7] or "").ljust(6, "0"))


def _check_fits(texts: pa.StringArray, unfit: pa.BooleanArray, valid: str, column: str) -> None:
    """Raise `UnfitValueError` with the first of the texts that do not fit a type."""
    mask = pc.fill_null(unfit, False).to_numpy(zero_copy_only=False)
    if mask.any():
        raise value_error(column, texts[int(np.argmax(mask))].as_py()[:200], valid, mask)


def of_arrays(decode: Callable[[], pa.Array], offsets: Integers) -> pa.Array:
    """Return the decoded elements of arrays. If an element does not fit its type, its array does not."""
    try:
        return decode()
    except UnfitValueError as error:
        if error.unfit is not None:
            unfit = np.zeros(len(offsets) - 1, np.bool_)
            unfit[np.searchsorted(offsets, np.flatnonzero(error.unfit), side="right") - 1] = True
            error.unfit = unfit
        raise


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
    _check_fits(texts, pc.match_substring_regex(texts, _NESTED), "arrays with one dimension", column)
    for text in texts.to_pylist():
        before = len(elements)
        elements.extend(() if text is None else _elements(text, delimiter, column))
        lengths.append(len(elements) - before)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = of_arrays(
        lambda: from_texts(pa.array(elements, pa.string()), element, data_type.value_type, column), offsets
    )
    bitmap = None if texts.null_count == 0 else pc.is_valid(texts).buffers()[1]
    buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(data_type, len(texts), buffers, children=[values])


def _elements(text: str, delimiter: str, column: str) -> Iterator[str | None]:
    """Yield the elements of an array such as ``{1,NULL,"a b"}``."""
    # An array whose index does not begin at 1 has its bounds before it.
    content = text[text.find("=") + 1 :] if text.startswith("[") else text
    if len(content) < 2 or content[0] != "{" or content[-1] != "}":
        raise PgOutputError(f"a value of column {column!r} is not an array")
    at, last = 1, len(content) - 1
    while at < last:
        found = _ELEMENTS[delimiter].match(content, at, last)
        if found is None or (found.end() < last and content[found.end()] != delimiter):
            raise PgOutputError(f"a value of column {column!r} is not an array")
        if found[1] is not None:
            yield _ESCAPE.sub(r"\1", found[1])
        else:
            yield None if found[2] == "NULL" else found[2]
        at = found.end() + 1
