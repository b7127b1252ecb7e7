"""From the structure of a query to lookups: which rows must be read for the changed rows of each table.

A batch evaluates the query over the rows before and after it, and publishes the difference. It need not read the rows
whose results are the same in both. It reads

1. from each changed row outwards, along equalities, the rows of the other tables that a result with this row can have.
   A path leaves a unit by the unit's own equalities, and ends among the tables that every row of the result has;
2. for each row that is read so, all rows of the units that depend on it. An anti join would be true by mistake
   otherwise, and an average would be one of some rows.

Reading too many rows is harmless, because their results are the same in both evaluations. Where no equality leads on,
the table is read as a whole. Nothing is read for a row that takes part in no result, because a condition is false for
it, or because it lacks a partner in a join or for EXISTS.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.derived.gathering import constructs
from headrace.derived.gathering.conditions import Condition
from headrace.derived.gathering.constructs import Construct
from headrace.derived.gathering.model import Link, Place, QueryModel, Unit


@dataclass(frozen=True)
class Hop:
    """A lookup: for rows of an occurrence, the rows of another one whose key is the same.

    Attributes:
        source, target: the columns of the key, in the same order.
        nulls: whether null finds null, as in groups.
    """

    source: tuple[Place, ...]
    target: tuple[Place, ...]
    nulls: bool = False

    @property
    def start(self) -> int:
        return self.source[0].occurrence

    @property
    def end(self) -> int:
        return self.target[0].occurrence

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table that is read."""
        return tuple(place.column for place in self.target)


@dataclass(frozen=True)
class Need:
    """A lookup that finds a row for each row that takes part in a result.

    Attributes:
        needs: the same for the rows that it finds.
    """

    hop: Hop
    needs: tuple[Need, ...]


@dataclass(frozen=True)
class Route:
    """What a changed row of an occurrence reaches.

    Attributes:
        hops: the lookups, in order.
        whole: the tables that are read as a whole.
        narrows: the lookups are those of a tree, and a row for which one of them finds nothing does not matter.
        compared: a column that is compared with one of the changed row. The lookups begin at the rows whose column is
            between the old and the new value.
    """

    hops: tuple[Hop, ...]
    whole: frozenset[str]
    narrows: bool
    compared: tuple[Place, Place] | None = None


@dataclass(frozen=True)
class FullRead:
    """A read of whole tables.

    Attributes:
        construct: the construct that causes it.
        changed: the table whose changes cause it; None if each batch does.
        tables: the tables that are read.
    """

    construct: Construct
    changed: str | None
    tables: tuple[str, ...]

    def __str__(self) -> str:
        when = "each batch" if self.changed is None else f"a change of {self.changed}"
        return f"{when} reads all rows of {', '.join(self.tables)}"


@dataclass(frozen=True)
class GatherPlan:
    """Which rows a batch reads.

    Attributes:
        tables: for each occurrence its table; None for a static one.
        routes: for each occurrence of a followed table what its changes reach; None if they reach everything.
        completions: the lookups for all rows that were read, which are repeated until they find nothing new.
        whole: the tables that each batch reads as a whole.
        full_reads: why tables are read as a whole.
        conditions: for each occurrence what is true for its rows that take part in a result.
        needs: for each occurrence lookups, of those above, which find rows with conditions for these rows.
    """

    tables: tuple[str | None, ...]
    routes: tuple[Route | None, ...]
    completions: tuple[Hop, ...]
    whole: frozenset[str]
    full_reads: tuple[FullRead, ...]
    conditions: tuple[tuple[Condition, ...], ...]
    needs: tuple[tuple[Need, ...], ...]

    def lookups_of(self, occurrence: int) -> list[Hop]:
        """Return the lookups for a change of an occurrence, without those in tables that are read as a whole."""
        route = self.routes[occurrence]
        hops = () if route is None else (*route.hops, *self.completions)
        return [hop for hop in hops if self.tables[hop.end] not in self.whole]

    def whole_for(self, occurrence: int) -> list[str]:
        """Return the tables that a change of an occurrence reads as a whole."""
        route = self.routes[occurrence]
        return sorted({table for table in self.tables if table} if route is None else route.whole | self.whole)

    @property
    def lookups(self) -> dict[str, list[tuple[str, ...]]]:
        """For each followed table the keys by which it is read."""
        found: dict[str, list[tuple[str, ...]]] = {table: [] for table in self.tables if table is not None}
        hops = [hop for route in self.routes if route is not None for hop in route.hops]
        for hop in (*hops, *self.completions):
            table = self.tables[hop.end]
            assert table is not None, "a static table has no lookups"
            if hop.columns not in found[table]:
                found[table].append(hop.columns)
        for route in self.routes:
            if route is not None and route.compared is not None:
                column = route.compared[0]
                found[str(self.tables[column.occurrence])].append((column.column,))
        return {table: list(dict.fromkeys(keys)) for table, keys in found.items()}


