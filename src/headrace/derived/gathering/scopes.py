"""The structure of a query from its text: which tables it names where, and which of their columns must be equal.

The text says what Spark's plans would say, but also over Spark Connect and in each version of Spark. Only whole
conjuncts of WHERE and ON count that compare two plain columns, or such a comparison in each branch of an OR; and only
columns of tables: a column that is computed is equal to none. An equality that is overlooked costs time, because a
table is then read as a whole. So whatever is not certain is left out, and a query whose structure is not certain has no
model.

A link between columns of types with different rules for equality is left out as well; see `Columns`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from headrace.derived.aggregate_calls import is_any_aggregate, is_generator
from headrace.derived.gathering import constructs
from headrace.derived.gathering.between import can_be_between
from headrace.derived.gathering.conditions import Conditions, Named
from headrace.derived.gathering.constructs import Construct
from headrace.derived.gathering.model import Link, Occurrence, Origin, Output, Place, QueryModel, Unit
from headrace.derived.gathering.names import Scope, Visible, alike
from headrace.derived.gathering.orderings import LIMITS, Groups, Orderings
from headrace.sql_text.expressions import ends_operand
from headrace.sql_text.query_text import Block, Item, QueryText, Range, Relation

_UNCLEAR_IN_FROM = ("PIVOT", "UNPIVOT", "TABLESAMPLE", "MATCH_RECOGNIZE", "ASOF", "STREAM")
_COMPARISONS = ("=", "==", "<", "<=", ">", ">=", "<>", "!=")
_SETS = ("ROLLUP", "CUBE", "GROUPING")
_AFTER_NAMES = ("LATERAL", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "JOIN", "ON")
Kind: TypeAlias = Literal["join", "subquery", "derived"]


@dataclass(frozen=True)
class Columns:
    """The columns of a table.

    Attributes:
        kinds: for each column its name and the kind of its values: equal values of one kind have equal keys. None for
            columns that cannot be keys.
        key: the table's primary key. A table without columns in it has one row.
        changes: whether the table is followed.
        collated: whether a column has a collation, so that different texts can be equal.
        null_keys: whether columns of the key can be null.
    """

    kinds: Mapping[str, str | None]
    key: tuple[str, ...] = ()
    changes: bool = True
    collated: bool = False
    null_keys: bool = False


class UnclearStructure(Exception):
    """The text has a part whose structure is not read; the argument is its name."""


def read_model(text: QueryText, tables: Mapping[str, Columns]) -> QueryModel:
    """Return the structure of a valid query.

    Args:
        tables: the tables that the query can name, by their names in lower case.

    Raises:
        UnclearStructure: it is not certain.
    """
    reader = _Reader(text, tables)
    answer = reader.query(0, len(text.tokens), None, 0)
    reader.model.result, reader.model.outputs = answer.number, list(answer.outputs)
    if reader.selects != {index for index in range(len(text.tokens)) if text.is_word(index, "SELECT")}:
        raise UnclearStructure("a query of WITH that nothing reads, or a subquery as an argument in FROM")
    reader.assign_links()
    return reader.model


@dataclass(frozen=True)
class _Equality:
    """An equality of a filter, in the unit of its SELECT; or of the condition of an outer join, between its units."""

    left: Origin
    right: Origin
    unit: int
    joined: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Answer:
    """What a query gives: the number of the relation that it makes, and its columns."""

    number: int
    outputs: Sequence[Output]


class _Reader:
    def __init__(self, text: QueryText, tables: Mapping[str, Columns]) -> None:
        self._text = text
        self._tables = tables
        self._kinds: dict[int, Kind] = {}
        self._equalities: list[_Equality] = []
        # The columns that partition the rows of a unit, the best ones first.
        self._partitions: dict[int, list[Origin]] = {}
        self._has_collations = any(table.collated for table in tables.values()) or any(
            token.is_word("COLLATE") for token in text.tokens
        )
        self.selects: set[int] = set()
        self.model = QueryModel()
        self._orderings = Orderings(text, self.model, self._kind, has_collations=self._has_collations)

    # -- queries ----------------------------------------------------------------------------------------

    def query(self, start: int, end: int, outer: Scope | None, unit: int) -> _Answer:
        """Read a query into a unit; return what it gives."""
        text = self._text
        start, end = text.without_brackets(start, end)
        if text.is_word(start, "WITH"):
            if text.is_word(start + 1, "RECURSIVE"):
                raise UnclearStructure("WITH RECURSIVE")
            start = max((each.end for each in text.definitions_at(start + 1)), default=start)
        if any(text.begins_pipe(index) for index in text.top(start, end)):
            raise UnclearStructure("a pipe")
        operations = list(text.set_operations(start, end))
        if not operations:
            if text.is_word(start, "VALUES"):
                return self._values(start + 1)
            return self._select(start, end, outer, unit)
        return self._set_operation(start, end, operations, outer, unit)

    def _values(self, first: int) -> _Answer:
        """Return the columns of VALUES."""
        text, number = self._text, self.model.make()
        opening = first + text.is_word(first, "STRUCT")
        count = len(text.split(opening + 1, text.closing[opening])) if text.is_symbol(opening, "(") else 1
        places = [Place(number, f"column {each}") for each in range(count)]
        return self._answer(number, [(f"col{n}", (place,)) for n, place in enumerate(places, 1)], places)

    def _answer(self, number: int, outputs: Sequence[Output], places: Sequence[Place]) -> _Answer:
        """Return a relation whose rows with the same columns are all the same, unless a collation makes them equal."""
        if not self._has_collations:
            self.model.made[-number - 1].keys.append(tuple(places))
        return _Answer(number, outputs)

    def _set_operation(
        self, start: int, end: int, operations: Sequence[int], outer: Scope | None, unit: int
    ) -> _Answer:
        text = self._text
        united = all(text.is_word(each, "UNION") and text.is_word(each + 1, "ALL") for each in operations)
        at = self.model.units[unit]
        tail = next((index for index in text.top(operations[-1], end) if self._has_tail(index)), end)
        if any(self._has_tail(index) for index in text.top(start, operations[-1])) or any(
            text.is_word(each + 1, "BY", "NAME") or text.is_word(each + 2, "BY") for each in operations
        ):
            raise UnclearStructure("ORDER BY or LIMIT in a set operation, or BY NAME")
        limits = [index for index in text.top(tail, end) if text.is_word(index, *LIMITS)]
        words = list(dict.fromkeys(text.tokens[each].text.upper() for each in operations))
        if limits:
            united = False
            words.append("LIMIT")
        if not united or not at.independent:
            at.groupings += words
        branches: list[Sequence[Output]] = []
        first = start
        for each in (*operations, tail):
            inner = unit
            if united and at.independent:
                branch = self.model.add_unit(unit, "branch of UNION ALL", constructs.JOIN)
                branch.independent = True
                inner = branch.number
            branches.append(self.query(first, each, outer, inner).outputs)
            first = each + 1 + text.is_word(each + 1, "ALL", "DISTINCT")
        outputs = [(columns[0][0], self._all_of(columns)) for columns in zip(*branches, strict=False)]
        number = self.model.make()
        places = [Place(number, f"column {each}") for each in range(len(outputs))]
        self._orderings.united |= {
            origin: place for (_, origin), place in zip(outputs, places, strict=True) if origin is not None
        }
        columns = [(name, origin or (place,)) for (name, origin), place in zip(outputs, places, strict=True)]
        named = [(name, place) for (name, _), place in zip(outputs, places, strict=True)]
        for index in limits:
            self._orderings.limit(index, tail, Scope(None), named, number)
        if not united or not at.independent:
            self._partitions[unit] = [] if limits else [origin for _, origin in outputs if origin is not None]
            if not self._partitions[unit]:
                at.unpartitioned = constructs.LIMIT if limits else constructs.SET_OPERATION
        return self._answer(number, columns, places)

    def _has_tail(self, index: int) -> bool:
        text = self._text
        return text.is_word(index, *LIMITS) or (text.is_word(index, "ORDER", "SORT") and text.is_word(index + 1, "BY"))

    def _all_of(self, columns: Sequence[Output]) -> Origin | None:
        """Return the origin of a column of a set operation: that of each branch, all of one kind."""
        places: list[Place] = []
        for _, origin in columns:
            if origin is None or len(origin) > 1:
                return None
            places += origin
        kinds = {self._kind(place) for place in places}
        return tuple(places) if len(kinds) == 1 and None not in kinds else None

    # -- one SELECT -------------------------------------------------------------------------------------

    def _select(self, start: int, end: int, outer: Scope | None, unit: int) -> _Answer:
        text = self._text
        if not text.is_word(start, "SELECT"):
            raise UnclearStructure(f"a query that begins with {text.tokens[start].text.upper()}")
        block, scope = text.block(start, end), Scope(outer)
        self.selects.add(start)
        scope.star = self._from_clause(*block.from_, scope, unit)
        self._equal(block.where, scope, unit, frozenset())
        self._subqueries(*block.where, scope, unit, filters=True)
        self._subqueries(start + 1, block.from_[0], scope, unit)
        # After GROUP BY a name can be an alias of an item.
        self._subqueries(block.where_end, end, Scope(None, [Visible((), None)]), unit)
        number = self.model.make()
        outputs, places = self._outputs(block, end, scope, number, unit)
        self.model.made[-number - 1].parts = tuple(scope.rows)
        groups = self._groups(block, scope, outputs, places, number) if self._is_aggregated(block) else None
        if groups is not None:
            self.model.aggregated.add(block.start)
            self.model.made[-number - 1].parts = (groups.number,)
        self._orderings.note(block, end, scope, outputs, places, groups, number)
        self.model.made[-number - 1].keys += self._orderings.numbered(block, end, scope, number)
        allowed = self._partition(block, end, scope, outputs, groups, self.model.units[unit])
        if allowed is None:
            named = [(name, origin or (place,)) for (name, origin), place in zip(outputs, places, strict=True)]
            return self._answer(number, named, places)
        # Subqueries in FROM have units of their own, and the branches of a set operation are partitioned together.
        self._partitions[unit] = allowed
        named = []
        for (name, origin), place in zip(outputs, places, strict=True):
            if origin is not None and origin not in allowed:
                # Rows with other values of it can be in the same group or window.
                copy = Place(number, f"{place.occurrence} {place.column}")
                self.model.made[-number - 1].copies.append((copy, place))
                origin = (copy,)
            named.append((name, origin or (place,)))
        return self._answer(number, named, places)

    def _partition(
        self,
        block: Block,
        end: int,
        scope: Scope,
        outputs: Sequence[Output],
        groups: Groups | None,
        unit: Unit,
    ) -> list[Origin] | None:
        """Return the columns that partition the rows of a SELECT; None if its rows do not influence each other."""
        allowed: list[Origin] | None = None
        for shown, construct, columns in self._groupings(block, end, scope, outputs, groups):
            allowed = columns if allowed is None else [each for each in allowed if each in columns]
            unit.groupings.append(shown)
            if not allowed and unit.unpartitioned is None:
                unit.unpartitioned = construct
        return allowed

    def _groupings(
        self, block: Block, end: int, scope: Scope, outputs: Sequence[Output], groups: Groups | None
    ) -> Iterator[tuple[str, Construct, list[Origin]]]:
        """Yield why the rows of a SELECT influence each other: text, construct, and columns that partition the rows."""
        text = self._text
        if groups is not None:
            yield *self._grouping(block), [origin for origin in groups.origins if origin is not None]
        for _, window in self._orderings.windows(block, end):
            shown = text.shown(window, text.closing.get(window, window) + 1)
            yield f"OVER {shown}", constructs.WINDOW, self._window_keys(window, scope)
        if text.is_word(block.start + 1, "DISTINCT") and not text.is_symbol(block.start + 2, ","):
            yield "DISTINCT", constructs.DISTINCT, [origin for _, origin in outputs if origin is not None]
        if any(text.is_word(index, *LIMITS) for index in text.top(block.where_end, end)):
            yield "LIMIT", constructs.LIMIT, []

    def _grouping(self, block: Block) -> tuple[str, Construct]:
        text = self._text
        if block.group is None:
            return "aggregates of all rows", constructs.TOTAL
        start, end = block.group
        last = next((index for index in text.top(start, end) if self._ends_groups(index)), end)
        sets = any(text.is_word(index, *_SETS) for index in text.top(start, last))
        return f"GROUP BY {text.shown(start, last)}", constructs.SETS if sets else constructs.GROUPS

    def _is_aggregated(self, block: Block) -> bool:
        items = (block.start + 1, block.select[1])
        return block.group is not None or block.having is not None or self._has_aggregate(items)

    def _has_aggregate(self, items: Range) -> bool:
        return any(is_any_aggregate(self._text, index) for index in self._text.outside_of_queries(*items))

    def _groups(
        self, block: Block, scope: Scope, outputs: Sequence[Output], places: Sequence[Place], select: int
    ) -> Groups:
        """Return the groups of a SELECT with aggregates, which makes the relation ``select``."""
        text, number = self._text, self.model.make()
        named = [(name, place) for (name, _), place in zip(outputs, places, strict=True)]
        origins: list[Origin | None] = []
        keys: list[Place] = []
        start, end = block.group or (0, 0)
        tail = next((index for index in text.top(start, end) if self._ends_groups(index)), end)
        if any(text.is_word(index, *_SETS) for index in text.top(start, tail)):
            return Groups([], None, number)
        if text.is_word(start, "ALL") and start + 1 == tail:
            origins = [origin for _, origin in outputs]
            items = text.split(*block.select)
            if len(items) != len(places):
                return Groups(origins, None, number)
            keys = [place for place, item in zip(places, items, strict=True) if not self._has_aggregate(item)]
        elif block.group is not None:
            for first, last in text.split(start, tail):
                token = text.tokens[first]
                is_number = last == first + 1 and token.text.isdecimal()
                keys.append(self._orderings.place(first, last, scope, named, select, own_first=not is_number))
                if is_number:
                    number_of_item = int(token.text)
                    inside = 1 <= number_of_item <= len(outputs)
                    origins.append(outputs[number_of_item - 1][1] if inside else None)
                elif text.is_name(first) and text.dotted(first)[1] == last:
                    origins.append(self._group(text.dotted(first)[0], scope, outputs))
                else:
                    origins.append(None)
        self.model.made[-number - 1].keys.append(tuple(keys))
        return Groups(origins, tuple(keys), number)

    def _ends_groups(self, index: int) -> bool:
        text = self._text
        qualified = text.is_word(index, "QUALIFY") and ends_operand(text, index - 1)
        return qualified or text.begins_windows(index) or self._has_tail(index)

    def _group(self, parts: tuple[str, ...], scope: Scope, outputs: Sequence[Output]) -> Origin | None:
        origin = scope.origin(parts)
        if origin is None and len(parts) == 1:
            # The alias of an item.
            named = [origin for name, origin in outputs if name is not None and alike(name, parts[0])]
            return named[0] if len(named) == 1 else None
        return origin

    def _window_keys(self, opening: int, scope: Scope) -> list[Origin]:
        text = self._text
        if not text.is_symbol(opening, "(") or not text.is_word(opening + 1, "PARTITION"):
            return []
        start, end = opening + 3, text.closing[opening]
        last = next((i for i in text.top(start, end) if text.is_word(i, "ORDER", "SORT", "ROWS", "RANGE")), end)
        parts = [each for each in text.split(start, last) if text.is_name(each[0])]
        found = [scope.origin(text.dotted(first)[0]) for first, after in parts if text.dotted(first)[1] == after]
        return [origin for origin in found if origin is not None]

    def _outputs(
        self, block: Block, end: int, scope: Scope, number: int, unit: int
    ) -> tuple[list[Output], list[Place]]:
        """Return the columns of a SELECT, and the same with a column of the relation ``number`` for computed ones."""
        text, outputs, places = self._text, list[Output](), list[Place]()
        for start, after in text.split(*block.select):
            item = text.item(start, after)
            if any(is_generator(text, index) for index in text.outside_of_queries(start, after)):
                names = self._generated_names(start, after)
                if not names or self._is_aggregated(block) or any(self._orderings.windows(block, end)):
                    raise UnclearStructure("a generator of rows as an item, without names of its columns or in groups")
                self._note_generator(unit, start)
                scope.rows.append(self.model.make())
                generated = self._generated(scope.rows[-1], names)
                outputs += generated
                places += [self._orderings.identity(origin) for _, origin in generated if origin is not None]
                continue
            if item.kind == "star":
                for name, origin in self._star(item, scope):
                    outputs.append((name, origin))
                    columns = Place(number, f"column {len(places)}")
                    places.append(columns if origin is None else self._orderings.identity(origin))
                continue
            # The name of an item before comes before a column of a query around this one.
            named = {name.lower() for name, _ in outputs if name is not None}
            own = Scope(None, scope.relations) if item.path and item.path[0].lower() in named else scope
            origin = own.origin(item.path) if item.kind == "column" else None
            outputs.append((item.name, origin))
            places.append(self._orderings.place(item.start, item.end, own, (), number))
        return outputs, places

    def _star(self, item: Item, scope: Scope) -> Iterator[Output]:
        """Yield the columns of a star."""
        text, qualifier = self._text, tuple(part.lower() for part in item.path)
        after = item.start + 1 + 2 * len(item.path)
        left_out: set[str] = set()
        if after < item.end:
            inside = range(after + 2, item.end - 1)
            names = (
                text.is_word(after, "EXCEPT") and text.is_symbol(after + 1, "(") and text.after(after + 1) == item.end
            )
            if not names or any(text.is_symbol(index, ".") for index in inside):
                raise UnclearStructure("* EXCEPT (…) of the fields of a struct")
            left_out = {name.lower() for name in self._text.names_in(after + 1)}
        columns = scope.star
        if qualifier:
            named = [each for each in scope.relations if qualifier == each.qualifiers[-len(qualifier) :]]
            if not named:
                raise UnclearStructure("* of the fields of a struct")
            if scope.merged:
                raise UnclearStructure("* of one table with USING or NATURAL")
            if len(named) > 1 or named[0].columns is None or named[0].hides:
                raise UnclearStructure("* over columns that the text does not name")
            columns = list(named[0].columns.items())
        if columns is None:
            raise UnclearStructure("* over columns that the text does not name")
        yield from ((name, origin) for name, origin in columns if name is None or name.lower() not in left_out)

    # -- FROM -------------------------------------------------------------------------------------------

    def _from_clause(self, start: int, end: int, scope: Scope, unit: int) -> Sequence[Output] | None:
        """Read a FROM clause, or joins in brackets; return the columns of a star, or None if they are not known."""
        text = self._text
        for index in text.top(start, end):
            if text.is_word(index, *_UNCLEAR_IN_FROM) and not text.is_symbol(index - 1, "."):
                raise UnclearStructure(text.tokens[index].text.upper())
        relations = list(text.relations(start, end))
        own: list[int] = []
        star: Sequence[Output] | None = []
        beginning = len(scope.relations)
        for relation, following in zip(relations, [*relations[1:], None], strict=False):
            words = relation.join
            after = end if following is None else following.join_at
            before = len(self.model.occurrences), len(self.model.units)
            right = self._right_side(words, unit)
            left_side, rows = len(scope.relations), len(scope.rows)
            columns = self._relation(
                relation, scope, unit if right is None else right.number, lateral="LATERAL" in words
            )
            if relation.function:
                self._note_generator(unit, relation.start)
            joined: set[int] = set() if right is None else {right.number}
            if {"RIGHT", "FULL"} & set(words):
                left = self._enclose(own, before, unit, words)
                joined.add(left.number)
                if "FULL" in words:
                    assert right is not None
                    left.other_side, right.other_side = right.number, left.number
            using = self._condition(relation, after, scope, unit, frozenset(joined))
            known = star is not None and columns is not None
            if "NATURAL" in words and known:
                using = _common(star or (), columns or ())
            sides = scope.relations[beginning:left_side], scope.relations[left_side:]
            self._merge(using, words, sides, unit, frozenset(joined))
            if {"SEMI", "ANTI"} & set(words):
                del scope.relations[left_side:], scope.rows[rows:]
            else:
                scope.merged |= bool(using) or "NATURAL" in words
                star = _merged(star or (), columns or (), using, words) if known else None
            for index in range(relation.end, after):
                if text.is_word(index, "LATERAL") and text.is_word(index + 1, "VIEW"):
                    self._note_generator(unit, index + 2 + text.is_word(index + 2, "OUTER"))
                    generated = self._lateral_view(index + 2, scope)
                    star = None if star is None or generated is None else [*star, *generated]
            own.append(before[0])
        return star

    def _lateral_view(self, index: int, scope: Scope) -> Sequence[Output] | None:
        """Read what follows LATERAL VIEW: ``[OUTER] f(…) alias [AS] column, …``; return its columns."""
        text, number = self._text, self.model.make()
        scope.rows.append(number)
        index += text.is_word(index, "OUTER")
        _, opening = text.dotted(index)
        index = text.after(opening)
        self._check_arguments(opening, index)
        alias = text.tokens[index].name.lower() if text.is_name(index) else ""
        index += 1 + text.is_word(index + 1, "AS")
        names: list[str] = []
        while text.is_name(index) and not text.is_word(index, *_AFTER_NAMES):
            names.append(text.tokens[index].name)
            index += 1
            if not text.is_symbol(index, ","):
                break
            index += 1
        if not alias or not names:
            scope.relations.append(Visible((), None))
            return None
        outputs = self._generated(number, names)
        scope.relations.append(Visible((alias,), {name.lower(): origin for name, origin in outputs if name}))
        return outputs

    def _check_arguments(self, start: int, end: int) -> None:
        """Raise `UnclearStructure` if the arguments of a function in FROM have a query, also ``TABLE name``."""
        text = self._text
        for index in range(start, end):
            if (text.is_symbol(index, "(") and text.is_query(index)) or text.is_word(index, "TABLE"):
                raise UnclearStructure("a query as an argument in FROM")

    def _generated_names(self, start: int, end: int) -> Sequence[str]:
        """Return the names of the columns of an item that is a call of a generator; nothing without names."""
        text, closing = self._text, self._text.after(start + 1)
        if not is_generator(text, start) or closing >= end:
            return ()
        first = closing + text.is_word(closing, "AS")
        if text.is_symbol(first, "(") and text.after(first) == end:
            return self._text.names_in(first)
        return (text.tokens[first].name,) if text.is_name(first) and first + 1 == end else ()

    def _note_generator(self, unit: int, start: int) -> None:
        """Note that a function makes rows of each row of a unit."""
        if is_generator(self._text, start):
            self.model.units[unit].generators.append(self._text.shown(start, self._text.after(start + 1)))

    def _generated(self, number: int, names: Iterable[str]) -> Sequence[Output]:
        """Return the columns of a relation that a function makes."""
        places = [Place(number, name.lower()) for name in names]
        return self._answer(number, [(place.column, (place,)) for place in places], places).outputs

    def _right_side(self, words: Sequence[str], unit: int) -> Unit | None:
        """Return the unit of the right side of a join; None if it has none of its own."""
        if not {"LEFT", "FULL", "SEMI", "ANTI"} & set(words):
            return None
        return self._join(unit, words)

    def _unit(self, parent: int, kind: Kind, label: str, construct: Construct) -> Unit:
        unit = self.model.add_unit(parent, label, construct)
        unit.optional = kind == "join"
        self._kinds[unit.number] = kind
        return unit

    def _join(self, parent: int, words: Sequence[str]) -> Unit:
        shown = (word for word in words if word not in (",", "OUTER", "LATERAL"))
        unit = self._unit(parent, "join", " ".join(shown), constructs.OUTER_JOIN)
        unit.required = "SEMI" in words
        return unit

    def _enclose(self, own: Sequence[int], before: tuple[int, int], unit: int, words: Sequence[str]) -> Unit:
        """Put the relations to the left of a join into a unit."""
        left = self._join(unit, words)
        first = own[0] if own else before[0]
        for occurrence in self.model.occurrences[first : before[0]]:
            if occurrence.unit == unit:
                occurrence.unit = left.number
        for inner in self.model.units[: before[1]]:
            if inner.parent == unit and any(first <= each < before[0] for each in self.model.inside(inner.number)):
                inner.parent = left.number
        inside = set(self.model.inside(left.number))
        for place, each in enumerate(self._equalities):
            # Also those with a column outside of a subquery: not all its rows satisfy them any more.
            if each.unit == unit and {one.occurrence for one in (*each.left, *each.right)} & inside:
                self._equalities[place] = replace(each, unit=left.number)
        return left

    def _relation(self, relation: Relation, scope: Scope, unit: int, *, lateral: bool) -> Sequence[Output] | None:
        """Read a relation of FROM; return the columns of a star over it, or None if they are not known."""
        text = self._text
        if text.travels_in_time(relation.name_end) or relation.start >= relation.end:
            raise UnclearStructure("time travel" if relation.start < relation.end else "FROM without a table")
        if relation.joined is not None:
            if relation.alias is not None:
                raise UnclearStructure("an alias of a join in brackets")
            return self._from_clause(relation.joined + 1, text.closing[relation.joined], scope, unit)
        name = "" if relation.table is None else relation.table.lower()
        alias = relation.alias if relation.alias is not None else relation.implied_alias
        qualifiers: tuple[str, ...] = () if alias is None else (alias.lower(),)
        if relation.alias is None and relation.table is not None:
            qualifiers = tuple(part.lower() for part in relation.name)
        names = () if relation.columns is None else self._text.names_in(relation.columns)
        outputs: Sequence[Output]
        if relation.function:
            self._check_arguments(relation.start, relation.end)
            number = self.model.make()
            if not names:
                scope.rows.append(number)
                scope.relations.append(Visible(qualifiers, None))
                return None
            outputs = self._generated(number, names)
        elif relation.query is not None:
            inside = (relation.query + 1, text.closing[relation.query])
            around = scope if lateral else scope.outer
            number, outputs = self._derived(inside, around, unit, alias or "in FROM", lateral=lateral)
        elif (found := text.definition_of(relation)) is not None:
            inside = (found.query + 1, text.closing[found.query])
            number, outputs = self._derived(inside, None, unit, alias or name, lateral=False)
            if found.columns:
                outputs = [(column, origin) for column, (_, origin) in zip(found.columns, outputs, strict=False)]
        elif name in self._tables:
            number, outputs = self._table(name, unit, alias or name)
        else:
            raise UnclearStructure(f"the relation {relation.table or 'without a name'}")
        if names:
            outputs = [(column, origin) for column, (_, origin) in zip(names, outputs, strict=False)]
        scope.rows.append(number)
        visible: dict[str, Origin | None] = {}
        for column, origin in outputs:
            if column is not None:
                visible[column.lower()] = None if column.lower() in visible else origin
        hides = len(visible) < len(outputs)
        scope.relations.append(Visible(qualifiers, visible, hides))
        return None if hides else outputs

    def _table(self, name: str, unit: int, alias: str) -> tuple[int, list[Output]]:
        columns = self._tables[name]
        number = len(self.model.occurrences)
        self.model.occurrences.append(Occurrence(number, name, alias, columns.changes, columns.key, unit))
        return number, [(column, (Place(number, column),)) for column in columns.kinds]

    def _derived(
        self, inside: Range, outer: Scope | None, unit: int, name: str, *, lateral: bool
    ) -> tuple[int, Sequence[Output]]:
        """Read a subquery in FROM. Its rows are in the unit around it, unless they influence each other."""
        label = f"LATERAL {name}" if lateral else f"subquery {name}"
        own = self._unit(unit, "subquery" if lateral else "derived", label, constructs.SUBQUERY)
        answer = self.query(*inside, outer, own.number)
        if lateral:
            # No equality beside the subquery holds for all rows inside of it.
            number = self.model.make((answer.number,))
            outputs: list[Output] = []
            for place, (output, origin) in enumerate(answer.outputs):
                column = Place(number, f"column {place}")
                if origin is not None:
                    self.model.made[-number - 1].copies.append((column, self._orderings.identity(origin)))
                outputs.append((output, (column,)))
            return number, outputs
        if not own.grouped:
            self._dissolve(own)
        return answer.number, answer.outputs

    def _dissolve(self, unit: Unit) -> None:
        """Move what is in a unit into the unit around it."""
        assert unit.parent is not None
        for occurrence in self.model.occurrences:
            if occurrence.unit == unit.number:
                occurrence.unit = unit.parent
        for inner in self.model.units:
            if inner.parent == unit.number:
                inner.parent = unit.parent
        for place, each in enumerate(self._equalities):
            if each.unit == unit.number:
                self._equalities[place] = replace(each, unit=unit.parent)
        self.model.units[unit.parent].generators += unit.generators
        unit.independent = True
        del self._kinds[unit.number]

    # -- conditions -------------------------------------------------------------------------------------

    def _condition(
        self, relation: Relation, end: int, scope: Scope, unit: int, joined: frozenset[int]
    ) -> Sequence[str]:
        """Read the ON or USING of a join, up to the next one; return the names of USING."""
        text = self._text
        words = [index for index in text.top(relation.end, end) if text.is_word(index, "ON", "USING")]
        if len(words) > 1:
            raise UnclearStructure("joins whose conditions follow each other")
        if not words:
            return ()
        at = words[0]
        last = next((i for i in text.top(at, end) if text.is_word(i, "LATERAL") and text.is_word(i + 1, "VIEW")), end)
        if text.is_word(at, "USING"):
            return self._text.names_in(at + 1)
        self._equal((at + 1, last), scope, unit, joined)
        self._subqueries(at + 1, last, scope, unit)
        parts = list(text.conjuncts(at + 1, last))
        for number in joined if all(self._equality(*each) for each in parts) else ():
            self.model.units[number].equalities = len(parts)
        return ()

    def _merge(
        self,
        names: Iterable[str],
        words: Sequence[str],
        sides: tuple[list[Visible], list[Visible]],
        unit: int,
        joined: frozenset[int],
    ) -> None:
        """Note the equalities of USING or NATURAL, whose columns become one."""
        left, right = sides
        outer = bool({"RIGHT", "FULL"} & set(words))
        for name in names:
            holding = [each for each in left if each.columns is None or name.lower() in each.columns]
            first, second = (Scope(None, side).origin((name,)) for side in (holding, right))
            self._note(first, second, unit, joined)
            for visible in right:
                # The name is now that of one column: the left one, if the join keeps all its rows.
                if visible.columns is not None and outer:
                    visible.columns[name.lower()] = None
                elif visible.columns is not None:
                    visible.columns.pop(name.lower(), None)

    def _equal(self, condition: Range, scope: Scope, unit: int, joined: frozenset[int]) -> None:
        for left, right in self._equal_names(*condition):
            self._note(scope.origin(left), scope.origin(right), unit, joined)
        if self._has_collations:
            return
        conditions = Conditions(self._text, lambda name: self._named_column(scope.origin(name)))
        for number, found in conditions.of_occurrences(*condition).items():
            occurrence = self.model.occurrences[number]
            # The condition of an outer join leaves out rows of the side that can be missing only.
            of_side = occurrence.unit in joined and self.model.units[occurrence.unit].other_side is None
            if of_side if joined else occurrence.unit == unit:
                occurrence.conditions += found

    def _named_column(self, origin: Origin | None) -> Named | None:
        if origin is None or len(origin) > 1 or origin[0].occurrence < 0:
            return None
        return Named(origin[0].occurrence, origin[0].column, self._kind(origin[0]))

    def _equal_names(self, start: int, end: int) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Yield the names of plain columns that are equal wherever a condition is true."""
        text = self._text
        for first, last in text.conjuncts(start, end):
            places = [index for index in text.top(first, last) if text.is_word(index, "OR")]
            if places:
                branches = zip([first, *(index + 1 for index in places)], [*places, last], strict=True)
                yield from sorted(set.intersection(*(set(self._equal_names(*each)) for each in branches)))
            elif (pair := self._equality(first, last)) is not None:
                yield pair

    def _equality(self, start: int, end: int) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Return the names of a condition that compares two plain columns."""
        text = self._text
        if not text.is_name(start):
            return None
        left, index = text.dotted(start)
        if not text.is_symbol(index, "="):
            return None
        index += 1 + text.is_pair(index, "=", "=")
        if not text.is_name(index):
            return None
        right, after = text.dotted(index)
        if after != end:
            return None
        first, second = sorted(tuple(part.lower() for part in name) for name in (left, right))
        return first, second

    def _note(self, left: Origin | None, right: Origin | None, unit: int, joined: frozenset[int]) -> None:
        if left is not None and right is not None:
            kinds = {self._kind(place) for place in (*left, *right)}
            if len(kinds) == 1 and None not in kinds:
                self._equalities.append(_Equality(left, right, unit, joined))

    def _kind(self, place: Place) -> str | None:
        if place.occurrence < 0:
            return None
        return self._tables[self.model.occurrences[place.occurrence].table].kinds[place.column]

    def _subqueries(self, start: int, end: int, scope: Scope, unit: int, *, filters: bool = False) -> None:
        """Read the subqueries of expressions; ``filters`` says that the range is the condition of a WHERE."""
        text, index = self._text, start
        while index < end:
            if text.is_symbol(index, "(") and text.is_query(index):
                own = self._unit(unit, "subquery", *self._named(index))
                own.required = filters and (index - 1, text.after(index)) in text.conjuncts(start, end)
                own.required &= text.is_word(index - 1, "EXISTS")
                outputs = self.query(index + 1, text.closing[index], scope, own.number).outputs
                if filters:
                    self._membership(start, end, index, outputs, scope, own)
                    own.compared = self._comparison(start, end, index, outputs, scope, own)
                index = text.after(index)
            else:
                index += 1

    def _named(self, opening: int) -> tuple[str, Construct]:
        """Return the name of a subquery in an expression, and that of the construct."""
        text = self._text
        for word, plain, negated in (
            ("EXISTS", constructs.EXISTS, constructs.EXISTS),
            ("IN", constructs.MEMBERSHIP, constructs.NOT_IN),
        ):
            if text.is_word(opening - 1, word):
                is_negated = text.is_word(opening - 2, "NOT")
                return f"NOT {word}" if is_negated else word, negated if is_negated else plain
        return "scalar subquery", constructs.SCALAR

    def _membership(
        self, start: int, end: int, opening: int, outputs: Sequence[Output], scope: Scope, unit: Unit
    ) -> None:
        """Note the equality of ``x IN (SELECT y …)`` where only rows stay for which it is true.

        With NOT IN, a null on either side matters to all rows of the other, so neither column may be null.
        """
        text = self._text
        negated = text.is_word(opening - 1, "IN") and text.is_word(opening - 2, "NOT")
        first = opening - 2 - negated
        while text.is_symbol(first - 1, ".") and text.is_name(first - 2):
            first -= 2
        conjunct = next((each for each in text.conjuncts(start, end) if each[1] == text.after(opening)), None)
        if conjunct is None or conjunct[0] != first or not text.is_word(opening - 1, "IN") or not outputs:
            return
        left, right = scope.origin(text.dotted(first)[0]), outputs[0][1]
        if left is None or right is None or len(outputs) > 1:
            return
        if negated and not all(self._is_never_null(place) for place in (*left, *right)):
            return
        unit.required = not negated
        self._note(right, left, unit.number, frozenset((unit.number,)))

    def _comparison(
        self, start: int, end: int, opening: int, outputs: Sequence[Output], scope: Scope, unit: Unit
    ) -> tuple[Place, Place] | None:
        """Return the column that a filter compares with the value of a table with one row, and that of the value."""
        text, after = self._text, self._text.after(opening)
        first, last = next(each for each in text.conjuncts(start, end) if each[0] <= opening < each[1])
        if last == after and text.is_name(first):
            name, operator = text.dotted(first)
            operators = range(operator, opening)
        else:
            named = next((each for each in range(after, last) if text.is_name(each)), last)
            if first != opening or named == last or text.dotted(named)[1] != last:
                return None
            name, operators = text.dotted(named)[0], range(after, named)
        if "".join(text.tokens[each].text for each in operators) not in _COMPARISONS or len(outputs) != 1:
            return None
        column, value = scope.origin(name), outputs[0][1]
        if column is None or value is None or len(column) > 1 or len(value) > 1 or unit.parent is None:
            return None
        (compared,), (of_value,) = column, value
        is_value = self._is_table(opening + 1, after - 1) and self.model.has_one_row_of(of_value.occurrence)
        is_beside = self._is_key(compared) and compared.occurrence in self.model.inside(unit.parent)
        if is_value and is_beside and can_be_between(self._kind(compared), self._kind(of_value)):
            return compared, of_value
        return None

    def _is_table(self, start: int, end: int) -> bool:
        """Return whether a query has all rows of one table."""
        text = self._text
        if not text.is_word(start, "SELECT") or text.is_word(start + 1, "DISTINCT"):
            return False
        relations = list(text.relations(*text.block(start, end).from_))
        if len(relations) != 1:
            return False
        (relation,) = relations
        after = relation.end + text.is_word(relation.end, "AS")
        if after + (relation.alias is not None and relation.columns is None) != end:
            return False
        if relation.query is not None:
            return self._is_table(relation.query + 1, text.closing[relation.query])
        if (found := text.definition_of(relation)) is not None:
            return self._is_table(found.query + 1, text.closing[found.query])
        return relation.table is not None and relation.table.lower() in self._tables

    def _is_never_null(self, place: Place) -> bool:
        if place.occurrence < 0:
            return False
        occurrence = self.model.occurrences[place.occurrence]
        kinds = (self._kinds.get(each) for each in self.model.around(occurrence.unit))
        keys_are_valid = not self._tables[occurrence.table].null_keys
        return keys_are_valid and place.column in occurrence.key and "join" not in kinds

    # -- links ------------------------------------------------------------------------------------------

    def assign_links(self) -> None:
        """Make links of the equalities, and choose the columns that partition units."""
        level: dict[tuple[int, int], list[tuple[Place, Place]]] = {}
        ways: dict[int, dict[tuple[int, int], list[tuple[Origin, Place]]]] = {}
        for equality in self._equalities:
            for left, right in ((equality.left, equality.right), (equality.right, equality.left)):
                unit = self._unit_of(left, right, equality)
                if unit is not None:
                    pairs = ways.setdefault(unit, {})
                    pairs.setdefault((left[0].occurrence, right[0].occurrence), []).append((left, right[0]))
            if self._is_level(equality):
                (a,), (b,) = equality.left, equality.right
                level.setdefault((a.occurrence, b.occurrence), []).append((a, b))
        self.model.links += [_link(pairs) for pairs in level.values()]
        for number, found in ways.items():
            self._link_unit(self.model.units[number], list(found.values()))
        self._anchor()
        for each in self.model.units:
            if each.grouped and each.independent:
                each.entries = self._entries(each.number)

    def _outermost(self, place: Place, other: Place) -> int | None:
        """Return the outermost unit with one column and without the other; None if there is none."""
        around = set(self.model.around(self.model.occurrences[other.occurrence].unit))
        units = list(self.model.around(self.model.occurrences[place.occurrence].unit))
        return next((each for each in reversed(units) if each not in around), None)

    def _unit_of(self, left: Origin, right: Origin, equality: _Equality) -> int | None:
        """Return the unit that an equality links with what is outside: that of its left side."""
        if len(right) > 1:
            return None
        units = {self._outermost(place, right[0]) for place in left}
        if len(units) != 1:
            return None
        (unit,) = units
        if unit is None or (len(left) > 1 and self._kinds.get(unit) != "derived"):
            return None
        if equality.joined:
            return unit if unit in equality.joined else None
        kind = self._kinds.get(unit)
        if kind == "derived":
            beside = equality.unit == self.model.units[unit].parent
            return unit if beside and self._is_among(right[0], equality.unit) else None
        # The condition is in the subquery and reaches outside of it, and all rows of the subquery satisfy it.
        inside = itertools.takewhile(lambda each: each != unit, self.model.around(equality.unit))
        plain = unit in self.model.around(equality.unit) and all(self._kinds.get(each) == "derived" for each in inside)
        return unit if kind == "subquery" and plain else None

    def _is_key(self, place: Place) -> bool:
        return self._kind(place) is not None and self.model.occurrences[place.occurrence].changes

    def _is_among(self, place: Place, unit: int) -> bool:
        """Return whether each row of a unit has this column, perhaps from a subquery in FROM."""
        for each in self.model.around(self.model.occurrences[place.occurrence].unit):
            if each == unit:
                return True
            if self._kinds.get(each) != "derived":
                return False
        return False

    def _is_level(self, equality: _Equality) -> bool:
        if equality.joined or len(equality.left) > 1 or len(equality.right) > 1:
            return False
        units = {self.model.occurrences[each.occurrence].unit for each in (*equality.left, *equality.right)}
        occurrences = {equality.left[0].occurrence, equality.right[0].occurrence}
        return units == {equality.unit} and len(occurrences) == 2

    def _link_unit(self, unit: Unit, found: Sequence[Sequence[tuple[Origin, Place]]]) -> None:
        """Choose the way into a unit: from a table beside it if there is one, with the most columns."""
        direct = set(self.model.directly_in(int(unit.parent or 0)))
        best = max(found, key=lambda pairs: (pairs[0][1].occurrence in direct, len(pairs)))
        left, right = best[0]
        if self._comes_before(unit, right):
            return
        if len(left) > 1:
            unit.link = Link((left[0],), (right,))
            unit.entries = [(place,) for place in left]
        else:
            unit.link = _link([(origin[0], place) for origin, place in best])

    def _comes_before(self, unit: Unit, right: Place) -> bool:
        """Return whether the other end is in a later unit of the same kind beside it, which links to this one."""
        other = self.model.occurrences[right.occurrence].unit
        beside = [each for each in self.model.around(other) if self.model.units[each].parent == unit.parent]
        return (
            self._kinds.get(unit.number) == "derived"
            and bool(beside)
            and self._kinds.get(beside[0]) == "derived"
            and beside[0] > unit.number
        )

    def _anchor(self) -> None:
        """Let the first subquery of a FROM clause without tables stand for them."""
        for parent in self.model.units:
            if any(self.model.occurrences[each].changes for each in self.model.directly_in(parent.number)):
                continue
            for unit in self.model.units:
                if unit.parent == parent.number and self._kinds.get(unit.number) == "derived":
                    if unit.link is None:
                        unit.entries = self._entries(unit.number)
                    break

    def _entries(self, unit: int) -> list[tuple[Place, ...]]:
        for origin in self._partitions.get(unit, []):
            if all(self._is_key(place) and self._is_among(place, unit) for place in origin):
                return [(place,) for place in origin]
        return []


def _common(left: Iterable[Output], right: Iterable[Output]) -> list[str]:
    """Return the names of the columns of a NATURAL join."""
    names = {name.lower() for name, _ in right if name is not None}
    return [name for name, _ in left if name is not None and name.lower() in names]


def _merged(
    left: Sequence[Output], right: Sequence[Output], names: Sequence[str], words: Sequence[str]
) -> list[Output]:
    """Return the columns of a star over a join, in which columns of both sides are one."""
    chosen = {name.lower() for name in names}
    origins = dict(left if "RIGHT" not in words else right)
    merged: list[Output] = []
    for name in names:
        origin = next((each for key, each in origins.items() if key is not None and alike(key, name)), None)
        merged.append((name, None if "FULL" in words else origin))
    rest = [each for side in (left, right) for each in side if each[0] is None or each[0].lower() not in chosen]
    return [*merged, *rest]


def _link(pairs: Iterable[tuple[Place, Place]]) -> Link:
    """Return the link of some equalities between two occurrences, each column once."""
    chosen: dict[Place, Place] = {}
    for left, right in pairs:
        if left not in chosen and right not in chosen.values():
            chosen[left] = right
    return Link(tuple(chosen), tuple(chosen.values()))
