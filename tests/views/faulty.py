"""An engine that takes every query for a projection of an inner join: right for some, wrong for the rest.

The tests of random queries must notice it, and find a short query for it.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tests.views.changes import Delta
from tests.views.rules import Bag, Evaluate, View
from tests.views.tables import Key, Row


class Linear:
    """Adds what the added rows of a table give with all rows of the others, and subtracts what removed rows gave."""

    def __init__(self, view: View, rows: Mapping[str, pa.Table], evaluate: Evaluate) -> None:
        self._view, self._evaluate = view, evaluate
        self._rows = {name: self._by_key(name, rows[name]) for name in view.tables}
        first = evaluate(view.sql, rows)
        self._answer = Bag(first.schema)
        self._answer.add(first)

    def apply(self, deltas: Mapping[str, Delta]) -> None:
        for name, delta in deltas.items():
            for rows, weight in ((delta.removed, -1), (delta.added, 1)):
                others = {each: self._view.tables[each].arrow(list(kept.values())) for each, kept in self._rows.items()}
                self._answer.add(self._evaluate(self._view.sql, {**others, name: rows}), weight)
            for key in self._by_key(name, delta.removed):
                del self._rows[name][key]
            self._rows[name].update(self._by_key(name, delta.added))

    def rows(self) -> pa.Table:
        return self._answer.rows()

    def _by_key(self, name: str, rows: pa.Table) -> dict[Key, Row]:
        return {self._view.tables[name].key_of(row): row for row in rows.to_pylist()}
