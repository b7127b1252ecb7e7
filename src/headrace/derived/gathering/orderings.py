"""On which orders a query depends, and what it chooses by them: windows, LIMIT, and aggregates of any row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace.derived.aggregate_calls import after_call, is_builtin_call
from headrace.derived.gathering.model import Ordering, Origin, Output, Place, QueryModel
from headrace.derived.gathering.names import Scope, alike
from headrace.sql_text.query_text import Block, QueryText

LIMITS = ("LIMIT", "OFFSET")
# Aggregates that choose the value of any row of a group, and of the row that is the first in an order.
_OF_ANY_ROW = ("ANY_VALUE", "FIRST", "FIRST_VALUE", "LAST", "LAST_VALUE")
_OF_THE_FIRST_ROW = ("MAX_BY", "MIN_BY")


@dataclass(frozen=True)
class Groups:
    """The groups of a SELECT.

    Attributes:
        origins: the columns of GROUP BY, with None for each computed one; nothing for sets of groups.
        places: the same, with a column of the relation of the groups for each computed one. None for sets of groups.
        number: the relation of the groups.
    """

    origins: list[Origin | None]
    places: tuple[Place, ...] | None
    number: int


class Orderings:
    """Notes the orders of a query in its model.

    Args:
        kind_of: returns the kind of the values of a column of a table; None for other columns.
        has_collations: whether different texts can be equal.
    """

    def __init__(
        self, text: QueryText, model: QueryModel, kind_of: Callable[[Place], str | None], *, has_collations: bool
    ) -> None:
        self._text = text
        self._model = model
        self._kind = kind_of
        self._has_collations = has_collations
        # For a column of several branches that of the set operation.
        self.united: dict[Origin, Place] = {}

    def note(
        self,
        block: Block,
        end: int,
        scope: Scope,
        outputs: Sequence[Output],
        places: Sequence[Place],
        groups: Groups | None,
        number: int,
    ) -> None:
        """Note the orders of the windows and of LIMIT, and what aggregates choose."""
        text = self._text
        rows = tuple(scope.rows) if groups is None else (groups.number,)
        named = [(name, place) for (name, _), place in zip(outputs, places, strict=True)]
        for index, opening in self.windows(block, end):
            columns: list[Place] = []
            inside = (opening + 1, text.closing.get(opening, opening + 1))
            for at in text.top(*inside):
                columns += self._ordered_by(at, inside[1], scope, named, number, own_first=True)
            self._model.orderings.append(Ordering(index, tuple(columns), rows))
        if groups is not None:
            group = groups.places or ()
            for index in text.outside_of_queries(block.start + 1, end):
                if is_builtin_call(text, index):
                    self._choice(index, scope, group, number)
        for index in text.top(block.where_end, end):
            if text.is_word(index, *LIMITS):
                self.limit(index, block.where_end, scope, named, number)

    def numbered(self, block: Block, end: int, scope: Scope, number: int) -> Iterator[tuple[Place, ...]]:
        """Yield the keys of a SELECT that are numbers of rows, with the columns of PARTITION BY."""
        text = self._text
        for start, after in text.split(*block.select):
            last = text.item(start, after).end
            opening = self.window(start + 4, block, end)
            numbered = text.is_word(start, "ROW_NUMBER") and text.is_word(start + 3, "OVER")
            if numbered and text.is_symbol(opening, "(") and text.after(start + 4) == last:
                columns = [self.place(start, last, scope, (), number)]
                if text.is_word(opening + 1, "PARTITION"):
                    inside = opening + 3, text.closing[opening]
                    ends = (index for index in text.top(*inside) if text.is_word(index, "ORDER", "SORT"))
                    parts = text.split(inside[0], next(ends, inside[1]))
                    columns += [self.place(*part, scope, (), number) for part in parts]
                yield tuple(columns)

    def limit(
        self, index: int, start: int, scope: Scope, named: Sequence[tuple[str | None, Place]], number: int
    ) -> None:
        """Note the order of a LIMIT over a relation that the query makes."""
        columns: list[Place] = []
        for at in self._text.top(start, index):
            if self._text.is_word(at, "ORDER") and self._text.is_word(at + 2, "ALL"):
                columns += self._sortable(place for _, place in named)
            elif self._text.is_word(at, "ORDER"):
                columns += self._ordered_by(at, index, scope, named, number)
        self._model.orderings.append(Ordering(index, tuple(columns), (number,)))

    def _choice(
        self,
        index: int,
        scope: Scope,
        group: tuple[Place, ...],
        number: int,
    ) -> None:
        """Note what an aggregate chooses from the rows of a group."""
        text, closing = self._text, self._text.closing[index + 1]
        after = after_call(text, index)
        arguments = text.split(index + 2 + text.is_word(index + 2, "DISTINCT"), closing)
        if text.is_word(after, "OVER"):
            return
        if text.is_word(index, *_OF_ANY_ROW):
            value = self.place(*arguments[0], scope, (), number)
            self._model.orderings.append(Ordering(index, group, values=(value,)))
        elif text.is_word(index, *_OF_THE_FIRST_ROW) and len(arguments) == 2:
            first, last = arguments[1]
            if text.is_word(first, "STRUCT") and text.after(first + 1) == last:
                parts = text.split(first + 2, last - 1)
            else:
                parts = [(first, last)]
            order = tuple(self.place(*part, scope, (), number) for part in parts)
            self._model.orderings.append(Ordering(index, (*group, *self._sortable(order)), tuple(scope.rows)))
        elif text.is_word(closing + 1, "WITHIN") and text.is_symbol(closing + 3, "("):
            columns = tuple(self._ordered_by(closing + 4, text.closing[closing + 3], scope, (), number))
            # Equal texts are the same, unless by a collation.
            same = self.place(*arguments[0], scope, (), number) in columns and not self._has_collations
            rows = () if same else tuple(scope.rows)
            self._model.orderings.append(Ordering(index, (*group, *columns), rows))

    def _ordered_by(
        self,
        index: int,
        end: int,
        scope: Scope,
        named: Sequence[tuple[str | None, Place]],
        number: int,
        *,
        own_first: bool = False,
    ) -> Iterator[Place]:
        """Yield the columns of PARTITION BY or ORDER BY, if it begins at a token."""
        text = self._text
        if not (text.is_word(index, "PARTITION", "ORDER", "SORT", "DISTRIBUTE") and text.is_word(index + 1, "BY")):
            return
        ends = ("PARTITION", "ORDER", "SORT", "DISTRIBUTE", "ROWS", "RANGE", "GROUPS", *LIMITS)
        last = next((each for each in text.top(index + 2, end) if text.is_word(each, *ends)), end)
        places = []
        for first, after in text.split(index + 2, last):
            if text.is_word(after - 2, "NULLS") and text.is_word(after - 1, "FIRST", "LAST"):
                after -= 2
            after -= text.is_word(after - 1, "ASC", "DESC")
            if first < after:
                places.append(self.place(first, after, scope, named, number, own_first=own_first))
        yield from self._sortable(places)

    def _sortable(self, places: Iterable[Place]) -> Iterator[Place]:
        """Yield the columns whose values are the same if an order finds them equal."""
        for place in places:
            if self._kind(place) is not None or (place.occurrence < 0 and not self._has_collations):
                yield place

    def place(
        self,
        start: int,
        end: int,
        scope: Scope,
        named: Sequence[tuple[str | None, Place]],
        number: int,
        *,
        own_first: bool = False,
    ) -> Place:
        """Return the column that an expression is: also of the relation ``number``, under the expression's text.

        Args:
            named: the columns of the SELECT by name, which the expression can mean by name or number.
            own_first: whether a name is first that of a column of FROM.
        """
        text = self._text
        start, end = text.without_brackets(start, end)
        alias = None
        if end == start + 1 and named:
            token = text.tokens[start]
            if token.text.isdecimal() and 1 <= int(token.text) <= len(named) and not own_first:
                return named[int(token.text) - 1][1]
            alias = next((place for name, place in named if token.is_name and name and alike(name, token.name)), None)
        if alias is not None and not own_first:
            return alias
        if text.is_name(start) and text.dotted(start)[1] == end:
            # An alias comes before a column of a query around this one.
            own = scope if alias is None else Scope(None, scope.relations)
            origin = own.origin(text.dotted(start)[0])
            if origin is not None:
                return self.identity(origin)
            if alias is not None:
                return alias
        return Place(number, self._written(start, end, scope))

    def identity(self, origin: Origin) -> Place:
        return origin[0] if len(origin) == 1 else self.united[origin]

    def _written(self, start: int, end: int, scope: Scope) -> str:
        """Return an expression as a text that is the same if it is written in another way."""
        text, words, index = self._text, list[str](), start
        while index < end:
            token, following = text.tokens[index], index + 1
            word = token.name.lower() if token.is_name else token.text
            if token.is_name and not text.is_symbol(index - 1, "."):
                parts, after = text.dotted(index)
                origin = None if text.is_symbol(after, "(") else scope.origin(parts)
                if origin is not None:
                    place = self.identity(origin)
                    word, following = f"{place.occurrence} {place.column}", after
            words.append(word)
            index = following
        return "\n".join(words)

    def windows(self, block: Block, end: int) -> Iterator[tuple[int, int]]:
        """Yield the tokens after OVER, outside of subqueries, and the brackets of their windows."""
        text = self._text
        for index in text.outside_of_queries(block.start, end):
            of_nulls = text.is_word(index - 1, "NULLS") and text.is_word(index - 2, "IGNORE", "RESPECT")
            if text.is_word(index, "OVER") and text.is_symbol(index - 3 if of_nulls else index - 1, ")"):
                yield index + 1, self.window(index + 1, block, end)

    def window(self, index: int, block: Block, end: int) -> int:
        """Return the opening bracket of a window, which can have a name in the clause WINDOW; else the token."""
        text, seen = self._text, list[str]()
        while (name := text.window_name(index)) is not None and name.lower() not in seen:
            seen.append(name.lower())
            named = (at for at in text.top(block.where_end, end) if text.is_word(at, "AS") and text.is_name(at - 1))
            defined = (at for at in named if text.is_word(at - 2, "WINDOW") or text.is_symbol(at - 2, ","))
            index = next((at + 1 for at in defined if alike(text.tokens[at - 1].name, name)), index)
        return index
