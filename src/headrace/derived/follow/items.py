"""The select list of a followed query with aggregates: calls and group expressions become columns of groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.derived.aggregate_calls import KINDS, is_aggregate_call
from headrace.derived.follow.refusals import NotSplit
from headrace.derived.follow.relations import Select
from headrace.derived.gathering.names import alike
from headrace.derived.own_names import argument_column, group_column, value_column
from headrace.sql_text.expressions import (
    Atom,
    atom_at,
    atoms,
    is_bounded,
    lambda_parameters,
    not_operands,
    operand_end,
    struct_fields,
)
from headrace.sql_text.lexer import TokenKind, quote_name
from headrace.sql_text.query_text import QueryText

if TYPE_CHECKING:
    from headrace.derived.state.aggregates import Kind

_CAST_AS_TEXT = re.compile(r"\(*cast\s*\((.+)\sas\s+string\s*\)\)*", re.DOTALL)


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate, whose result is a `value_column`.

    Attributes:
        kind: its rule; ``count_rows`` is ``count(*)``.
        arguments: the names of its columns in the rows; several for ``count_distinct`` only.
        text: the call as written, for messages.
    """

    kind: Kind
    arguments: tuple[str, ...]
    text: str

    @property
    def sql(self) -> str:
        """The call over the columns of the rows, in Spark SQL."""
        if self.kind == "count_rows":
            return "count(*)"
        if self.kind == "count_distinct":
            return f"count(DISTINCT {', '.join(self.arguments)})"
        return f"{self.kind}({self.arguments[0]})"


@dataclass(frozen=True)
class Group:
    """A group expression: its tokens, its atoms, and whether it is one operand wherever it occurs."""

    start: int
    end: int
    atoms: tuple[Atom, ...]
    primary: bool
    is_window: bool


class Names(Protocol):
    """What Spark says about names in the FROM clause of one SELECT. Names are in Spark SQL, with quotes."""

    def is_column(self, name: str) -> bool:
        """Return whether a name is a column, or a field of one. An ambiguous name is a column."""

    def is_same(self, left: str, right: str) -> bool:
        """Return whether two names are the same column or field."""


