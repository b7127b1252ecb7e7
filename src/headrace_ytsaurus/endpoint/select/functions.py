"""The functions of the query language."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace_ytsaurus.endpoint.select.expressions import Expressions, Function
from headrace_ytsaurus.endpoint.select.nodes import Node, query_error
from headrace_ytsaurus.endpoint.select.numbers import times, whole
from headrace_ytsaurus.endpoint.select.types import (
    NUMBERS,
    Array,
    Value,
    as_texts,
    constant_string,
    kind,
    string_of,
    text_or_bytes,
)


def _of(count: int, compute: Callable[..., Array]) -> Function:
    """Return a function of some arguments; ``compute`` gets the expressions and the values of the arguments."""

    def run(expressions: Expressions, nodes: Sequence[Node]) -> Value:
        return Value(compute(expressions, *expressions.arguments(nodes, count)))

    return run


def _cast(wanted: pa.DataType) -> Function:
    def compute(expressions: Expressions, value: Value) -> Array:
        if value.type not in NUMBERS and not pa.types.is_null(value.type):
            raise query_error(f"Expected a number, got {kind(value.type)}")
        if pa.types.is_floating(value.type) and pa.types.is_integer(wanted):
            return whole(value.data, wanted, expressions.needed())
        # Whole numbers wrap around, as in C.
        return value.data.cast(wanted, safe=False)

    return _of(1, compute)


def _double(value: Value) -> Array:
    """Return a value that is a double or a numeric literal as a double."""
    if value.type != pa.float64() and not value.literal:
        raise query_error(f"Expected a double, got {kind(value.type)}")
    return value.data.cast(pa.float64(), safe=False)


def _of_doubles(name: str, count: int = 1) -> Function:
    return _of(count, lambda _, *values: pc.call_function(name, [_double(value) for value in values]))


def _rounded(name: str) -> Function:
    def compute(expressions: Expressions, value: Value) -> Array:
        return whole(pc.call_function(name, [_double(value)]), pa.int64(), expressions.needed())

    return _of(1, compute)


def _regex(value: Value) -> str:
    regex = text_or_bytes(constant_string(value))
    if isinstance(regex, bytes):
        raise query_error("A regular expression must be UTF-8")
    return regex


def _matched(around: str) -> Function:
    """Return a function that matches a regular expression, which is inserted into another one."""

    def compute(_: Expressions, regex: Value, text: Value) -> Array:
        return pc.match_substring_regex(as_texts(text.data), around.format(_regex(regex)))

    return _of(2, compute)


def _replaced(count: int) -> Function:
    """Return a function that replaces some matches of a regular expression; -1 for all."""

    def compute(_: Expressions, regex: Value, text: Value, other: Value) -> Array:
        texts, replacement = as_texts(text.data), constant_string(other)
        found = pc.replace_substring_regex(texts, _regex(regex), replacement, max_replacements=count)
        return found.cast(pa.binary())

    return _of(3, compute)


def _of_letters(name: str) -> Function:
    """Return a function of a string that must be UTF-8 in the rows whose results are needed."""

    def compute(expressions: Expressions, value: Value) -> Array:
        text, needed = string_of(value), expressions.needed()
        if needed is not None:
            text = pc.if_else(needed, text, pa.scalar(None, text.type))
        return pc.call_function(name, [text.cast(pa.string())]).cast(pa.binary())

    return _of(1, compute)


def _floor(unit: str) -> Function:
    def compute(expressions: Expressions, value: Value) -> Array:
        if not pa.types.is_integer(value.type):
            raise query_error(f"Expected a time in whole seconds, got {kind(value.type)}")
        return pc.floor_temporal(times(value.data, expressions.needed()), unit=unit).cast(pa.int64())

    return _of(1, compute)


FUNCTIONS: Final[dict[str, Function]] = {
    "int64": _cast(pa.int64()),
    "uint64": _cast(pa.uint64()),
    "double": _cast(pa.float64()),
    "is_null": _of(1, lambda _, value: pc.is_null(value.data)),
    "is_nan": _of(1, lambda _, value: pc.is_nan(value.data)),
    "if_null": Expressions.first_not_null,
    "coalesce": Expressions.first_not_null,
    "if": Expressions.choose,
    "abs": _of(1, lambda _, value: pc.abs(value.data)),
    **{name: _of_doubles(name) for name in ("acos", "asin", "cos", "exp", "ln", "log10", "log2", "sin", "sqrt", "tan")},
    **{name: _of_doubles(name) for name in ("is_finite", "is_inf")},
    "log": _of_doubles("log10"),
    "atan2": _of_doubles("atan2", 2),
    "pow": _of_doubles("power", 2),
    **{name: _rounded(name) for name in ("floor", "ceil", "trunc", "sign")},
    "lower": _of_letters("utf8_lower"),
    "upper": _of_letters("utf8_upper"),
    "length": _of(1, lambda _, text: pc.binary_length(text.data).cast(pa.int64())),
    "is_prefix": _of(2, lambda _, prefix, text: pc.starts_with(text.data, constant_string(prefix))),
    "is_substr": _of(2, lambda _, part, text: pc.match_substring(text.data, constant_string(part))),
    "concat": Expressions.joined,
    "regex_full_match": _matched(r"\A(?:{})\z"),
    "regex_partial_match": _matched("{}"),
    "regex_replace_first": _replaced(1),
    "regex_replace_all": _replaced(-1),
    **{f"timestamp_floor_{unit}": _floor(unit) for unit in ("hour", "day", "week", "month", "quarter", "year")},
}
"""The functions of the language by name, except the aggregate functions."""
