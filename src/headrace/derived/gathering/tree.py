"""The blocks of a query as lines for a person: what each is, what is kept of it, and what a change of it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from headrace.derived.gathering.arrangements import MANY_ROWS, Gathering
from headrace.derived.gathering.constructs import Construct
from headrace.derived.gathering.model import Occurrence, Place, QueryModel, Unit
from headrace.derived.gathering.routes import FullRead, GatherPlan, Hop
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
    return _Blocks(gathering, counts).query()


class _Blocks:
    def __init__(self, gathering: Gathering, counts: Mapping[str, RowCount]) -> None:
        self._gathering = gathering
        self._counts = counts

    def query(self) -> Node:
        model = self._gathering.model
        if model is None:
            return Node(
                "the query: evaluated over all rows of all tables",
                inner=[
                    self._table(name, name, number) for number, name in enumerate(self._gathering.plan.tables) if name
                ],
            )
        return self._unit(model, model.units[0])

    def _unit(self, model: QueryModel, unit: Unit) -> Node:
        shown = ", ".join(dict.fromkeys((unit.label, *unit.groupings)))
        node = Node(f"{shown}: {self._rule(model, unit)}")
        direct = [model.occurrences[number] for number in model.directly_in(unit.number)]
        for link in model.links:
            if model.occurrences[link.left[0].occurrence].unit == unit.number:
                node.facts.append(f"joined by {_equal(model, link.left, link.right)}")
        node.inner = [self._occurrence(each) for each in direct]
        node.inner += [
            self._unit(model, each) for each in model.units if each.parent == unit.number and model.inside(each.number)
        ]
        return node

    def _rule(self, model: QueryModel, unit: Unit) -> str:
        if unit.link is not None:
            return f"all rows with {_equal(model, unit.link.left, unit.link.right)}, for each row outside"
        if unit.entries:
            return f"all rows of the groups of changed rows, by {_names(model, unit.entries[0])}"
        if unit.grouped or not unit.independent:
            return "all rows"
        return "the rows of the result with a changed row"

    def _occurrence(self, occurrence: Occurrence) -> Node:
        alias = "" if occurrence.name == occurrence.table else f" {occurrence.name}"
        if not occurrence.changes:
            return Node(f"{occurrence.table}{alias}: static")
        return self._table(occurrence.table, f"{occurrence.table}{alias}", occurrence.number)

    def _table(self, table: str, shown: str, number: int) -> Node:
        arranged = self._gathering.tables[table]
        count = self._counts.get(table)
        by = ", ".join(f"({', '.join(key)})" for key in arranged.keys if key)
        return Node(
            f"{shown}: {f'{count}, ' if count else ''}key ({', '.join(arranged.primary_key)})",
            [
                f"kept{f' by {by}' if by else ''}: {', '.join(arranged.schema.names)}",
                f"a change reads {reads(self._gathering.plan, number, self._fan_out)}",
            ],
        )

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


def reads(plan: GatherPlan, occurrence: int, note: Callable[[Hop], str] = lambda hop: "") -> str:
    """Return what a batch reads for a change of an occurrence.

    Args:
        note: a text about a lookup.
    """
    if plan.routes[occurrence] is None:
        return "all rows of all tables"
    notes: dict[str, str] = {}
    for hop in plan.lookups_of(occurrence):
        step = f"{plan.tables[hop.end]} by ({', '.join(hop.columns)})"
        notes[step] = notes.get(step) or note(hop)
    steps = [f"{step}{text}" for step, text in notes.items()]
    steps += [f"all rows of {table}" for table in plan.whole_for(occurrence)]
    return ", ".join(steps) or "nothing else"


def expensive(gathering: Gathering, counts: Mapping[str, RowCount] = MappingProxyType({})) -> Iterator[str]:
    """Yield the parts of a query whose cost does not depend on the size of the changes, with the ways out."""
    for construct, reads_of in _full_reads(gathering.plan).items():
        yield f"{construct.name}: {'; '.join(map(str, reads_of))}. Way out: {construct.remedy}"
    plan, hops = gathering.plan, dict[tuple[str | None, str | None, tuple[str, ...]], int]()
    for number, table in enumerate(plan.tables):
        for hop in plan.lookups_of(number) if table is not None else ():
            rows = fan_out(gathering, counts, hop)
            if rows is not None and rows >= MANY_ROWS:
                hops[plan.tables[hop.start], plan.tables[hop.end], hop.columns] = rows
    for (start, end, columns), rows in hops.items():
        by = ", ".join(columns)
        yield f"a key with many rows: a row of {start} reaches {rows:,} rows of {end} by ({by}) on average"


def refuse_full_reads(gathering: Gathering) -> None:
    """Raise `SqlError` for a query whose batches read whole tables."""
    for construct, reads_of in _full_reads(gathering.plan).items():
        raise SqlError(
            f"allowFullRead is false, and the query has {construct.name}",
            received="; ".join(map(str, reads_of)),
            remedy=construct.remedy,
        )


def _full_reads(plan: GatherPlan) -> dict[Construct, list[FullRead]]:
    """Return the reads of whole tables by their construct, except one inside of another of its construct."""
    found: dict[Construct, list[FullRead]] = {}
    for read in plan.full_reads:
        known = found.setdefault(read.construct, [])
        if not any(each.changed is None and set(each.tables) >= set(read.tables) for each in known):
            known.append(read)
    return found


def _equal(model: QueryModel, left: Iterable[Place], right: Iterable[Place]) -> str:
    return " AND ".join(f"{_name(model, one)} = {_name(model, other)}" for one, other in zip(left, right, strict=True))


def _names(model: QueryModel, places: Iterable[Place]) -> str:
    return f"({', '.join(_name(model, place) for place in places)})"


def _name(model: QueryModel, place: Place) -> str:
    return f"{model.occurrences[place.occurrence].name}.{place.column}"