class Items:
    """Converts the items and HAVING of one SELECT."""

    def __init__(self, text: QueryText, select: Select, names: Names) -> None:
        self._text = text
        self._select = select
        self._names = names
        self._arguments: dict[str, str] = {}
        self._calls: dict[str, int] = {}
        self.aggregates: list[AggregateCall] = []
        self.groups = self._groups()
        self._windows = [number for number, group in enumerate(self.groups) if group.is_window]

    @property
    def argument_items(self) -> tuple[str, ...]:
        """The expressions of the argument columns."""
        return tuple(self._arguments)

    @property
    def group_items(self) -> tuple[str, ...]:
        """The expressions of the group columns."""
        return tuple(self._text.render(group.start, group.end, []) for group in self.groups)

    # -- GROUP BY -------------------------------------------------------------------------------------

    def _groups(self) -> list[Group]:
        if self._select.block.group is None:
            return []
        text = self._text
        start, end = self._select.block.group
        groups: list[Group] = []
        if text.is_word(start, "ALL") and start + 1 == end:
            ranges = [
                (item.start, item.end)
                for number, item in enumerate(self._select.items)
                if not self.uses_aggregates(item.start, item.end, number)
            ]
        else:
            self._check_grouping_sets(start, end)
            ranges = [self._grouping(*each) for each in text.split(start, end)]
        for each in ranges:
            group = self._group(*each)
            if not any(self._are_same(group.atoms, known.atoms) for known in groups):
                groups.append(group)
        return groups

    def _check_grouping_sets(self, start: int, end: int) -> None:
        text = self._text
        for index in text.top(start, end):
            sets = text.is_word(index, "GROUPING") and text.is_word(index + 1, "SETS")
            with_ = text.is_word(index, "WITH") and text.is_word(index + 1, "ROLLUP", "CUBE")
            call = text.is_word(index, "ROLLUP", "CUBE") and text.is_symbol(index + 1, "(")
            if sets or with_ or call:
                raise NotSplit("GROUPING SETS, ROLLUP or CUBE")

    def _grouping(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of an element of GROUP BY; of the item that a number or an alias names."""
        text, items = self._text, self._select.items
        if start >= end:
            raise NotSplit("an element of GROUP BY without an expression")
        token = text.tokens[start]
        if end == start + 1:
            if token.kind is TokenKind.NUMBER and token.text.isdigit():
                number = int(token.text)
                if not 1 <= number <= len(items):
                    raise NotSplit(f"no item {number} in the select list")
                return items[number - 1].start, items[number - 1].end
            if token.is_name:
                named = [item for item in items if item.alias is not None and alike(item.alias, token.name)]
                if named and not self._names.is_column(quote_name(token.name)):
                    return named[0].start, named[0].end
        while text.is_symbol(start, "(") and text.closing[start] == end - 1:
            if len(text.split(start + 1, end - 1)) > 1:
                raise NotSplit("a list in parentheses in GROUP BY")
            start, end = start + 1, end - 1
        return start, end

    def _group(self, start: int, end: int) -> Group:
        text = self._text
        if any(is_aggregate_call(text, index) for index in range(start, end)):
            raise NotSplit("an aggregate in GROUP BY")
        primary = operand_end(text, start, end) == end
        window = text.is_word(start, "WINDOW") and text.is_symbol(start + 1, "(") and text.after(start + 1) == end
        return Group(start, end, tuple(atoms(text, start, end)), primary, window)

    # -- aggregates -----------------------------------------------------------------------------------

    def _aggregate(self, index: int) -> tuple[int, int]:
        """Return the number of the aggregate whose name is a token, and the index after the call."""
        text = self._text
        name = text.tokens[index].name.lower()
        closing = text.closing[index + 1]
        first, end = index + 2, closing + 1
        condition: str | None = None
        if text.is_word(end, "FILTER") and text.is_symbol(end + 1, "(") and text.is_word(end + 2, "WHERE"):
            condition = text.render(end + 3, text.closing[end + 1], [])
            end = text.after(end + 1)
            if any(text.is_star(each) for each in range(closing, end)):
                raise NotSplit(f"a star in FILTER of {name}")
        if text.is_word(end, "OVER", "IGNORE", "RESPECT", "WITHIN"):
            raise NotSplit(f"{name} with {text.tokens[end].text.upper()}")
        distinct = text.is_word(first, "DISTINCT")
        first += distinct or text.is_word(first, "ALL")
        shown = text.shown(index, end)
        call = self._call(name, first, closing, distinct, condition, shown)
        key = repr((call.kind, call.arguments))
        if key not in self._calls:
            self._calls[key] = len(self.aggregates)
            self.aggregates.append(call)
        return self._calls[key], end

    def _call(
        self, name: str, first: int, closing: int, distinct: bool, condition: str | None, shown: str
    ) -> AggregateCall:
        text = self._text
        kind = KINDS[name]
        if distinct and kind in ("sum", "avg"):
            raise NotSplit(f"{name}(DISTINCT …)")
        if name == "count" and first + 1 == closing and text.is_symbol(first, "*") and not distinct:
            if condition is None:
                return AggregateCall("count_rows", (), shown)
            return AggregateCall("count", (self._argument(f"CASE WHEN ({condition}) THEN 1 END"),), shown)
        if any(text.is_star(i) for i in range(first, closing)):
            raise NotSplit(f"a star in {name}(…)")
        if any(is_aggregate_call(text, inner) for inner in range(first, closing)):
            raise NotSplit("an aggregate inside of an aggregate")
        parts = [text.render(*each, []) for each in text.split(first, closing)] if first < closing else []
        if not parts or (len(parts) > 1 and kind != "count") or (name == "count_if" and len(parts) > 1):
            raise NotSplit(f"{name} with another number of arguments than one")
        if name == "count_if":
            if distinct:
                raise NotSplit("count_if(DISTINCT …)")
            parts = [f"CASE WHEN ({parts[0]}) THEN 1 END"]
        literal = first + 1 == closing and text.tokens[first].kind in (TokenKind.NUMBER, TokenKind.STRING)
        if name == "count" and literal and not distinct and condition is None:
            return AggregateCall("count_rows", (), shown)
        if kind == "count" and not distinct and len(parts) > 1:
            parts = [f"CASE WHEN {' AND '.join(f'({part}) IS NOT NULL' for part in parts)} THEN 1 END"]
        if condition is not None:
            parts = [f"CASE WHEN ({condition}) THEN ({part}) END" for part in parts]
        kind = "count_distinct" if distinct and kind == "count" else kind
        return AggregateCall(kind, tuple(map(self._argument, parts)), shown)

    def _argument(self, expression: str) -> str:
        if expression not in self._arguments:
            self._arguments[expression] = argument_column(len(self._arguments))
        return self._arguments[expression]

    # -- items and HAVING -----------------------------------------------------------------------------

    def converted(self, start: int, end: int, visible: int) -> str:
        """Return a range as SQL over the columns of groups. Subqueries stay as they are.

        Args:
            visible: the number of items whose aliases the range can use.
        """
        text = self._text
        self._check_lambdas(start, end)
        fields, aliases = struct_fields(text, start, end)
        skipped = not_operands(text, start, end) | aliases
        edits: list[tuple[int, int, str]] = []
        index = start
        while index < end:
            if text.is_symbol(index, "(") and text.is_query(index):
                index = text.after(index)
                continue
            if is_aggregate_call(text, index):
                number, after = self._aggregate(index)
                edits.append((index, after, self._as_field(value_column(number), fields, index, after)))
                index = after
                continue
            atom = atom_at(text, index)
            found = None if index in skipped else self._found(start, end, index, atom, visible)
            if found is None:
                index = atom.end
            else:
                after, column = found
                edits.append((index, after, self._as_field(column, fields, index, after)))
                index = after
        return text.render(start, end, edits)

    def _as_field(self, column: str, fields: Mapping[tuple[int, int], int], start: int, end: int) -> str:
        """Return what replaces a range; if it is a field of a struct, with the name that Spark gives the field."""
        place, text = fields.get((start, end)), self._text
        if place is None:
            return column
        if text.is_name(start) and (named := text.dotted(start))[1] == end:
            return f"{column} AS {quote_name(named[0][-1])}"
        if is_aggregate_call(text, start) or (text.is_call(start) and text.after(start + 1) == end):
            return f"{column} AS col{place}"
        raise NotSplit("a struct with a field whose name depends on its expression")

    def _found(self, start: int, end: int, index: int, atom: Atom, visible: int) -> tuple[int, str] | None:
        """Return the end and the replacement of the group expression or alias at a token; None if there is none."""
        matching = [
            (after, number)
            for number, group in enumerate(self.groups)
            if (after := self._match(group, start, end, index)) is not None
        ]
        if matching:
            after, number = max(matching, key=lambda each: (each[0], -each[1]))
            return after, group_column(number)
        if atom.kind != "name":
            return None
        fields = [
            (length, number)
            for number, group in enumerate(self.groups)
            if len(group.atoms) == 1 and (length := self._prefix(group.atoms[0], atom)) is not None
        ]
        if fields:
            length, number = max(fields)
            return atom.end, ".".join((group_column(number), *map(quote_name, atom.written[length:])))
        alias = self._alias(atom, visible)
        if alias is not None:
            return atom.end, "".join((f"({alias})", *(f".{quote_name(part)}" for part in atom.written[1:])))
        if atom.parts[0] == "window" and len(self._windows) == 1:
            return atom.end, ".".join((group_column(self._windows[0]), *map(quote_name, atom.written[1:])))
        return None

    def _is_same(self, left: Atom, right: Atom) -> bool:
        """Return whether two atoms mean the same. For names of other texts, Spark says it."""
        if left.kind != right.kind or left.parts == right.parts:
            return left.kind == right.kind
        named = left.kind == "name" and left.parts[-1] == right.parts[-1]
        return named and self._names.is_same(left.sql(), right.sql())

    def _are_same(self, left: tuple[Atom, ...], right: tuple[Atom, ...]) -> bool:
        return len(left) == len(right) and all(map(self._is_same, left, right))

    def _prefix(self, group: Atom, atom: Atom) -> int | None:
        """Return the number of parts of a name that are a group's name. The others are fields of the group."""
        if group.kind != "name":
            return None
        for length in range(len(atom.written) - 1, 0, -1):
            if self._is_same(group, Atom("name", atom.parts[:length], atom.end, atom.written[:length])):
                return length
        return None

    def _match(self, group: Group, start: int, end: int, index: int) -> int | None:
        """Return the index after a group expression that begins at a token; None if there is none."""
        after = index
        for wanted in group.atoms:
            if after >= end:
                return None
            found = atom_at(self._text, after)
            if not self._is_same(wanted, found):
                return None
            after = found.end
        if group.primary or is_bounded(self._text, start, end, index, after):
            return after
        return None

    def _alias(self, atom: Atom, visible: int) -> str | None:
        """Return the converted expression of the item with an alias, if a name is one. A column precedes an alias."""
        items, name = self._select.items, atom.written[0]
        found = [number for number, item in enumerate(items[:visible]) if item.alias and alike(item.alias, name)]
        if not found:
            return None
        if self._names.is_column(atom.sql()):
            if visible < len(items):
                return None
            # Spark takes the alias, with the type of the column.
            raise NotSplit(f"in HAVING, {name} is the alias of an item and the name of a column")
        item = items[found[-1]]
        return self.converted(item.start, item.end, found[-1])

    def _check_lambdas(self, start: int, end: int) -> None:
        names = lambda_parameters(self._text, start, end)
        if not names:
            return
        used = {part for group in self.groups for atom in group.atoms if atom.kind == "name" for part in atom.parts}
        relations = [each.relation for each in self._select.relations]
        used |= {name.lower() for each in relations for name in ((each.alias,) if each.alias else each.name)}
        used |= {item.alias.lower() for item in self._select.items if item.alias is not None}
        used |= {"window"} if self._windows else set()
        if used & names:
            raise NotSplit("a parameter with the name of a column of GROUP BY, of a relation or of an item")

    def copied(self, converted: str) -> tuple[int, bool] | None:
        """Return the group of which an item is a plain copy, or the start or end of its window, and whether as text.

        The result is None for any other expression. A copy as text is ``CAST(… AS STRING)``.
        """
        plain = converted.replace("`", "").lower().strip()
        cast = _CAST_AS_TEXT.fullmatch(plain)
        plain = _plain(plain if cast is None else cast[1])
        for number, group in enumerate(self.groups):
            column = group_column(number)
            bounds = (f"{column}.start", f"{column}.end") if group.is_window else ()
            if plain in (column, *bounds):
                return number, cast is not None
        return None

    def column(self, converted: str) -> str | None:
        """Return the column of groups that an item is; None if it is more than a column."""
        plain = _plain(converted)
        groups = map(group_column, range(len(self.groups)))
        aggregates = map(value_column, range(len(self.aggregates)))
        return plain if plain in (*groups, *aggregates) else None

    def uses_aggregates(self, start: int, end: int, visible: int) -> bool:
        """Return whether an expression needs more than the groups."""
        for index in range(start, end):
            if is_aggregate_call(self._text, index):
                return True
            if self._text.is_name(index) and not self._text.is_symbol(index - 1, "."):
                name = self._text.tokens[index].name
                for number, item in enumerate(self._select.items[:visible]):
                    named = item.alias is not None and alike(item.alias, name)
                    if (
                        named
                        and self.uses_aggregates(item.start, item.end, number)
                        and not self._names.is_column(atom_at(self._text, index).sql())
                    ):
                        return True
        return False


def _plain(converted: str) -> str:
    return converted.strip("() \n\t").replace("`", "").lower()
