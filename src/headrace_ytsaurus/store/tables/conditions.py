"""Conditions of a scan in the query language.

The query may return more rows than satisfy the conditions, but includes all that do. So the service's rules for null,
NaN and types may differ from headrace's; `headrace.rows.satisfied` has all conditions. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.schema import Key
from headrace.rows.conditions import BOUNDING, after_prefix, operands
from headrace_ytsaurus.store.schemas import TableLayout
from headrace_ytsaurus.wire.types import UNSIGNED, YtColumn, type_parts, untagged

_MOST_VALUES = 100
_LEAST_INTEGER = -(1 << 63)
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _-./:,;!?@#$%^&*()+=<>|~{}[]'")


def quoted(name: str) -> str:
    """Return the name of a column in the query language."""
    if "]" not in name:
        return f"[{name}]"
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def where(layout: TableLayout, keys: KeyRange, predicates: Sequence[Predicate], after: Key | None) -> str:
    """Return a condition in the query language for the rows of a scan; empty for all rows.

    Args:
        keys: the range; its bounds have the types of the key columns.
        after: a complete key, computed columns included; the rows follow it.
    """
    parts = []
    if after is not None:
        parts.append(_compared(layout.key, ">", after))
    names = [layout.columns[name] for name in layout.schema.primary_key]
    if keys.low:
        parts.append(_compared(names, ">=", keys.low))
    if keys.high:
        parts.append(_compared(names, "<", keys.high))
    for predicate in predicates:
        part = _condition(layout, predicate)
        if part:
            parts.append(part)
    return " and ".join(parts)


def _compared(columns: Sequence[YtColumn], operator: str, values: Key) -> str:
    # A bound that is a prefix is compared with the same number of columns, which is headrace's meaning of a bound.
    some = list(zip(columns, values, strict=False))
    names = ", ".join(quoted(column.name) for column, _ in some)
    literals = ", ".join(literal(column, value) for column, value in some)
    return f"({names}) {operator} ({literals})"


def _condition(layout: TableLayout, predicate: Predicate) -> str:
    """Return a condition that the predicate implies, or an empty text."""
    column = layout.columns[predicate.column]
    if predicate.value is None or not _has_literal(column):
        return ""
    values = operands(layout.schema.column(predicate.column), predicate).to_pylist()
    if not all(map(_is_text, values)):
        return ""
    name = quoted(column.name)
    match predicate.operator:
        case "in":
            if not 0 < len(values) <= _MOST_VALUES:
                return ""
            return f"{name} in ({', '.join(literal(column, value) for value in values)})"
        case "starts with":
            end = after_prefix(values[0])
            upper = "" if end is None else f" and {name} < {literal(column, end)}"
            return f"{name} >= {literal(column, values[0])}{upper}"
        case operator if operator in BOUNDING:
            return f"{name} {operator} {literal(column, values[0])}"
    return ""


def _has_literal(column: YtColumn) -> bool:
    return pa.types.is_integer(column.type) or _name(column) in ("string", "utf8")


def _is_text(value: Any) -> bool:
    """Return whether all servers accept a value in a query: some accept only the bytes of texts."""
    try:
        return not isinstance(value, bytes) or value.decode() is not None
    except UnicodeDecodeError:
        return False


def _name(column: YtColumn) -> str:
    return type_parts(untagged(column.yt))[0]


def literal(column: YtColumn, value: Any) -> str:
    """Return a number or string in the query language."""
    if isinstance(value, int):
        if _name(column) in UNSIGNED:
            return f"{value}u"
        return f"({value + 1} - 1)" if value == _LEAST_INTEGER else str(value)
    data = value.encode() if isinstance(value, str) else bytes(value)
    return '"' + "".join(chr(byte) if byte in _PLAIN else f"\\x{byte:02x}" for byte in data) + '"'
