"""Engines without Spark: what they must offer, and the loop that compares their answers with the oracle's.

An engine gets a query, the first rows of its tables and a function that evaluates a text over tables. In a stream that
is Spark; here it is DuckDB, which makes hundreds of batches a minute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol, TypeAlias

import duckdb
import pyarrow as pa

from tests.views.changes import Batch, Delta, apply
from tests.views.comparing import difference
from tests.views.tables import Database, Row, TableDefinition, connect

Evaluate: TypeAlias = Callable[[str, Mapping[str, pa.Table]], pa.Table]
"""Evaluates a text over tables with these names."""


class KeptView(Protocol):
    """The answer of a query, kept while its tables change."""

    def apply(self, deltas: Mapping[str, Delta]) -> None:
        """Take the net rows of a batch; tables that do not change have none."""

    def rows(self) -> pa.Table:
        """Return the answer as of the last batch."""


@dataclass(frozen=True)
class View:
    """A query over tables."""

    sql: str
    tables: Mapping[str, TableDefinition]


Engine: TypeAlias = Callable[[View, Mapping[str, pa.Table], Evaluate], KeptView]
"""Starts to keep a view over the first rows of its tables."""


class WrongAnswer(AssertionError):
    """An engine and the oracle have different answers."""


class Bag:
    """Rows of an answer, which come and go."""

    def __init__(self, schema: pa.Schema, *, named: bool = False) -> None:
        # Two columns can have one name.
        numbered = pa.schema([field.with_name(f"c{place}") for place, field in enumerate(schema)])
        self._schema = schema if named else numbered
        # A row by its text: NaN is not equal to itself.
        self._shown: dict[str, Row] = {}
        self._counts: Counter[str] = Counter()

    def add(self, rows: pa.Table, weight: int = 1, *, strict: bool = False) -> None:
        """Add rows, or remove them with weight -1; with ``strict`` they must be there."""
        for row in rows.rename_columns(self._schema.names).to_pylist():
            text = repr(row)
            self._shown[text] = row
            self._counts[text] += weight
            assert not strict or self._counts[text] >= 0, f"a row leaves that was not there: {text}"

    def rows(self) -> pa.Table:
        """Return the rows, each as often as it is there."""
        rows = [self._shown[text] for text, count in self._counts.items() for _ in range(count)]
        return pa.Table.from_pylist(rows, self._schema)


def evaluate(text: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Evaluate a text by DuckDB."""
    duck = _evaluator()
    for name, rows in tables.items():
        duck.register(name, rows)
    try:
        return duck.sql(text).to_arrow_table()
    finally:
        for name in tables:
            duck.unregister(name)


@cache
def _evaluator() -> duckdb.DuckDBPyConnection:
    """Return a connection without tables. To connect takes longer than most texts."""
    return connect()


class Recomputed:
    """Computes the whole answer again after each batch: the slowest right engine."""

    def __init__(self, view: View, rows: Mapping[str, pa.Table], evaluate: Evaluate) -> None:
        self._view = view
        self._database = Database(view.tables, rows)

    def apply(self, deltas: Mapping[str, Delta]) -> None:
        for name, delta in deltas.items():
            key_of = self._view.tables[name].key_of
            removed = [key_of(row) for row in delta.removed.to_pylist()]
            self._database.replace(name, removed, delta.added.to_pylist())

    def rows(self) -> pa.Table:
        return self._database.query(self._view.sql)


@dataclass
class Comparison:
    """Views that an engine keeps over the same tables, each compared with the oracle after each batch."""

    engine: Engine
    views: Mapping[str, str]
    database: Database

    def __post_init__(self) -> None:
        rows = {name: self.database.rows(name) for name in self.database.tables}
        self._kept = {
            name: self.engine(View(sql, self.database.tables), rows, evaluate) for name, sql in self.views.items()
        }
        self.compare("the first load")

    def play(self, batch: Batch, what: str = "a batch") -> None:
        """Apply a batch to the tables, and compare the views."""
        deltas = apply(self.database, batch)
        for kept in self._kept.values():
            kept.apply(deltas)
        self.compare(what)

    def compare(self, what: str) -> None:
        for name, kept in self._kept.items():
            differs = difference(kept.rows(), self.database.query(self.views[name]))
            if differs is not None:
                raise WrongAnswer(f"{name} after {what}: {differs}\n{self.views[name]}")
