"""A small engine that follows changes: it gathers the rows that a change reaches, and evaluates the text over them.

It exists to prove the tests: each of its faults is one that an engine can have, and the tests must notice it. It knows
one block over tables, each named once in the text. Its equalities are given by hand, between columns that are no
floating-point numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from tests.views.changes import Delta
from tests.views.rules import Bag, Evaluate, KeptView, View
from tests.views.tables import Key, Row

Column: TypeAlias = tuple[str, str]
"""A table and one of its columns."""
Fault: TypeAlias = Literal["no completion", "old rows stay", "nulls of lists", "one way"]


@dataclass(frozen=True)
class Gathering:
    """Starts views by gathering.

    Attributes:
        edges: the equalities of the text.
        complete: the tables whose absence matters: the right side of LEFT and ANTI joins, and those of subqueries.
        listed: the columns of lists of NOT IN. A null in such a list decides about all rows.
        fault: what the engine does wrong.
    """

    edges: Sequence[tuple[Column, Column]]
    complete: Collection[str] = ()
    listed: Collection[Column] = ()
    fault: Fault | None = None

    def __call__(self, view: View, rows: Mapping[str, pa.Table], evaluate: Evaluate) -> KeptView:
        return _ToyView(self, view, rows, evaluate)


class _ToyView:
    """A view that is kept by gathering."""

    def __init__(self, rules: Gathering, view: View, rows: Mapping[str, pa.Table], evaluate: Evaluate) -> None:
        self._rules, self._view, self._evaluate = rules, view, evaluate
        self._names = list(dict.fromkeys(name for edge in rules.edges for name, _ in edge))
        self._rows = {name: self._by_key(name, rows[name].to_pylist()) for name in self._names}
        first = evaluate(view.sql, rows)
        self._answer = Bag(first.schema)
        self._answer.add(first)

    def apply(self, deltas: Mapping[str, Delta]) -> None:
        removed = {name: deltas[name].removed.to_pylist() if name in deltas else [] for name in self._names}
        added = {name: deltas[name].added.to_pylist() if name in deltas else [] for name in self._names}
        old: dict[str, dict[Key, Row]] = {name: {} for name in self._names}
        for name in self._names:
            if removed[name] or added[name]:
                self._gather(name, [*removed[name], *added[name]], added, old)
        if self._rules.fault != "no completion":
            self._complete(added, old)
        gone = {name: self._by_key(name, removed[name]).keys() for name in self._names}
        if self._rules.fault != "old rows stay":
            self._answer.add(self._evaluated({name: list(old[name].values()) for name in self._names}), -1)
        kept = {name: [row for key, row in old[name].items() if key not in gone[name]] for name in self._names}
        self._answer.add(self._evaluated({name: kept[name] + added[name] for name in self._names}))
        for name in self._names:
            for key in gone[name]:
                del self._rows[name][key]
            self._rows[name].update(self._by_key(name, added[name]))

    def rows(self) -> pa.Table:
        return self._answer.rows()

    def _gather(
        self, start: str, rows: list[Row], added: Mapping[str, list[Row]], old: Mapping[str, dict[Key, Row]]
    ) -> None:
        """Follow the edges from rows of a table outwards, and note the old rows on the way."""
        frontier, seen = {start: rows}, {start}
        while frontier:
            name, rows = frontier.popitem()
            present = self._rows[name]
            old[name].update((key, present[key]) for key in self._by_key(name, rows) if key in present)
            for one, other in self._directed():
                if one[0] == name and other[0] not in seen:
                    seen.add(other[0])
                    frontier[other[0]] = self._partners(rows, one, other, added)

    def _partners(self, rows: Collection[Row], one: Column, other: Column, added: Mapping[str, list[Row]]) -> list[Row]:
        """Return the rows of another table that rows reach over an edge."""
        others = [*self._rows[other[0]].values(), *added[other[0]]]
        decides = self._rules.fault != "nulls of lists" and one in self._rules.listed
        if decides and any(row[one[1]] is None for row in rows):
            return others
        keys = {row[one[1]] for row in rows if row[one[1]] is not None}
        return [row for row in others if row[other[1]] in keys]

    def _complete(self, added: Mapping[str, list[Row]], old: Mapping[str, dict[Key, Row]]) -> None:
        """Add all old rows of the tables whose absence matters, for the keys of the rows beside them."""
        for name in self._rules.complete:
            present, reached = self._rows[name], []
            for one, other in self._directed():
                if other[0] == name and one[0] not in self._rules.complete:
                    reached += self._partners([*old[one[0]].values(), *added[one[0]]], one, other, added)
            listed = [column for table, column in self._rules.listed if table == name]
            reached += [row for row in present.values() if any(row[column] is None for column in listed)]
            old[name].update((key, present[key]) for key in self._by_key(name, reached) if key in present)

    def _directed(self) -> list[tuple[Column, Column]]:
        there = list(self._rules.edges)
        return there if self._rules.fault == "one way" else there + [(other, one) for one, other in there]

    def _by_key(self, name: str, rows: Collection[Row]) -> dict[Key, Row]:
        return {self._view.tables[name].key_of(row): row for row in rows}

    def _evaluated(self, rows: Mapping[str, list[Row]]) -> pa.Table:
        tables = {name: self._view.tables[name].arrow(rows[name]) for name in self._names}
        return self._evaluate(self._view.sql, tables)
