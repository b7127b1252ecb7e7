"""The blocks of a query as lines for a person: what each is, what is kept of it, and what a change of it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from headrace.derived.gathering.arrangements import MANY_ROWS, Gathering
from headrace.derived.gathering.constructs import Construct
from headrace.derived.gathering.model import Occurrence, Place, QueryModel, Unit
from headrace.derived.gathering.routes import FullRead, Hop
from headrace.errors import SqlError


@dataclass(frozen=True)
class RowCount:
    """The number of rows of a table, as its store knows it without reading them."""

    rows: int
    exact: bool = True

    def __str__(self) -> str:
        rows = f"{self.rows:,} row{'' if self.rows == 1 else 's'}"
        return rows if self.exact else f"about {rows}"


@dataclass
class Node:
    """A line of the tree, with lines below it.

    Attributes:
        facts: lines about it.
    """

    text: str
    facts: list[str] = field(default_factory=list)
    inner: list[Node] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the tree."""
        yield self.text
        yield from (f"{'│' if self.inner else ' '}  {fact}" for fact in self.facts)
        for place, node in enumerate(self.inner, 1):
            last = place == len(self.inner)
            first, *following = node.lines()
            yield f"{'└─' if last else '├─'} {first}"
            yield from (f"{'  ' if last else '│ '} {line}" for line in following)


def blocks(gathering: Gathering, counts: Mapping[str, RowCount]) -> Node:
    """Return the blocks of a query.

    Args:
        counts: the rows of followed tables by name, as far as they are known.
    """
    return _Blocks(gathering, counts, set()).query()


class _Blocks:
    def __init__(self, gathering: Gathering, counts: Mapping[str, RowCount], shown: set[str]) -> None:
        self._gathering = gathering
        self._counts = counts
        # The tables of inner queries whose blocks are in the tree.
        self._shown = shown

    def query(self) -> Node:
        model = self._gathering.model
        if model is None:
            return Node(
                "the query: evaluated over all rows of all tables",
                inner=[
                    self._table(name, _named(self._gathering, name), number)
                    for number, name in enumerate(self._gathering.plan.tables)
                    if name
                ],
            )
        return self._unit(model, model.units[0])

    def _unit(self, model: QueryModel, unit: Unit) -> Node:
        shown = ", ".join(dict.fromkeys((unit.label, *unit.groupings)))
        node = Node(f"{shown}: {self._rule(unit)}")
        direct = [model.occurrences[number] for number in model.directly_in(unit.number)]
        for link in model.links:
            if model.occurrences[link.left[0].occurrence].unit == unit.number:
                node.facts.append(f"joined by {_equal(self._gathering, link.left, link.right)}")
        if unit.generators:
            verb = "makes" if len(unit.generators) == 1 else "make"
            node.facts.append(f"with the rows that {', '.join(unit.generators)} {verb} of each")
        node.inner = [self._occurrence(each) for each in direct]
        node.inner += [
            self._unit(model, each) for each in model.units if each.parent == unit.number and model.inside(each.number)
        ]
        return node

    def _rule(self, unit: Unit) -> str:
        if unit.link is not None:
            return f"all rows with {_equal(self._gathering, unit.link.left, unit.link.right)}, for each row outside"
        if unit.entries:
            return f"all rows of the groups of changed rows, by {_names(self._gathering, unit.entries[0])}"
        if unit.grouped or not unit.independent:
            return "all rows"
        return "the rows of the result with a changed row"

    def _occurrence(self, occurrence: Occurrence) -> Node:
        alias = "" if occurrence.name == occurrence.table else f" {occurrence.name}"
        if not occurrence.changes:
            return Node(f"{occurrence.table}{alias}: static")
        return self._table(occurrence.table, f"{_named(self._gathering, occurrence.table)}{alias}", occurrence.number)

    def _table(self, table: str, shown: str, number: int) -> Node:
        arranged = self._gathering.tables[table]
        count = self._counts.get(table)
        by = ", ".join(f"({arranged.shown(key)})" for key in arranged.keys if key)
        key = f"key ({arranged.shown(arranged.primary_key)})" if arranged.primary_key else "one row"
        node = Node(
            f"{shown}: {f'{count}, ' if count else ''}{key}",
            [
                f"kept{f' by {by}' if by else ''}: {arranged.shown(arranged.schema.names)}",
                f"a change reads {reads(self._gathering, number, self._fan_out)}",
            ],
        )
        if (inner := self._gathering.inner.get(table)) is not None and table not in self._shown:
            self._shown.add(table)
            of_all = replace(inner, tables=self._gathering.tables, inner=self._gathering.inner)
            node.inner.append(_Blocks(of_all, self._counts, self._shown).query())
        return node

    def _fan_out(self, hop: Hop) -> str:
        """Return the mean number of rows that a lookup finds, if the store knows the numbers of rows."""
        rows = fan_out(self._gathering, self._counts, hop)
        return "" if rows is None or rows < 2 else f", {rows:,} rows on average"


