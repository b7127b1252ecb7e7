"""The functions of the query language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.endpoints.ytsaurus.select.grammar import Node, wrong
from headrace.endpoints.ytsaurus.select.numbers import times, whole
from headrace.endpoints.ytsaurus.select.types import (
    NUMBERS,
    Array,
    Value,
    as_texts,
    constant_text,
    kind,
    shown,
    string_of,
)
from headrace.endpoints.ytsaurus.select.values import Expressions, Function


def _cast(wanted: pa.DataType) -> Function:
    def run(expressions: Expressions, nodes: Sequence[Node]) -> Value:
        (value,) = expressions.arguments(nodes, 1)
        if value.type not in NUMBERS and not pa.types.is_null(value.type):
            raise wrong(f"A {kind(value.type)} is no number", source=shown(nodes[0]))
        if pa.types.is_floating(value.type) and pa.types.is_integer(wanted):
            return Value(whole(value.data, wanted, expressions.needed()))
        # Whole numbers wrap around, as in C.
        return Value(value.data.cast(wanted, safe=False))

    return run


def _of_doubles(name: str, count: int = 1) -> Function:
    def run(expressions: Expressions, nodes: Sequence[Node]) -> Value:
        return Value(pc.call_function(name, _doubles(expressions, nodes, count)))

    return run


def _rounded(name: str) -> Function:
    def run(expressions: Expressions, nodes: Sequence[Node]) -> Value:
        (value,) = _doubles(expressions, nodes, 1)
        return Value(whole(pc.call_function(name, [value]), pa.int64(), expressions.needed()))

    return run


def _doubles(expressions: Expressions, nodes: Sequence[Node], count: int) -> list[Array]:
    """Return the values of arguments that are doubles, or literals that may be."""
    found = []
    for value, node in zip(expressions.arguments(nodes, count), nodes, strict=True):
        if value.type != pa.float64() and not value.literal:
            raise wrong(f"Expected a double, got {kind(value.type)}", source=shown(node))
        found.append(value.data.cast(pa.float64(), safe=False))
    return found


def _by_pattern(name: str, around: str = "{}", *, replaced: int | None = None) -> Function:
    """Return a function of a regular expression and a string, which may be followed by what takes the place of it."""

    def run(expressions: Expressions, nodes: Sequence[Node]) -> Value:
        pattern, text, *more = expressions.arguments(nodes, 2 if replaced is None else 3)
        regex = constant_text(pattern, nodes[0])
        if isinstance(regex, bytes):
            raise wrong("A regular expression is a text", source=shown(nodes[0]))
        if replaced is None:
            return Value(getattr(pc, name)(as_texts(text.data), around.format(regex)))
        other = constant_text(more[0], nodes[2])
        found = getattr(pc, name)(as_texts(text.data), regex, other, max_replacements=replaced)
        return Value(found.cast(text.type))

    return run


def _call(name: str, count: int, **options: Any) -> Function:
    def run(expressions: Expressions, nodes: Sequence[Node]) -> Value:
        values = expressions.arguments(nodes, count)
        return Value(getattr(pc, name)(*(value.data for value in values), **options))

    return run


def _of_letters(name: str) -> Function:
    """Return a function of a string that has to be UTF-8 where the value is needed."""

    def run(expressions: Expressions, nodes: Sequence[Node]) -> Value:
        (value,) = expressions.arguments(nodes, 1)
        text, needed = string_of(value, nodes[0]), expressions.needed()
        if needed is not None:
            text = pc.if_else(needed, text, pa.scalar(None, text.type))
        return Value(getattr(pc, name)(text.cast(pa.string())))

    return run


def _starts_with(expressions: Expressions, nodes: Sequence[Node]) -> Value:
    prefix, text = expressions.arguments(nodes, 2)
    return Value(pc.starts_with(text.data, constant_text(prefix, nodes[0])))


def _contains(expressions: Expressions, nodes: Sequence[Node]) -> Value:
    part, text = expressions.arguments(nodes, 2)
    return Value(pc.match_substring(text.data, constant_text(part, nodes[0])))


def _length(expressions: Expressions, nodes: Sequence[Node]) -> Value:
    (text,) = expressions.arguments(nodes, 1)
    return Value(pc.binary_length(text.data).cast(pa.int64()))


def _concat(expressions: Expressions, nodes: Sequence[Node]) -> Value:
    if not nodes:
        raise wrong("A function got no arguments")
    return expressions.joined([value.data for value in expressions.arguments(nodes, len(nodes))])


def _floor(unit: str) -> Function:
    def run(expressions: Expressions, nodes: Sequence[Node]) -> Value:
        (value,) = expressions.arguments(nodes, 1)
        if not pa.types.is_integer(value.type):
            raise wrong(f"A {kind(value.type)} is no time", source=shown(nodes[0]))
        found = times(value.data, expressions.needed())
        return Value(pc.floor_temporal(found, unit=unit).cast(pa.int64()))

    return run


FUNCTIONS: Final[dict[str, Function]] = {
    "int64": _cast(pa.int64()),
    "uint64": _cast(pa.uint64()),
    "double": _cast(pa.float64()),
    "is_null": _call("is_null", 1),
    "is_nan": _call("is_nan", 1),
    "if_null": Expressions.first_not_null,
    "coalesce": Expressions.first_not_null,
    "if": Expressions.choose,
    "abs": _call("abs", 1),
    **{name: _of_doubles(name) for name in ("acos", "asin", "cos", "exp", "ln", "log10", "log2", "sin", "sqrt", "tan")},
    **{name: _of_doubles(name) for name in ("is_finite", "is_inf")},
    "log": _of_doubles("log10"),
    "atan2": _of_doubles("atan2", 2),
    "pow": _of_doubles("power", 2),
    **{name: _rounded(name) for name in ("floor", "ceil", "trunc", "sign")},
    "lower": _of_letters("utf8_lower"),
    "upper": _of_letters("utf8_upper"),
    "length": _length,
    "is_prefix": _starts_with,
    "is_substr": _contains,
    "concat": _concat,
    "regex_full_match": _by_pattern("match_substring_regex", r"\A(?:{})\z"),
    "regex_partial_match": _by_pattern("match_substring_regex"),
    "regex_replace_first": _by_pattern("replace_substring_regex", replaced=1),
    "regex_replace_all": _by_pattern("replace_substring_regex", replaced=-1),
    **{f"timestamp_floor_{unit}": _floor(unit) for unit in ("hour", "day", "week", "month", "quarter", "year")},
}
"""The functions of the language by name; what aggregates is known to `headrace.endpoints.ytsaurus.select.execution`."""
