"""Conditions on rows: key ranges, and comparisons of columns with values. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.errors import OptionError, shown
from headrace.model.tables.schema import Key


@dataclass(frozen=True)
class KeyRange:
    """The keys from ``low`` (included) to ``high`` (excluded); None is no bound.

    A bound with fewer columns than the key compares only these columns: ``low=("u1",)`` starts at the first key of
    ``u1``, ``high=("u2",)`` ends before the first key of ``u2``.
    """

    low: Key | None = None
    high: Key | None = None


OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in", "is null", "is not null", "starts with")


@dataclass(frozen=True)
class Predicate:
    """A condition on one column: ``operator`` is one of `OPERATORS`; null never satisfies a comparison."""

    column: str
    operator: str
    value: Any = None

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS:
            raise OptionError("unknown operator in a condition", received=repr(self.operator), valid=OPERATORS)


Where: TypeAlias = Mapping[str, Any] | Sequence[Predicate | tuple[str, str, Any]]


def parse_where(where: Where | None) -> tuple[Predicate, ...]:
    """Return the conditions, which are combined with AND.

    Valid forms are ``{"UserId": "u1"}`` for equality (a list or set matches any of its values, None matches null) and
    ``[("price", ">", 10), …]``.
    """
    if where is None:
        return ()
    if isinstance(where, Mapping):
        return tuple(_equality(column, value) for column, value in where.items())
    if isinstance(where, str | bytes) or not isinstance(where, Iterable):
        raise OptionError(
            "where must be a mapping or a list of conditions",
            received=shown(where),
            valid='{"user": "u1"} or [("price", ">", 10), …]',
            remedy="Store.query takes SQL" if isinstance(where, str) else None,
        )
    conditions: list[Predicate] = []
    for item in where:
        if isinstance(item, Predicate):
            conditions.append(item)
        elif isinstance(item, tuple) and len(item) in (2, 3) and all(isinstance(part, str) for part in item[:2]):
            operator = {"==": "=", "<>": "!="}.get(item[1], item[1].lower())
            conditions.append(Predicate(item[0], operator, item[2] if len(item) == 3 else None))
        else:
            raise OptionError(
                "a condition is (column, operator, value)", received=shown(item), valid=f"operators {OPERATORS}"
            )
    return tuple(conditions)


def _equality(column: str, value: Any) -> Predicate:
    if value is None:
        return Predicate(column, "is null")
    if isinstance(value, list | set | frozenset | tuple):
        return Predicate(column, "in", tuple(value))
    return Predicate(column, "=", value)
