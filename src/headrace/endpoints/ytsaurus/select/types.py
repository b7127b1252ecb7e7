"""Values of the query language: their types, literals, and how two of them come to one type.

Values are of the language's own types: int64, uint64, double, boolean, string, or something that can only be selected.
They do not turn into each other by themselves, only a literal fits where its value does.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from sqlglot import exp

from headrace.endpoints.ytsaurus.select.grammar import FUNCTION_PREFIX, Node, Unsigned, wrong
from headrace.wire.ytsaurus.errors import Code, YtError

Array: TypeAlias = "pa.Array | pa.Scalar"

NUMBERS = (pa.int64(), pa.uint64(), pa.float64())
"""The types that can be computed with."""
MOST_BYTES = 256 << 20
"""So many bytes a query may hold: of the rows that WHERE has left, and again of what is computed from them."""
_NAMES = {pa.int64(): "int64", pa.uint64(): "uint64", pa.float64(): "double", pa.bool_(): "boolean"}


class Value(NamedTuple):
    """A column, or one value for all rows; ``literal`` if its type may follow that of its neighbour."""

    data: Array
    literal: bool = False

    @property
    def type(self) -> pa.DataType:
        return self.data.type


def literal(value: Any) -> Value:
    """Return a value that stands in a query, or was given for a placeholder."""
    if isinstance(value, bytes) or hasattr(value, "_bytes"):
        # A string that is no text; those of YSON that are none have a class of their own.
        return Value(pa.scalar(bytes(getattr(value, "_bytes", value)), pa.binary()))
    if isinstance(value, Unsigned):
        return Value(pa.scalar(int(value), pa.uint64()))
    if type(value).__name__ == "YsonBoolean":
        return Value(pa.scalar(bool(value)))
    if isinstance(value, bool):
        return Value(pa.scalar(value))
    if isinstance(value, int):
        number = int(value)
        if not -(1 << 63) <= number < 1 << 64:
            raise wrong(f"The number {number} is no int64 and no uint64")
        return Value(pa.scalar(number, pa.int64() if number < 1 << 63 else pa.uint64()), literal=True)
    if isinstance(value, float):
        return Value(pa.scalar(float(value)))
    if isinstance(value, str):
        return Value(pa.scalar(str(value)))
    if value is None or type(value).__name__ == "YsonEntity":
        return Value(pa.scalar(None), literal=True)
    raise wrong(f"A query cannot have a value of type {type(value).__name__}")


def alike(left: Value, right: Value, node: Node) -> tuple[Array, Array]:
    """Return two values in one type.

    Raises:
        YtError: their types differ, and none is a literal that fits the other's.
    """
    if left.type == right.type:
        return left.data, right.data
    if pa.types.is_null(left.type):
        return left.data.cast(right.type), right.data
    if pa.types.is_null(right.type):
        return left.data, right.data.cast(left.type)
    if is_string(left.type) and is_string(right.type):
        return left.data.cast(pa.binary()), right.data.cast(pa.binary())
    numbers = left.type in NUMBERS and right.type in NUMBERS
    if right.literal and numbers and (not left.literal or left.type != pa.int64()):
        return left.data, _fitted(right, left.type, node)
    if left.literal and numbers:
        return _fitted(left, right.type, node), right.data
    raise wrong(f"Type mismatch in expression: {kind(left.type)} and {kind(right.type)}", source=shown(node))


def _fitted(value: Value, wanted: pa.DataType, node: Node) -> Array:
    try:
        return value.data.cast(wanted)
    except pa.ArrowInvalid:
        raise wrong(f"The literal is no {kind(wanted)}", source=shown(node)) from None


def texts(values: Sequence[Array]) -> list[Array]:
    """Return strings in one type: bytes if one of them need not be text."""
    if len({value.type for value in values}) == 1:
        return list(values)
    return [value.cast(pa.binary()) for value in values]


def string_of(value: Value, node: Node) -> Array:
    """Return a value that must be a string, or null.

    Raises:
        YtError: it is none.
    """
    if pa.types.is_null(value.type):
        return value.data.cast(pa.string())
    if not is_string(value.type):
        raise wrong(f"Expected a string, got {kind(value.type)}", source=shown(node))
    return value.data


def as_texts(data: Array) -> Array:
    """Return strings in Arrow's type of texts, for what takes only that and does not look whether they are UTF-8."""
    if not pa.types.is_binary(data.type):
        return data
    if isinstance(data, pa.Scalar):
        return as_texts(pa.array([data.as_py()], pa.binary()))[0]
    return data.view(pa.string())


