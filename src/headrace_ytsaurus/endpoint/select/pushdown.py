"""The conditions of a query that a scan can use, so that a query by key does not read the whole table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.model.tables.conditions import Predicate
from headrace.rows.conditions import MAX_VALUES
from headrace_ytsaurus.endpoint.select.nodes import Node, Query
from headrace_ytsaurus.endpoint.select.types import text_or_bytes

_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def pushed_down(query: Query) -> list[Predicate]:
    """Return conditions on columns that are true for every row that satisfies WHERE.

    They come from comparisons with literals that are joined by AND, and hold for both meanings of null.
    """
    found: list[Predicate] = []
    waiting = [] if query.where is None else [query.where]
    while waiting:
        node = waiting.pop()
        if node.kind == "and":
            waiting += node.children
        elif node.kind == "between":
            operand, low, high = node.children
            found += _bounds(">=", operand, low, query) + _bounds("<=", operand, high, query)
        elif node.kind == "in":
            operand, *values = node.children
            known = [_constant(value) for value in values]
            # A tuple of one is its element.
            (column,) = operand.elements if len(operand.elements) == 1 else (operand,)
            if query.is_column(column) and len(known) <= MAX_VALUES and None not in known:
                found.append(Predicate(column.value, "in", tuple(known)))
        elif node.kind in _MIRRORED:
            left, right = node.children
            found += _bounds(node.kind, left, right, query)
    return found


def _bounds(operator: str, left: Node, right: Node, query: Query) -> list[Predicate]:
    lefts, rights = left.elements, right.elements
    if len(lefts) > 1 and operator != "=":
        # (a, b) < (1, 2) implies a <= 1.
        operator = operator[0] + "="
        lefts, rights = lefts[:1], rights[:1]
    found = []
    for one, other in zip(lefts, rights, strict=False):
        for column, constant, relation in ((one, other, operator), (other, one, _MIRRORED[operator])):
            value = _constant(constant)
            if query.is_column(column) and value is not None:
                found.append(Predicate(column.value, relation, value))
    return found


def _constant(node: Node) -> Any:
    """Return the value of a literal that is a string or a whole number; None for any other expression."""
    if node.kind != "literal":
        return None
    value = node.value.data.as_py()
    if isinstance(value, bytes):
        return text_or_bytes(value)
    return value if pa.types.is_integer(node.value.type) else None
