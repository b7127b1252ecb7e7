"""The structure of a query over several relations, as far as it decides which rows a change can reach.

An *occurrence* is a place in FROM where a table is named. A table that is named twice has two of them. A *unit* is a
part of a query whose rows matter to the rest only together: the side of an outer join that can be missing, the right
side of a semi or anti join, a subquery in an expression, a subquery with groups in FROM, a branch of a set operation.
Units contain units and occurrences; unit 0 is the query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.derived.gathering import constructs
from headrace.derived.gathering.conditions import Condition
from headrace.derived.gathering.constructs import Construct


@dataclass(frozen=True)
class Place:
    """A column of an occurrence.

    Attributes:
        occurrence: the number of the occurrence; negative for a column of a relation that the query makes.
        column: the column's name in the table.
    """

    occurrence: int
    column: str


Origin: TypeAlias = tuple[Place, ...]
"""The columns of which a column of a relation is a plain copy: one, or one for each branch of a set operation."""


Output: TypeAlias = "tuple[str | None, Origin | None]"
"""The name of an output column, and the columns of which it is a plain copy."""


@dataclass(frozen=True)
class Link:
    """An equality that all rows of a result satisfy which have rows of two occurrences.

    Attributes:
        left, right: the columns whose values are equal, in the same order, each of one occurrence.
    """

    left: tuple[Place, ...]
    right: tuple[Place, ...]

    def turned(self) -> Link:
        return Link(self.right, self.left)


@dataclass
class Occurrence:
    """A table in FROM.

    Attributes:
        table: the name of the scan, or of a static table.
        name: its alias, or the table's name.
        changes: whether it is a followed scan.
        key: the columns of its primary key; none if it has one row, or is static.
        unit: the number of the innermost unit that contains it.
        conditions: they are true for each of its rows that takes part in a result.
    """

    number: int
    table: str
    name: str
    changes: bool
    key: tuple[str, ...]
    unit: int
    conditions: list[Condition] = field(default_factory=list)


@dataclass
class Unit:
    """A part of a query whose rows matter to the rest together.

    Attributes:
        parent: the number of the unit around it; None for the query.
        label: its name in the query's text, such as LEFT JOIN.
        construct: its name if no equality leads into it.
        link: equalities between columns of one of its occurrences (left) and of one outside of it (right). They are the
            only way in and out: rows of the unit with other values do not matter to the row outside.
        groupings: why its rows influence each other, as texts: they are grouped, distinct, or in windows.
        unpartitioned: the grouping for which no column partitions its rows; None if one does.
        entries: columns that partition its rows: rows with other values do not influence each other. Several for a set
            operation, one for each branch. Empty if there are none.
        other_side: for a side of a FULL JOIN the number of the other one, which also needs all its rows.
        independent: its rows are rows of the result: the query, or a branch of UNION ALL.
        equalities: the number of equalities that are the whole condition of its outer join; 0 if that has more.
        optional: it is a side of an outer join, so a row of the result can lack its rows.
        required: it is what EXISTS, IN or SEMI JOIN asks for: the rows outside take part in a result only with a row of
            this unit.
        generators: the functions that make several rows of each of its rows, as texts.
        compared: for a scalar subquery that is the value of a table with one row, a column that WHERE compares with it
            for all rows of the unit around it, and the column of the value.
    """

    number: int
    parent: int | None
    label: str
    construct: Construct
    link: Link | None = None
    groupings: list[str] = field(default_factory=list)
    unpartitioned: Construct | None = None
    entries: list[tuple[Place, ...]] = field(default_factory=list)
    other_side: int | None = None
    independent: bool = False
    equalities: int = 0
    optional: bool = False
    required: bool = False
    generators: list[str] = field(default_factory=list)
    compared: tuple[Place, Place] | None = None

    @property
    def grouped(self) -> bool:
        """Whether its rows influence each other."""
        return bool(self.groupings)


@dataclass(frozen=True)
class Ordering:
    """A choice of rows or values on which the result depends: by the order of a window or of LIMIT, or by a group.

    Attributes:
        index: the token after OVER, the word LIMIT, or the name of an aggregate.
        columns: the columns of the order, and of the window's partition or the group.
        rows: the relations whose rows are ordered.
        values: the columns that are chosen from a group.
    """

    index: int
    columns: tuple[Place, ...]
    rows: tuple[int, ...] = ()
    values: tuple[Place, ...] = ()


@dataclass
class Made:
    """A relation that a part of a query makes: a SELECT, its groups, a set operation, or a generator of rows.

    Attributes:
        keys: columns that determine a row, or determine it among rows that are all the same.
        parts: relations whose rows determine a row together; None if they do not.
        copies: its columns that are plain copies, with the columns of which they are copies.
    """

    keys: list[tuple[Place, ...]] = field(default_factory=list)
    parts: tuple[int, ...] | None = None
    copies: list[tuple[Place, Place]] = field(default_factory=list)


@dataclass
class QueryModel:
    """The occurrences, units and equalities of a query.

    Attributes:
        links: the equalities between occurrences of one unit.
        orderings: the orders on which the result depends.
        aggregated: the first tokens of the SELECTs with aggregates or groups.
        made: the relations that its parts make, with the numbers -1, -2, … . They only matter to orders.
        result: the number of the relation that is the query's result.
        outputs: the columns of the result; not all, if a star names the columns of a part that is not read.
    """

    occurrences: list[Occurrence] = field(default_factory=list)
    units: list[Unit] = field(default_factory=lambda: [Unit(0, None, "SELECT", constructs.JOIN, independent=True)])
    links: list[Link] = field(default_factory=list)
    orderings: list[Ordering] = field(default_factory=list)
    aggregated: set[int] = field(default_factory=set)
    made: list[Made] = field(default_factory=list)
    result: int = 0
    outputs: list[Output] = field(default_factory=list)

    def add_unit(self, parent: int, label: str, construct: Construct) -> Unit:
        unit = Unit(len(self.units), parent, label, construct)
        self.units.append(unit)
        return unit

    def around(self, unit: int) -> Iterator[int]:
        """Yield a unit and all units around it, inner ones first."""
        at: int | None = unit
        while at is not None:
            yield at
            at = self.units[at].parent

    def inside(self, unit: int) -> list[int]:
        """Return the numbers of all occurrences in a unit, also of those in units inside of it."""
        return [each.number for each in self.occurrences if unit in self.around(each.unit)]

    def directly_in(self, unit: int) -> list[int]:
        """Return the numbers of the occurrences of a unit that are in no unit inside of it."""
        return [each.number for each in self.occurrences if each.unit == unit]

    def make(self, parts: tuple[int, ...] | None = None) -> int:
        """Add a relation that a part of the query makes, and return its number."""
        self.made.append(Made(parts=parts))
        return -len(self.made)

    def is_total(self, ordering: Ordering) -> bool:
        """Return whether an ordering has no ties: its columns determine the rows that it orders, and what is chosen."""
        # With a further condition, a side of an outer join can be missing for some rows of a group only.
        known, rows = self._determined(ordering.columns, outer_joins=not ordering.values)
        return rows.issuperset(ordering.rows) and all(self._is_known(each, known, rows) for each in ordering.values)

    def can_be_missing(self, occurrence: int) -> bool:
        """Return whether a row of the result can lack a row of an occurrence."""
        return any(self.units[each].optional for each in self.around(self.occurrences[occurrence].unit))

    def _determined(self, columns: Iterable[Place], *, outer_joins: bool) -> tuple[set[Place], set[int]]:
        """Return the columns and the relations of which some columns determine the values and the rows."""
        known, rows = set(columns), set[int]()
        ways: list[tuple[tuple[Place, ...], Place]] = []
        for link in self.links:
            ways += [((left,), right) for side in (link, link.turned()) for left, right in _pairs(side)]
        for unit in self.units:
            if unit.link is None or unit.other_side is not None:
                continue
            if outer_joins:
                ways += [((right,), left) for left, right in _pairs(unit.link)]
            elif len(unit.link.left) == unit.equalities:
                ways += [(unit.link.right, left) for left in unit.link.left]
        ways += [((own,), inner) for made in self.made for own, inner in made.copies]
        grows = True
        while grows:
            before = len(known), len(rows)
            for each in self.occurrences:
                if each.changes and all(Place(each.number, name) in known for name in each.key):
                    rows.add(each.number)
            for number, made in enumerate(self.made, 1):
                whole = made.parts is not None and rows.issuperset(made.parts)
                if whole or any(all(self._is_known(place, known, rows) for place in key) for key in made.keys):
                    rows.add(-number)
            known.update(to for way, to in ways if all(self._is_known(each, known, rows) for each in way))
            grows = before != (len(known), len(rows))
        return known, rows

    def _is_known(self, place: Place, known: set[Place], rows: set[int]) -> bool:
        return place in known or place.occurrence in rows

    @property
    def has_groups_by_themselves(self) -> bool:
        """Return whether a part of the query has rows that influence each other, and no equality leads into it."""
        return any(unit.grouped and unit.link is None and not unit.independent for unit in self.units)

    def tables(self, occurrences: Iterable[int]) -> set[str]:
        """Return the followed tables of some occurrences."""
        return {self.occurrences[each].table for each in occurrences if self.occurrences[each].changes}

    def has_one_row(self, table: str) -> bool:
        """Return whether a followed table always has one row."""
        return any(each.table == table and self.has_one_row_of(each.number) for each in self.occurrences)

    def has_one_row_of(self, occurrence: int) -> bool:
        """Return whether the table of an occurrence is a followed one that always has one row."""
        return occurrence >= 0 and self.occurrences[occurrence].changes and not self.occurrences[occurrence].key


def _pairs(link: Link) -> Iterator[tuple[Place, Place]]:
    return zip(link.left, link.right, strict=True)