def fan_out(gathering: Gathering, counts: Mapping[str, RowCount], hop: Hop) -> int | None:
    """Return the mean number of rows that a lookup by the key of another table finds; None if it is unknown."""
    start, end = (gathering.plan.tables[each] for each in (hop.start, hop.end))
    if start is None or end is None or start not in counts or end not in counts:
        return None
    if hop.columns == gathering.tables[end].primary_key:
        return 1
    by_key = {place.column for place in hop.source} == set(gathering.tables[start].primary_key)
    return round(counts[end].rows / max(counts[start].rows, 1)) if by_key else None


def reads(gathering: Gathering, occurrence: int, note: Callable[[Hop], str] = lambda hop: "") -> str:
    """Return what a batch reads for a change of an occurrence.

    Args:
        note: a text about a lookup.
    """
    plan = gathering.plan
    route = plan.routes[occurrence]
    notes: dict[str, str] = {}
    if route is not None and route.compared is not None:
        column = route.compared[0]
        table = str(plan.tables[column.occurrence])
        shown = gathering.tables[table].shown([column.column])
        notes[f"{_named(gathering, table)} by ({shown}) between the old and the new value"] = ""
    for hop in plan.lookups_of(occurrence):
        end = str(plan.tables[hop.end])
        step = f"{_named(gathering, end)} by ({gathering.tables[end].shown(hop.columns)})"
        notes[step] = notes.get(step) or note(hop)
    steps = [f"{step}{text}" for step, text in notes.items()]
    steps += [f"all rows of {_named(gathering, table)}" for table in plan.whole_for(occurrence)]
    return ", ".join(steps) or "nothing else"


def expensive(gathering: Gathering, counts: Mapping[str, RowCount] = MappingProxyType({})) -> Iterator[str]:
    """Yield the parts of a query whose cost does not depend on the size of the changes, with the ways out."""
    for construct, reads_of in _full_reads(gathering).items():
        yield f"{construct.name}: {'; '.join(map(str, reads_of))}. Way out: {construct.remedy}"
    hops = dict[tuple[str | None, str | None, tuple[str, ...]], int]()
    for part in (*gathering.inner.values(), gathering):
        plan = part.plan
        for number, table in enumerate(plan.tables):
            for hop in plan.lookups_of(number) if table is not None else ():
                rows = fan_out(replace(part, tables=gathering.tables), counts, hop)
                if rows is not None and rows >= MANY_ROWS:
                    hops[plan.tables[hop.start], plan.tables[hop.end], hop.columns] = rows
    for (start, end, columns), rows in hops.items():
        by = ", ".join(columns)
        yield f"a key with many rows: a row of {start} reaches {rows:,} rows of {end} by ({by}) on average"


def refuse_full_reads(gathering: Gathering) -> None:
    """Raise `SqlError` for a query whose batches read whole tables."""
    for construct, reads_of in _full_reads(gathering).items():
        raise SqlError(
            f"allowFullRead is false, and the query has {construct.name}",
            received="; ".join(map(str, reads_of)),
            remedy=construct.remedy,
        )


def _full_reads(gathering: Gathering) -> dict[Construct, list[FullRead]]:
    """Return the reads of whole tables by their construct, except one inside of another of its construct."""
    found: dict[Construct, list[FullRead]] = {}
    for read in (read for each in (*gathering.inner.values(), gathering) for read in each.plan.full_reads):
        tables = tuple(_named(gathering, table) for table in read.tables)
        read = FullRead(read.construct, None if read.changed is None else _named(gathering, read.changed), tables)
        known = found.setdefault(read.construct, [])
        if not any(each.changed is None and set(each.tables) >= set(read.tables) for each in known):
            known.append(read)
    return found


def _named(gathering: Gathering, table: str) -> str:
    """Return the name of a table for people."""
    return gathering.tables[table].name if table in gathering.inner else table


def _equal(gathering: Gathering, left: Iterable[Place], right: Iterable[Place]) -> str:
    pairs = zip(left, right, strict=True)
    return " AND ".join(f"{_name(gathering, one)} = {_name(gathering, other)}" for one, other in pairs)


def _names(gathering: Gathering, places: Iterable[Place]) -> str:
    return f"({', '.join(_name(gathering, place) for place in places)})"


def _name(gathering: Gathering, place: Place) -> str:
    """Return a column for people, with the alias of its table."""
    assert gathering.model is not None, "a place is one of a model"
    occurrence = gathering.model.occurrences[place.occurrence]
    alias = occurrence.name if occurrence.name != occurrence.table else _named(gathering, occurrence.table)
    arranged = gathering.tables.get(occurrence.table)
    return f"{alias}.{place.column if arranged is None else arranged.shown([place.column])}"
