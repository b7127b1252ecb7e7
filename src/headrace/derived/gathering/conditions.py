"""Conditions of the rows of one table, by which the driver leaves out rows that take part in no result.

They are parts of WHERE and ON that must all be true, and compare columns of integers, dates or texts with constants or
with each other: Spark has no further rules for these, besides that nothing compares with null. Others are left to the
query. A row that stays costs time only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.sql_text.lexer import TokenKind
from headrace.sql_text.query_text import QueryText

_KINDS: Mapping[type, str] = {int: "integer", date: "date32[day]", str: "string"}
_COMPARISONS: Mapping[str, Callable[..., pa.ChunkedArray]] = {
    "=": pc.equal,
    "==": pc.equal,
    "<>": pc.not_equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "LIKE": pc.match_like,
}
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


@dataclass(frozen=True)
class Named:
    """A column of an occurrence, with the kind of its values; see `headrace.derived.gathering.row_keys.key_kind`."""

    occurrence: int
    column: str
    kind: str | None


Operand: TypeAlias = "Named | int | date | str"


@dataclass(frozen=True)
class Comparison:
    """A comparison of a column with a constant, or with another column of its table."""

    left: Operand
    operator: str
    right: Operand

    def holds(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return for each row whether it is true; null if a value is null."""
        left, right = (
            rows.column(each.column) if isinstance(each, Named) else each for each in (self.left, self.right)
        )
        return _COMPARISONS[self.operator](left, right)


@dataclass(frozen=True)
class AnyOf:
    """Conditions under OR. In each branch all must be true."""

    branches: tuple[tuple[Condition, ...], ...]

    def holds(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return for each row whether one of the branches is true; null if that is not known."""
        return reduce(pc.or_kleene, (_all_hold(branch, rows) for branch in self.branches))


Condition: TypeAlias = "Comparison | AnyOf"


def satisfying(rows: pa.Table, conditions: Sequence[Condition]) -> pa.Table:
    """Return the rows for which all conditions are true."""
    return rows.filter(_all_hold(conditions, rows)) if conditions and rows.num_rows else rows


def _all_hold(conditions: Sequence[Condition], rows: pa.Table) -> pa.ChunkedArray:
    return reduce(pc.and_kleene, (each.holds(rows) for each in conditions))


@dataclass(frozen=True)
class Conditions:
    """The conditions in the text of a filter.

    Attributes:
        named: returns the column that a name means; None if it is not certain.
    """

    text: QueryText
    named: Callable[[tuple[str, ...]], Named | None]

    def of_occurrences(self, start: int, end: int) -> dict[int, list[Condition]]:
        """Return the conditions of each occurrence that are true wherever a condition is true."""
        text, found = self.text, dict[int, list[Condition]]()
        for first, last in text.conjuncts(start, end):
            places = [index for index in text.top(first, last) if text.is_word(index, "OR")]
            if not places:
                for number, condition in self._of_conjunct(first, last):
                    found.setdefault(number, []).append(condition)
                continue
            ranges = zip([first, *(index + 1 for index in places)], [*places, last], strict=True)
            branches = [self.of_occurrences(*each) for each in ranges]
            for number in set.intersection(*map(set, branches)):
                found.setdefault(number, []).append(AnyOf(tuple(tuple(branch[number]) for branch in branches)))
        return found

    def _of_conjunct(self, start: int, end: int) -> Iterator[tuple[int, Condition]]:
        text, (left, index) = self.text, self._operand(start)
        if text.is_word(index, "IN") and text.is_symbol(index + 1, "(") and text.after(index + 1) == end:
            equal = [self._compared(left, "=", *each) for each in text.split(index + 2, end - 1)]
            numbers = {number for each in equal for number, _ in each}
            if len(numbers) == 1 and all(equal):
                yield numbers.pop(), AnyOf(tuple((condition,) for each in equal for _, condition in each))
        elif text.is_word(index, "BETWEEN"):
            middle = next((each for each in text.top(index, end) if text.is_word(each, "AND")), end)
            yield from self._compared(left, ">=", index + 1, middle)
            yield from self._compared(left, "<=", middle + 1, end)
        else:
            operator, after = self._operator(index)
            yield from self._compared(left, operator, after, end)

    def _operator(self, index: int) -> tuple[str, int]:
        """Return the operator at a token, and the index after it."""
        text, first = self.text, index
        if text.is_word(index, "LIKE"):
            return "LIKE", index + 1
        while (token := text.token(index)) is not None and token.kind is TokenKind.SYMBOL and token.text in "<>=!":
            index += 1
        return "".join(token.text for token in text.tokens[first:index]), index

    def _compared(self, left: Operand | None, operator: str, start: int, end: int) -> list[tuple[int, Condition]]:
        """Return the comparison with an operand that is a range, with its occurrence; nothing if it is not certain."""
        right, after = self._operand(start)
        if left is None or right is None or after != end or operator not in _COMPARISONS:
            return []
        kinds = {each.kind if isinstance(each, Named) else _KINDS[type(each)] for each in (left, right)}
        occurrences = {each.occurrence for each in (left, right) if isinstance(each, Named)}
        if len(kinds) > 1 or not kinds <= set(_KINDS.values()) or len(occurrences) != 1:
            return []
        if operator == "LIKE" and not (isinstance(left, Named) and isinstance(right, str) and "_" not in right):
            # Which characters are one for _ is not the same everywhere.
            return []
        return [(occurrences.pop(), Comparison(left, operator, right))]

    def _operand(self, index: int) -> tuple[Operand | None, int]:
        """Return the column or the constant at a token, and the index after it; None for others."""
        text, token = self.text, self.text.token(index)
        if token is None or token.kind is TokenKind.SYMBOL:
            return None, index
        if token.kind is TokenKind.STRING:
            return self._string(index), index + 1
        if token.kind is TokenKind.NUMBER:
            is_long = token.text.isascii() and token.text.isdecimal() and int(token.text) < 1 << 63
            return int(token.text) if is_long else None, index + 1
        if token.is_word("DATE") and self._string(index + 1) is not None:
            return self._date(index + 1), index + 2
        if token.is_word("CAST") and text.is_symbol(index + 1, "("):
            after = text.after(index + 1)
            of_date = text.is_word(index + 3, "AS") and text.is_word(index + 4, "DATE") and after == index + 6
            return self._date(index + 2) if of_date else None, after
        name, after = text.dotted(index)
        return self.named(name), after

    def _string(self, index: int) -> str | None:
        """Return the text at a token. Settings of Spark decide what backslashes and two quotes mean."""
        token = self.text.token(index)
        if token is None or token.kind is not TokenKind.STRING or token.text[0] != "'":
            return None
        value = token.text[1:-1]
        return None if "\\" in value or "'" in value else value

    def _date(self, index: int) -> date | None:
        value = self._string(index)
        if value is None or not _DATE.fullmatch(value):
            return None
        try:
            return date.fromisoformat(value)
        except ValueError:
            return None
