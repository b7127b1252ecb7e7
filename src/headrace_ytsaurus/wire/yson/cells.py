"""The values of one column, collected from many rows, and converted to an Arrow array.

The first byte of a value is its type. A column accepts values of its own type: signed and unsigned numbers in range,
doubles, booleans, strings, or for YSON any value. Other values are an error that names column and row. YTsaurus does
not convert values either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.wire.texts import first_not_utf8
from headrace_ytsaurus.wire.types import RANGES, YtColumn, carried_as_yson, type_parts, untagged
from headrace_ytsaurus.wire.yson.conversion_errors import NOT_TEXT, conversion_error
from headrace_ytsaurus.wire.yson.documents import load_fragment
from headrace_ytsaurus.wire.yson.message import (
    Bytes,
    Effort,
    Marker,
    Mask,
    Message,
    Places,
    UnusualError,
    Words,
    signed,
)
from headrace_ytsaurus.wire.yson.nesting import value_ends
from headrace_ytsaurus.wire.yson.python_values import as_array

ABSENT: Final = 0
"""The tag of a missing value. No value begins with this byte."""

_SECONDS: Final = ("datetime", "datetime64")
_TEXTS: Final = ("string", "utf8", "json")
_KINDS: Final = {
    Marker.STRING: "a string",
    Marker.INT: "an int64",
    Marker.UINT: "a uint64",
    Marker.DOUBLE: "a double",
    Marker.FALSE: "a boolean",
    Marker.TRUE: "a boolean",
    Marker.ENTITY: "null",
    Marker.LIST: "a list",
    Marker.MAP: "a map",
    Marker.ATTRIBUTES: "a value with attributes",
}


@dataclass(frozen=True)
class Values:
    """Values at given positions; for the attributes see `Cells`."""

    tags: Bytes
    payloads: Words
    begin: Places
    content: Places
    ends: Places


def read_values(message: Message, begin: Places, limits: Places, effort: Effort) -> Values:
    """Read the values at the positions.

    Raises:
        UnusualError: a value is broken, exceeds its limit, or is not binary YSON.
    """
    _require((begin < limits).all(), "no value")
    tags = message.tags(begin)
    first = int(tags[0])
    if (tags == first).all():
        payloads, content, ends = _read(message, first, begin, limits, effort)
    else:
        payloads = np.zeros(len(begin), dtype=np.uint64)
        content, ends = begin.copy(), begin.copy()
        for tag in np.flatnonzero(np.bincount(tags)).tolist():
            members = np.flatnonzero(tags == tag)
            read = _read(message, tag, begin[members], limits[members], effort)
            payloads[members], content[members], ends[members] = read
    _require((ends <= limits).all(), "a value reaches beyond its row")
    return Values(tags, payloads, begin, content, ends)


def _read(message: Message, tag: int, begin: Places, limits: Places, effort: Effort) -> tuple[Words, Places, Places]:
    """Return for values of one tag the payloads, the starts of their texts, and the ends."""
    at = begin + 1
    match tag:
        case Marker.INT | Marker.UINT:
            numbers, lengths = message.varints(at)
            return signed(numbers).view(np.uint64) if tag == Marker.INT else numbers, at, at + lengths
        case Marker.DOUBLE:
            return message.words(at), at, at + 8
        case Marker.STRING:
            content, lengths = message.text_spans(at)
            return lengths.view(np.uint64), content, content + lengths
        case Marker.FALSE | Marker.TRUE | Marker.ENTITY:
            return np.zeros(len(at), dtype=np.uint64), at, at
        case Marker.LIST | Marker.MAP | Marker.ATTRIBUTES:
            return np.zeros(len(at), dtype=np.uint64), at, value_ends(message, begin, limits, effort)
    raise UnusualError("a value that is not in binary YSON")


def _require(holds: bool | np.bool_, problem: str) -> None:
    if not holds:
        raise UnusualError(problem)


class Cells:
    """The values of a column, one entry for each row.

    Attributes:
        tags: the first byte of the value, or `ABSENT`.
        payloads: the bits of a number.
        begin: position of the value, increasing; for a missing value, any position in its row.
        content: position of the text of a string.
        ends: position after the value.
    """

    def __init__(self, column: YtColumn, starts: Places) -> None:
        self.column = column
        self.begin: Places = starts
        self.content: Places = starts
        self.ends: Places = starts
        self.tags: Bytes = np.zeros(len(starts), dtype=np.uint8)
        self.payloads: Words = np.zeros(len(starts), dtype=np.uint64)
        # The arrays may be shared with each other or with the caller.
        self._shared = True

    @property
    def written(self) -> Mask:
        """Whether the row has a value, including null."""
        marks: Mask = self.tags != ABSENT
        return marks

    def add(self, rows: Places | None, values: Values) -> None:
        """Set the values of some rows or all; a later value of a row replaces an earlier one."""
        if rows is None:
            self.tags, self.payloads = values.tags, values.payloads
            self.begin, self.content, self.ends = values.begin, values.content, values.ends
            self._shared = True
            return
        if self._shared:
            self.tags, self.payloads = self.tags.copy(), self.payloads.copy()
            self.begin, self.content, self.ends = self.begin.copy(), self.content.copy(), self.ends.copy()
            self._shared = False
        self.tags[rows], self.payloads[rows] = values.tags, values.payloads
        self.begin[rows], self.content[rows], self.ends[rows] = values.begin, values.content, values.ends

    def array(self, message: Message, first_row: int) -> pa.Array:
        """Return the values as an Arrow array; ``first_row`` is the number of the first row, for messages.

        Raises:
            SchemaError: a value does not fit the column.
        """
        valid = (self.tags != ABSENT) & (self.tags != Marker.ENTITY)
        whole = bool(valid.all())
        name, parts = type_parts(untagged(self.column.yt))
        if not valid.any():
            return pa.nulls(len(valid), self.column.type)
        if name in RANGES:
            return self._numbers(name, valid, whole, first_row)
        if name in ("double", "float"):
            return self._doubles(valid, whole, first_row)
        if name == "bool":
            self._check(valid, (self.tags == Marker.TRUE) | (self.tags == Marker.FALSE), first_row)
            return pa.array(self.tags == Marker.TRUE, mask=None if whole else ~valid)
        if name in _TEXTS or name == "uuid":
            self._check(valid, self.tags == Marker.STRING, first_row)
            if name == "uuid":
                self._check(valid, self.ends - self.content == 16, first_row)
            return self._texts(message, valid, whole, first_row)
        if name == "decimal" and parts["precision"] <= 18:
            return self._decimals(message, parts["precision"], valid, whole, first_row)
        if carried_as_yson(self.column.yt, self.column.type):
            self._check(valid, self.tags != Marker.ATTRIBUTES, first_row)
            return self._raw(message, valid)
        # Other types are too rare to optimize: their values are converted one by one.
        cells = self._raw(message, valid).drop_null().to_pylist()
        values: list[Any] = [None] * len(valid)
        for row, value in zip(np.flatnonzero(valid).tolist(), load_fragment(b";".join(cells)), strict=True):
            values[row] = value
        return as_array(values, self.column, first_row)

    def _numbers(self, name: str, valid: Mask, whole: bool, first_row: int) -> pa.Array:
        low, high = RANGES[name]
        unsigned = self.tags == Marker.UINT
        ints = self.payloads.view(np.int64)
        if unsigned.all():
            fits = self.payloads <= np.uint64(high)
        elif not unsigned.any():
            fits = (self.tags == Marker.INT) & (ints >= low) & ((ints <= high) if high < 2**63 else True)
        else:
            fits = (self.tags == Marker.INT) & (ints >= low) & ((ints <= high) if high < 2**63 else True)
            fits |= unsigned & (self.payloads <= np.uint64(high))
        self._check(valid, fits, first_row)
        mask = None if whole else ~valid
        data_type = self.column.type
        if pa.types.is_decimal(data_type):
            pairs = np.zeros((len(valid), 2), dtype=np.uint64)
            pairs[:, 0] = self.payloads
            return _with_nulls(data_type, pairs, valid, whole)
        if pa.types.is_date(data_type):
            return pa.array(ints.astype(np.int32), mask=mask).view(data_type)
        if pa.types.is_timestamp(data_type):
            if name in _SECONDS:
                ints = np.where(valid, ints, 0) * 1_000_000
            return pa.array(ints, mask=mask).view(data_type)
        if data_type == pa.int64() or pa.types.is_duration(data_type):
            return pa.array(ints, mask=mask).view(data_type)
        return pa.array(ints.astype(data_type.to_pandas_dtype()), mask=mask)

    def _doubles(self, valid: Mask, whole: bool, first_row: int) -> pa.Array:
        self._check(valid, self.tags == Marker.DOUBLE, first_row)
        doubles = self.payloads.view(np.float64)
        if self.column.type == pa.float64():
            return pa.array(doubles, mask=None if whole else ~valid)
        # Values that are not doubles, and overflows, are excluded by the checks.
        with np.errstate(all="ignore"):
            floats = doubles.astype(np.float32)
        self._check(valid, np.isfinite(floats) | ~np.isfinite(doubles), first_row)
        return pa.array(floats, mask=None if whole else ~valid)

    def _texts(self, message: Message, valid: Mask, whole: bool, first_row: int) -> pa.Array:
        lengths = self.ends - self.content
        texts = message.texts(self.content, lengths if whole else np.where(valid, lengths, 0))
        try:
            array = texts.cast(self.column.type)
        except pa.ArrowInvalid:
            wrong = first_not_utf8(texts)
            raise conversion_error(self.column, first_row + wrong, NOT_TEXT) from None
        if whole:
            return array
        return pa.Array.from_buffers(array.type, len(array), [pa.array(valid).buffers()[1], *array.buffers()[1:]])

    def _decimals(self, message: Message, precision: int, valid: Mask, whole: bool, first_row: int) -> pa.Array:
        width = 4 if precision <= 9 else 8
        self._check(valid, (self.tags == Marker.STRING) & (self.ends - self.content == width), first_row)
        # Big-endian with the sign inverted, so that their bytes have the sort order of the numbers.
        words = message.words(self.content)
        if width == 4:
            numbers = (words.astype("<u4").byteswap() ^ np.uint32(1 << 31)).view(np.int32).astype(np.int64)
        else:
            numbers = (words.byteswap() ^ np.uint64(1 << 63)).view(np.int64)
        self._check(valid, (numbers > -(10**precision)) & (numbers < 10**precision), first_row)
        pairs = np.empty((len(valid), 2), dtype=np.int64)
        pairs[:, 0] = numbers
        pairs[:, 1] = numbers >> 63
        return _with_nulls(self.column.type, pairs, valid, whole)

    def _raw(self, message: Message, valid: Mask) -> pa.Array:
        """Return the bytes of the values in the message, including their tags."""
        texts = message.texts(self.begin, np.where(valid, self.ends - self.begin, 0))
        return pa.Array.from_buffers(pa.binary(), len(texts), [pa.array(valid).buffers()[1], *texts.buffers()[1:]])

    def _check(self, valid: Mask, fits: Mask, first_row: int) -> None:
        wrong = valid & ~fits
        if not wrong.any():
            return
        row = int(wrong.argmax())
        tag = int(self.tags[row])
        kind = _KINDS[tag]
        if tag == Marker.INT:
            kind += f" {self.payloads.view(np.int64)[row]}"
        elif tag == Marker.UINT:
            kind += f" {self.payloads[row]}"
        elif tag == Marker.STRING:
            kind += f" of {self.ends[row] - self.content[row]} bytes"
        raise conversion_error(self.column, first_row + row, kind)


def _with_nulls(data_type: pa.DataType, values: npt.NDArray[Any], valid: Mask, whole: bool) -> pa.Array:
    marks = None if whole else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(data_type, len(valid), [marks, pa.py_buffer(values)])
