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
from headrace.derived.gathering.constructs import Construct


@dataclass(frozen=True)
class Place:
    """A column of an occurrence.

    Attributes:
        occurrence: the number of the occurrence.
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
        key: the columns of its primary key.
        unit: the number of the innermost unit that contains it.
    """

    number: int
    table: str
    name: str
    changes: bool
    key: tuple[str, ...]
    unit: int


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
        optional: it is a side of an outer join, so a row of the result can lack its rows.
        apart: it is a subquery in an expression, or the right side of a semi or anti join: no row of the result has its
            columns.
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
    optional: bool = False
    apart: bool = False

    @property
    def grouped(self) -> bool:
        """Whether its rows influence each other."""
        return bool(self.groupings)


@dataclass(frozen=True)
class Ordering:
    """An order of rows on which the result depends: of a window, or of LIMIT.

    Attributes:
        index: the token after OVER, or the word LIMIT.
        columns: the plain columns of the order, and of the window's partition.
        groups: the columns of GROUP BY, of which the rows are; empty if one of them is computed. None without GROUP BY.
        unit: the unit of the SELECT.
    """

    index: int
    columns: tuple[Place, ...]
    groups: tuple[Place, ...] | None
    unit: int


@dataclass
class QueryModel:
    """The occurrences, units and equalities of a query.

    Attributes:
        links: the equalities between occurrences of one unit.
        orderings: the orders on which the result depends.
        aggregated: the first tokens of the SELECTs with aggregates or groups.
        multiplies: it has relations that are no tables, such as VALUES, so that a row of its tables can give several.
        outputs: the columns of the query's result; not all, if a star names the columns of a part that is not read.
    """

    occurrences: list[Occurrence] = field(default_factory=list)
    units: list[Unit] = field(default_factory=lambda: [Unit(0, None, "SELECT", constructs.JOIN, independent=True)])
    links: list[Link] = field(default_factory=list)
    orderings: list[Ordering] = field(default_factory=list)
    aggregated: set[int] = field(default_factory=set)
    multiplies: bool = False
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

    def is_total(self, ordering: Ordering) -> bool:
        """Return whether an ordering has no ties: its columns determine the keys of all tables of its rows."""
        if self.multiplies:
            return False
        reached = self._determined(ordering.columns)
        if ordering.groups is not None:
            return bool(ordering.groups) and all(
                place in ordering.columns or place.occurrence in reached for place in ordering.groups
            )
        inside = [each for each in self.inside(ordering.unit) if not self._is_apart(each, ordering.unit)]
        plain = all(self._is_row(each, ordering.unit) for each in inside)
        return bool(inside) and plain and reached.issuperset(inside)

    def can_be_missing(self, occurrence: int) -> bool:
        """Return whether a row of the result can lack a row of an occurrence."""
        return any(self.units[each].optional for each in self.around(self.occurrences[occurrence].unit))

    def _is_apart(self, occurrence: int, unit: int) -> bool:
        """Return whether an occurrence is in a unit inside of another one whose rows have none of its columns."""
        return any(self.units[each].apart for each in self.around(self.occurrences[occurrence].unit) if each > unit)

    def _is_row(self, occurrence: int, unit: int) -> bool:
        """Return whether a row of an occurrence is a part of a row of a unit: it is in no group."""
        return not any(
            self.units[each].grouped for each in self.around(self.occurrences[occurrence].unit) if each > unit
        )

    def _determined(self, columns: Iterable[Place]) -> set[int]:
        """Return the occurrences of which some columns determine the row: they have its key, or columns equal to it."""
        known, rows = set(columns), set[int]()
        ways = [side for link in self.links for side in (link, link.turned())]
        ways += [
            unit.link.turned()
            for unit in self.units
            if unit.link is not None and not unit.grouped and unit.other_side is None
        ]
        grows = True
        while grows:
            before = len(known), len(rows)
            for each in self.occurrences:
                if each.changes and all(Place(each.number, name) in known for name in each.key):
                    rows.add(each.number)
            for way in ways:
                for left, right in zip(way.left, way.right, strict=True):
                    if left in known or left.occurrence in rows:
                        known.add(right)
            grows = before != (len(known), len(rows))
        return rows

    def tables(self, occurrences: Iterable[int]) -> set[str]:
        """Return the followed tables of some occurrences."""
        return {self.occurrences[each].table for each in occurrences if self.occurrences[each].changes}
