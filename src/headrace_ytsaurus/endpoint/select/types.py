"""The types of the query language, its literals, and the common type of two operands.

The types are int64, uint64, double, boolean and string. A string is bytes. Values of other types can only be selected.
There are no implicit conversions, except that a literal takes the type of the other operand if its value fits.
"""

from __future__ import annotations

import functools
import time
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from headrace_ytsaurus.endpoint.select.nodes import query_error
from headrace_ytsaurus.wire.errors import Code, YtError

Array: TypeAlias = "pa.Array | pa.Scalar"

NUMBERS = (pa.int64(), pa.uint64(), pa.float64())
MAX_BYTES = 256 << 20
"""The memory of a query: for the rows that WHERE leaves, and as much again for computed values."""
_NAMES = {
    **{pa.int64(): "int64", pa.uint64(): "uint64", pa.float64(): "double"},
    **{pa.bool_(): "boolean", pa.binary(): "string"},
}


class Unsigned(int):
    """The number of a literal such as ``5u``."""


class Value(NamedTuple):
    """A column, or one value for all rows; ``literal`` if its type can follow that of the other operand."""

    data: Array
    literal: bool = False

    @property
    def type(self) -> pa.DataType:
        return self.data.type


def literal(value: Any) -> Value:
    """Return the value of a literal or of a placeholder.

    Raises:
        YtError: a whole number above uint64 or below int64, a value of another type.
    """
    if isinstance(value, str | bytes) or hasattr(value, "_bytes"):
        # The YSON parser has a class for strings that are not UTF-8.
        data = value.encode() if isinstance(value, str) else bytes(getattr(value, "_bytes", value))
        return Value(pa.scalar(data, pa.binary()))
    if isinstance(value, Unsigned):
        return Value(pa.scalar(int(value), pa.uint64()))
    if type(value).__name__ == "YsonBoolean":
        return Value(pa.scalar(bool(value)))
    if isinstance(value, bool):
        return Value(pa.scalar(value))
    if isinstance(value, int):
        number = int(value)
        if not -(1 << 63) <= number < 1 << 64:
            raise query_error(f"The number {number} is neither an int64 nor a uint64")
        return Value(pa.scalar(number, pa.int64() if number < 1 << 63 else pa.uint64()), literal=True)
    if isinstance(value, float):
        return Value(pa.scalar(float(value)))
    if value is None or type(value).__name__ == "YsonEntity":
        return Value(pa.scalar(None), literal=True)
    raise query_error(f"A query cannot have a value of type {type(value).__name__}")


def common_type(left: Value, right: Value) -> tuple[Array, Array]:
    """Return two operands in one type.

    Raises:
        YtError: the types differ, and neither operand is a literal that fits the other type.
    """
    if left.type == right.type:
        return left.data, right.data
    if pa.types.is_null(left.type):
        return left.data.cast(right.type), right.data
    if pa.types.is_null(right.type):
        return left.data, right.data.cast(left.type)
    numbers = left.type in NUMBERS and right.type in NUMBERS
    if right.literal and numbers and (not left.literal or left.type != pa.int64()):
        return left.data, _fitted(right, left.type)
    if left.literal and numbers:
        return _fitted(left, right.type), right.data
    raise query_error(f"Type mismatch in expression: {kind(left.type)} and {kind(right.type)}")


def _fitted(value: Value, wanted: pa.DataType) -> Array:
    try:
        return value.data.cast(wanted)
    except pa.ArrowInvalid:
        raise query_error(f"The literal does not fit {kind(wanted)}") from None


def string_of(value: Value) -> Array:
    """Return a string or null as a string.

    Raises:
        YtError: a value of another type.
    """
    if pa.types.is_null(value.type):
        return value.data.cast(pa.binary())
    if not pa.types.is_binary(value.type):
        raise query_error(f"Expected a string, got {kind(value.type)}")
    return value.data


def constant_string(value: Value) -> bytes:
    """Return a string that is the same for all rows.

    Raises:
        YtError: a string that differs from row to row, a null, a value of another type.
    """
    if not isinstance(value.data, pa.Scalar) or not pa.types.is_binary(value.type) or not value.data.is_valid:
        raise query_error("Expected a literal string")
    data: bytes = value.data.as_py()
    return data


def text_or_bytes(data: bytes) -> str | bytes:
    """Return a string as text if it is UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def as_texts(data: Array) -> Array:
    """Return strings as Arrow's type of texts, without a check for UTF-8, for functions that do not need it.

    Raises:
        YtError: a value of another type.
    """
    if not pa.types.is_binary(data.type):
        raise query_error(f"Expected a string, got {kind(data.type)}")
    if isinstance(data, pa.Scalar):
        return as_texts(pa.array([data.as_py()], data.type))[0]
    return data.view(pa.string())


def check_size(rows: int, *values: Array) -> None:
    """Raise an error if values need too much memory when they are repeated for every row; see `check_bytes`."""
    check_bytes(sum(map(functools.partial(_bytes_of, rows), values)))


def check_bytes(size: int) -> None:
    """Raise an error if a query needs too much memory.

    Raises:
        YtError: the size is above `MAX_BYTES`.
    """
    if size > MAX_BYTES:
        problem = "The query needs too many bytes of rows at once; consider rewriting it"
        raise query_error(problem, bytes=size, valid=MAX_BYTES)


def check_time(deadline: float) -> None:
    """Raise an error if a deadline has passed.

    Args:
        deadline: a time of `time.monotonic`.

    Raises:
        YtError: 3, the deadline has passed.
    """
    if time.monotonic() > deadline:
        raise YtError(Code.TIMEOUT, "Query timed out", remedy="ask for fewer rows at once, or for a longer timeout")


def _bytes_of(rows: int, value: Array) -> int:
    if not isinstance(value, pa.Scalar):
        return int(value.nbytes)
    return rows * len(value.as_buffer()) if value.is_valid and pa.types.is_binary(value.type) else 0


def kind(data_type: pa.DataType) -> str:
    """Return the name of a type in the language; ``any`` for a type that can only be selected."""
    return _NAMES.get(data_type, "any")


def native(column: pa.Array, yt_type: str) -> pa.Array:
    """Return a column in the language's types.

    Args:
        yt_type: the name of its YTsaurus type. A column of a type that the language does not have is returned
            unchanged.
    """
    if yt_type.startswith("uint"):
        return column.cast(pa.uint64())
    if pa.types.is_binary(column.type) and yt_type not in ("string", "uuid"):
        # YSON is stored as bytes, and is not a string of the language.
        return column.cast(pa.large_binary())
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    if pa.types.is_floating(column.type):
        return column.cast(pa.float64())
    if pa.types.is_date(column.type):
        return column.cast(pa.int32()).cast(pa.int64() if yt_type.endswith("32") else pa.uint64())
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).cast(pa.int64() if yt_type.endswith("64") else pa.uint64())
    return column
