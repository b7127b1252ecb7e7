"""Inferred types keep each value of a text file: a type that would change one is not inferred.

Arrow's inference takes ``007`` for 7, ``+49301234`` for 4.9301234e7, ``0x1F`` for 31, and rounds a number with more
digits than a double has.
"""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.schema import Column
from headrace.model.types import type_name

NUMBERS = ("long", "double")
"""The types of numbers that are inferred from texts."""
_CODE = r"^[-+]?0[0-9xX]|^\+[0-9]+$"
"""Texts that mark the column as one of codes, such as postcodes, account numbers and telephone numbers."""
_LONG = r"[0-9]{16}|[eE]"
"""Numbers, without their point, that a double can round, or that can be out of its range."""
_LONG_IN_JSON = re.compile(rb"[0-9][0-9.]{15}|[0-9][eE]-[0-9]{3}")
_DIGITS = 38
WAS_INFERRED = "was inferred"
"""Part of errors about values that do not fit an inferred type."""
_MICROSECONDS = r"\.[0-9]{6}[0-9]"


class Widened(NamedTuple):
    """A type that was not inferred because of a value.

    Attributes:
        text: the first value that it would change.
        narrow: its name.
    """

    text: str
    narrow: str


def exact_type(texts: pa.ChunkedArray, inferred: pa.DataType) -> tuple[pa.DataType, Widened | None]:
    """Return the type of a column with these texts, where Arrow has inferred a type."""
    texts = _trimmed(texts)
    changed = _changed(texts, inferred)
    if changed is None:
        return inferred, None
    wider = pa.string() if _first(texts, _CODE) or not pa.types.is_floating(inferred) else _decimal(texts)
    return wider, Widened(changed, "timestamp" if pa.types.is_timestamp(inferred) else type_name(inferred))


def exactly(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Return texts as numbers.

    Raises:
        pyarrow.ArrowInvalid: a text is no number of this type, or the type would change it.
    """
    texts = _trimmed(texts)
    numbers = texts.cast(target)
    if _changed(texts, target) is not None:
        raise pa.ArrowInvalid(f"it would be changed; the type {WAS_INFERRED}")
    return numbers


def is_checked(data_type: pa.DataType) -> bool:
    """Return whether a type that Arrow infers from texts can change some of them."""
    return bool(pa.types.is_int64(data_type) or pa.types.is_float64(data_type))


def check_json_numbers(block: bytes, columns: Iterable[Column], first_line: int) -> None:
    """Check that the doubles among the columns keep the numbers of JSON lines.

    Raises:
        pyarrow.ArrowInvalid: with the number of the line and the name of the column.
    """
    types = [column for column in columns if _has_double(column.type)]
    if not types or not _LONG_IN_JSON.search(block):
        return
    for number, line in enumerate(block.splitlines(), start=first_line):
        if _LONG_IN_JSON.search(line):
            row = _numbers_as_texts(line)
            for column in types if isinstance(row, dict) else ():
                for text in _doubles(row.get(column.name), column.type):
                    if not _is_kept(text):
                        raise pa.ArrowInvalid(
                            f"line {number}, column {column.name!r}, value {text}: a double would round it; "
                            f"the type {WAS_INFERRED}"
                        )


def _changed(texts: pa.Array | pa.ChunkedArray, data_type: pa.DataType) -> str | None:
    """Return the first text that a type would change."""
    if pa.types.is_timestamp(data_type):
        return _first(texts, _MICROSECONDS)
    code = _first(texts, _CODE)
    if code is not None or not pa.types.is_floating(data_type):
        return code
    candidates = texts.filter(pc.match_substring_regex(pc.replace_substring(texts, ".", ""), _LONG))
    # Arrow writes doubles with the fewest digits. That is fast, and equal for most numbers that programs have written.
    candidates = candidates.filter(pc.not_equal(candidates.cast(data_type).cast(pa.string()), candidates))
    return next((text for text in candidates.to_pylist() if not _is_kept(text)), None)


def _decimal(texts: pa.ChunkedArray) -> pa.DataType:
    """Return the decimal type that keeps all numbers; a string if there is none."""
    whole = scale = 0
    for text in texts.drop_null().to_pylist():
        number = decimal.Decimal(text)
        exponent = number.as_tuple().exponent
        if not isinstance(exponent, int):
            return pa.string()
        scale = max(scale, -exponent)
        whole = max(whole, number.adjusted() + 1)
        if whole + scale > _DIGITS:
            return pa.string()
    return pa.decimal128(_DIGITS, scale)


def _is_kept(text: str) -> bool:
    """Return whether a double has all digits of a number."""
    shortest = repr(float(text))
    return shortest == text or decimal.Decimal(shortest) == decimal.Decimal(text)


def _trimmed(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    # Arrow's reader of CSV accepts these characters around a number.
    return pc.ascii_trim(texts, " \t")


def _first(texts: pa.Array | pa.ChunkedArray, pattern: str) -> str | None:
    found = pc.index(pc.match_substring_regex(texts, pattern), True).as_py()
    return None if found < 0 else texts[found].as_py()


def _has_double(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_floating(data_type)) or any(
        _has_double(data_type.field(index).type) for index in range(data_type.num_fields)
    )


class _Number(str):
    """A number of a JSON line, as it is written."""

    __slots__ = ()


def _numbers_as_texts(line: bytes) -> Any:
    try:
        return json.loads(line, parse_float=_Number, parse_int=_Number)
    except (ValueError, RecursionError):
        # The reader of the rows has a better error.
        return None


def _doubles(value: Any, data_type: pa.DataType) -> Iterator[str]:
    """Yield the numbers in a value whose type is double."""
    if isinstance(value, _Number) and pa.types.is_floating(data_type):
        yield value
    elif isinstance(value, list) and pa.types.is_list(data_type):
        for item in value:
            yield from _doubles(item, data_type.value_type)
    elif isinstance(value, dict) and pa.types.is_struct(data_type):
        for field in data_type:
            yield from _doubles(value.get(field.name), field.type)