def constant_text(value: Value, node: Node) -> str | bytes:
    """Return a string that must be the same for all rows.

    Raises:
        YtError: it is none, or null.
    """
    if not isinstance(value.data, pa.Scalar) or not is_string(value.type) or not value.data.is_valid:
        raise wrong("Expected a literal string", source=shown(node))
    text: str | bytes = value.data.as_py()
    return text


def check_size(rows: int, *values: Array) -> None:
    """Raise an error if values are too many bytes when every row has them; see `check_bytes`."""
    check_bytes(sum(map(functools.partial(_bytes_of, rows), values)))


def check_bytes(size: int) -> None:
    """Raise an error if a query needs so many bytes at once.

    Raises:
        YtError: it needs too many.
    """
    if size > MOST_BYTES:
        problem = "The query needs too many bytes of rows at once; consider rewriting it"
        raise wrong(problem, bytes=size, valid=MOST_BYTES)


def check_time(deadline: float) -> None:
    """Raise an error if a query has taken too long; the deadline is one of `time.monotonic`.

    Raises:
        YtError: 3, it has.
    """
    if time.monotonic() > deadline:
        raise YtError(Code.TIMEOUT, "Query timed out", remedy="ask for fewer rows at once, or for a longer timeout")


def _bytes_of(rows: int, value: Array) -> int:
    if not isinstance(value, pa.Scalar):
        return int(value.nbytes)
    return rows * len(value.as_buffer()) if value.is_valid and is_string(value.type) else 0


def elements(node: Node) -> list[Node]:
    """Return the parts of a tuple; anything else is a tuple of one."""
    if isinstance(node, exp.Paren):
        return elements(node.this)
    if not isinstance(node, exp.Tuple):
        return [node]
    if not node.expressions:
        raise wrong("Error while parsing query: an empty tuple")
    return list(node.expressions)


def is_string(data_type: pa.DataType) -> bool:
    """Tell whether values of a type are strings or bytes."""
    return bool(pa.types.is_string(data_type) or pa.types.is_binary(data_type))


def kind(data_type: pa.DataType) -> str:
    """Return the language's name of a type."""
    return "string" if is_string(data_type) else _NAMES.get(data_type, "any")


def shown(node: Node) -> str:
    """Return an expression as text, for messages; literals stand as parameters."""
    try:
        return node.sql()[:200].replace(FUNCTION_PREFIX, "")
    except RecursionError:
        return "…"


def native(column: pa.Array, yt_type: str) -> pa.Array:
    """Return a column in the language's types.

    Args:
        yt_type: the name of its YTsaurus type; only what is none of the language's types stays as it is.
    """
    if yt_type.startswith("uint"):
        return column.cast(pa.uint64())
    if pa.types.is_binary(column.type) and yt_type not in ("string", "uuid"):
        # YSON is no string, though it is carried as bytes.
        return column.cast(pa.large_binary())
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    if pa.types.is_floating(column.type):
        return column.cast(pa.float64())
    if pa.types.is_date(column.type):
        return column.cast(pa.int32()).cast(pa.int64() if yt_type.endswith("32") else pa.uint64())
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).cast(pa.int64() if yt_type.endswith("64") else pa.uint64())
    return column