def plan_gather(model: QueryModel) -> GatherPlan:
    """Return the lookups of a query."""
    return _Routes(model).plan()


def plan_whole(tables: Iterable[str], construct: Construct) -> GatherPlan:
    """Return the plan of a query whose tables are always read as a whole, because of a construct."""
    names = tuple(tables)
    nothing = ((),) * len(names)
    full_reads = (FullRead(construct, None, names),)
    return GatherPlan(names, (None,) * len(names), (), frozenset(names), full_reads, nothing, nothing)


class _Routes:
    def __init__(self, model: QueryModel) -> None:
        self._model = model
        # Static tables are not read by key, so no path leads over them.
        self._passable = {each.number for each in model.occurrences if each.changes}
        links = [*model.links, *(unit.link for unit in model.units if unit.link is not None)]
        usable = [each for each in links if self._is_usable(each)]
        self._steps = [
            self._hop(*sides) for each in usable for sides in ((each.left, each.right), (each.right, each.left))
        ]
        # Lookups of single rows first.
        self._steps.sort(key=lambda hop: not self._is_by_key(hop))
        # A row stays without the other side of a FULL JOIN, and both sides lead to each other.
        self._narrows = all(unit.other_side is None for unit in model.units)
        self._full: list[FullRead] = []

    def plan(self) -> GatherPlan:
        model = self._model
        whole: set[str] = set()
        completions: list[Hop] = []
        for unit in model.units:
            hops, missing = self._completion(unit)
            completions += hops
            whole |= model.tables(missing)
            self._note(self._reason(unit), None, model.tables(missing))
        plan = GatherPlan(
            tuple(each.table if each.changes else None for each in model.occurrences),
            tuple(self._route(each.number) if each.changes else None for each in model.occurrences),
            tuple(dict.fromkeys(completions)),
            frozenset(whole),
            tuple(dict.fromkeys(self._full)),
            tuple(tuple(each.conditions) for each in model.occurrences),
            ((),) * len(model.occurrences),
        )
        lookups = plan.lookups
        needed = [hop for hop in self._needed() if hop.columns in lookups[model.occurrences[hop.end].table]]
        needs = (self._needs(each.number, needed, {each.number}) for each in model.occurrences)
        return replace(plan, needs=tuple(needs))

    def _needed(self) -> Iterator[Hop]:
        """Yield lookups that find a row for each row that takes part in a result: by its key, or for EXISTS and IN."""
        model = self._model
        if not self._narrows:
            return
        links = [(each.left, each.right) for each in model.links if self._is_usable(each)]
        for sides in (*links, *((right, left) for left, right in links)):
            if self._is_by_key(hop := self._hop(*sides)):
                yield hop
        for unit in model.units:
            if unit.link is None or not unit.required or unit.grouped or not self._is_usable(unit.link):
                continue
            inside, outside = (model.occurrences[side[0].occurrence] for side in (unit.link.left, unit.link.right))
            # An aggregate between them has a row without others.
            if inside.unit == unit.number and outside.unit == unit.parent:
                yield self._hop(unit.link.right, unit.link.left)

    def _needs(self, start: int, needed: Iterable[Hop], seen: set[int]) -> tuple[Need, ...]:
        """Return the lookups that lead from an occurrence to conditions, without those in occurrences seen before."""
        found: list[Need] = []
        for hop in needed:
            if hop.start == start and hop.end not in seen:
                seen.add(hop.end)
                needs = self._needs(hop.end, needed, seen)
                if needs or self._model.occurrences[hop.end].conditions:
                    found.append(Need(hop, needs))
        return tuple(found)

    def _note(self, construct: Construct, changed: int | None, tables: set[str]) -> None:
        """Note a read of whole tables, if there is one to read of more than one row."""
        table = None if changed is None else self._model.occurrences[changed].table
        large = sorted(each for each in tables if not self._model.has_one_row(each))
        if large:
            self._full.append(FullRead(construct, table, tuple(large)))

    def _reason(self, unit: Unit) -> Construct:
        """Return the construct for which no equality leads into a unit or out of it."""
        in_from = unit.construct in (constructs.JOIN, constructs.SUBQUERY)
        return unit.unpartitioned if in_from and unit.unpartitioned is not None else unit.construct

    def _completion(self, unit: Unit) -> tuple[list[Hop], list[int]]:
        """Return the lookups that complete a unit, and the occurrences that are read as a whole instead."""
        if unit.independent and not unit.grouped:
            return [], []
        inside = self._model.inside(unit.number)
        if unit.link is None:
            hops = [Hop(source, target, nulls=True) for source in unit.entries for target in unit.entries]
        else:
            hops = [self._hop(unit.link.right, entry) for entry in unit.entries or [unit.link.left]]
        if not hops or not all({hop.start, hop.end} <= self._passable for hop in hops):
            return [], inside
        spread, missing = self._spread({hop.end for hop in hops}, inside)
        return [*hops, *spread], missing

    def _route(self, occurrence: int) -> Route | None:
        """Return what a changed row of an occurrence reaches, until completion; None if that is everything."""
        model = self._model
        hops: list[Hop] = []
        passed: set[int | None] = set()
        at, unit = occurrence, model.units[model.occurrences[occurrence].unit]
        if unit.compared is not None:
            route = self._route(unit.compared[0].occurrence)
            return None if route is None else replace(route, compared=unit.compared)
        while not unit.independent:
            passed |= {unit.number, unit.other_side}
            if unit.link is None and unit.entries:
                path = self._path(at, {entry[0].occurrence for entry in unit.entries}, model.inside(unit.number))
                if path is None:
                    self._note_everything(occurrence, constructs.JOIN)
                    return None
                hops += path
                at = path[-1].end if path else at
                unit = model.units[int(unit.parent or 0)]
                continue
            if unit.link is None or not self._is_usable(unit.link):
                self._note_everything(occurrence, self._reason(unit))
                return None
            right = unit.link.right
            ways = {entry[0].occurrence: self._hop(entry, right) for entry in unit.entries or [unit.link.left]}
            path = self._path(at, ways.keys(), model.inside(unit.number))
            if path is None:
                self._note_everything(occurrence, constructs.JOIN)
                return None
            out = ways[path[-1].end if path else at]
            hops += [*path, out]
            at = out.end
            full_join = unit.other_side is not None
            unit = model.units[int(unit.parent or 0) if full_join else model.occurrences[at].unit]
        if unit.grouped:
            path = self._path(at, {entry[0].occurrence for entry in unit.entries}, model.inside(unit.number))
            if path is None:
                self._note_everything(occurrence, constructs.JOIN if unit.entries else self._reason(unit))
                return None
            return self._as_route(occurrence, (*hops, *path), [])
        level = model.directly_in(unit.number)
        spread, missing = self._spread({at}, level) if at in level else ([], level)
        self._note(constructs.JOIN, occurrence, model.tables(missing))
        for each in model.units:
            # No path leads over the rows of a FULL JOIN, of which each side can be missing.
            if each.other_side is not None and each.parent == unit.number and each.number not in passed:
                missing += model.inside(each.number)
                self._note(constructs.BESIDE_FULL_JOIN, occurrence, model.tables(model.inside(each.number)))
        return self._as_route(occurrence, (*hops, *spread), missing)

    def _as_route(self, start: int, hops: tuple[Hop, ...], missing: Iterable[int]) -> Route:
        is_tree = len({start, *(hop.end for hop in hops)}) == len(hops) + 1
        return Route(hops, frozenset(self._model.tables(missing)), self._narrows and is_tree)

    def _note_everything(self, occurrence: int, construct: Construct) -> None:
        """Note that a change of an occurrence reaches everything."""
        self._note(construct, occurrence, self._model.tables(each.number for each in self._model.occurrences))

    def _hop(self, source: Sequence[Place], target: Sequence[Place]) -> Hop:
        """Return a lookup, with the key in the order of the table's own key."""
        key = self._model.occurrences[target[0].occurrence].key
        places = {name: place for place, name in enumerate(key)}
        pairs = zip(source, target, strict=True)
        ordered = sorted(pairs, key=lambda pair: (places.get(pair[1].column, len(key)), pair[1].column))
        return Hop(tuple(place for place, _ in ordered), tuple(place for _, place in ordered))

    def _is_by_key(self, hop: Hop) -> bool:
        return {place.column for place in hop.target} >= set(self._model.occurrences[hop.end].key)

    def _is_usable(self, link: Link) -> bool:
        return {link.left[0].occurrence, link.right[0].occurrence} <= self._passable

    def _spread(self, reached: Collection[int], occurrences: Collection[int]) -> tuple[list[Hop], list[int]]:
        """Return the lookups from some occurrences to others, and the others without one."""
        seen, missing = set(reached), set(occurrences) - set(reached)
        hops: list[Hop] = []
        while missing:
            hop = next((each for each in self._steps if each.start in seen and each.end in missing), None)
            if hop is None:
                return hops, sorted(missing)
            hops.append(hop)
            seen.add(hop.end)
            missing.discard(hop.end)
        return hops, []

    def _path(self, start: int, ends: Collection[int], occurrences: Collection[int]) -> list[Hop] | None:
        """Return the shortest path among some occurrences; None if there is none."""
        before: dict[int, Hop | None] = {start: None}
        waiting = [start]
        for at in waiting:
            if at in ends:
                path: list[Hop] = []
                while (hop := before[at]) is not None:
                    path.append(hop)
                    at = hop.start
                return path[::-1]
            for step in self._steps:
                if step.start == at and step.end in occurrences and step.end not in before:
                    before[step.end] = step
                    waiting.append(step.end)
        return None
