"""The rules for kept groups of inner queries, without Spark: DuckDB says what names mean, and computes the groups."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from headrace.derived.follow.gathered import grouped_query
from headrace.derived.follow.inner_queries import InnerQueries
from headrace.derived.follow.scans import FollowedScan
from headrace.derived.follow.split import Grouping
from headrace.derived.gathering import constructs
from headrace.derived.gathering.gather import TableChange, difference, gather
from headrace.derived.gathering.routes import GatherPlan, plan_gather, plan_whole
from headrace.derived.gathering.row_keys import ID, key_kind, row_keys
from headrace.derived.gathering.scopes import Columns, UnclearStructure, read_model
from headrace.derived.own_names import inner_table
from headrace.errors import SqlError
from headrace.sql_text.query_text import QueryText
from tests.views.changes import Delta
from tests.views.gathered import RowsInMemory, side, with_one_zero
from tests.views.rules import Bag, Evaluate, View


@dataclass(frozen=True)
class DuckNames:
    """The names in a FROM clause; see `headrace.derived.follow.items.Names`."""

    evaluate: Evaluate
    tables: Mapping[str, pa.Table]
    with_: str
    from_: str

    def is_column(self, name: str) -> bool:
        return self._is_valid(name, "")

    def is_same(self, left: str, right: str) -> bool:
        return self._is_valid(left, f"GROUP BY {right}") and self._is_valid(right, f"GROUP BY {left}")

    def _is_valid(self, name: str, clause: str) -> bool:
        with suppress(duckdb.Error):
            self.evaluate(f"{self.with_} SELECT {name} {self.from_} {clause}", self.tables)
            return True
        return False


class Part:
    """The query, or an inner one, as it is evaluated over the rows that changes reach."""

    def __init__(self, sql: str, tables: Mapping[str, pa.Table], keys: Mapping[str, tuple[str, ...]]) -> None:
        self.sql = sql
        text = QueryText(sql)
        columns = {
            name: Columns({field.name: key_kind(field.type) for field in rows.schema}, keys[name], null_keys=True)
            for name, rows in tables.items()
        }
        self.plan: GatherPlan
        try:
            self.plan = plan_gather(read_model(text, columns))
        except UnclearStructure as unclear:
            self.plan = plan_whole(sorted(text.references() & tables.keys()), constructs.unclear(str(unclear)))

    def change(
        self, changes: Mapping[str, TableChange], kept: Mapping[str, RowsInMemory], evaluate: Evaluate
    ) -> dict[int, pa.Table]:
        """Return the rows that leave (-1) and enter (1) the result."""
        if changes.keys().isdisjoint(self.plan.tables):
            return {}
        own = {name: rows for name, rows in kept.items() if name in self.plan.tables}
        views = gather(self.plan, {name: each for name, each in changes.items() if name in own}, own, most=sys.maxsize)
        assert views is not None
        if not views:
            return {}
        before, after = ({name: side(each.rows, sign) for name, each in views.items()} for sign in (-1, 1))
        answers = (evaluate(self.sql, before), evaluate(self.sql, after))
        return dict(difference(*map(with_one_zero, answers)))


@dataclass
class Inner:
    """An inner query, with the rows that are grouped."""

    part: Part
    groups: Grouping
    rows: Bag

    def grouped(self, evaluate: Evaluate) -> pa.Table:
        calls = self.groups.types_sql.partition(" FROM (")[0]
        group = f"GROUP BY {', '.join(self.groups.names)}" if self.groups.names else ""
        return with_one_zero(evaluate(f"{calls} FROM grouped {group}", {"grouped": self.rows.rows()}))


class GatheredGroups:
    """An engine that keeps the groups of inner queries, and evaluates the query around them over these."""

    def __init__(self, view: View, rows: Mapping[str, pa.Table], evaluate: Evaluate) -> None:
        self._duck = evaluate
        self._keys = {name: table.key for name, table in view.tables.items()}
        self._tables = dict(rows)
        self._inner: dict[str, Inner] = {}
        queries = InnerQueries(view.sql)
        queries.replace(self._read)
        queries.replace_last(self._read)
        self.inner = len(self._inner)
        self._part = Part(queries.text, self._tables, self._keys)
        self._kept = {name: RowsInMemory(self._with_ids(name, table)) for name, table in self._tables.items()}
        first = self._evaluate(queries.text, self._tables)
        self._answer = Bag(first.schema)
        self._answer.add(with_one_zero(first), strict=True)

    def apply(self, deltas: Mapping[str, Delta]) -> None:
        changes = {
            name: TableChange(self._with_ids(name, delta.removed), self._with_ids(name, delta.added))
            for name, delta in deltas.items()
        }
        for name, inner in self._inner.items():
            signed = inner.part.change(changes, self._kept, self._evaluate)
            for sign, rows in signed.items():
                inner.rows.add(rows, sign, strict=True)
            old = self._kept[name].rows
            parted = dict(difference(old, self._with_ids(name, inner.grouped(self._evaluate)))) if signed else {}
            if parted:
                changes[name] = TableChange(parted.get(-1, old.slice(0, 0)), parted.get(1, old.slice(0, 0)))
        for sign, rows in self._part.change(changes, self._kept, self._evaluate).items():
            self._answer.add(rows, sign, strict=True)
        for name, change in changes.items():
            kept = self._kept[name].rows
            stays = pc.invert(pc.is_in(kept.column(ID), change.removed.column(ID).combine_chunks()))
            self._kept[name] = RowsInMemory(pa.concat_tables([kept.filter(stays), change.added]))

    def rows(self) -> pa.Table:
        return self._answer.rows()

    def _read(self, text: str) -> str | None:
        try:
            return self._replaced(text)
        except (SqlError, duckdb.Error):
            return None

    def _replaced(self, text: str) -> str:
        def names_of(with_: str, from_: str) -> DuckNames:
            return DuckNames(self._evaluate, self._tables, with_, from_)

        scans = {name: FollowedScan(name, None, ()) for name in self._tables}  # type: ignore[arg-type]
        query = grouped_query(text, scans, names_of, has_subqueries=True)
        groups, name = query.groups, inner_table(len(self._inner) + 1)
        assert groups is not None
        # A query that names a column of the queries around it is an error by itself.
        result = self._evaluate(text, self._tables)
        first = self._evaluate(query.rows_sql, self._tables)
        inner = Inner(Part(query.rows_sql, self._tables, self._keys), groups, Bag(first.schema, named=True))
        inner.rows.add(with_one_zero(first))
        table = inner.grouped(self._evaluate)
        replaced = groups.select(result.column_names, name)
        self._evaluate(replaced, {**self._tables, name: table})
        self._tables[name], self._keys[name], self._inner[name] = table, groups.names, inner
        return replaced

    def _evaluate(self, text: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        return self._duck(text.replace("`", '"'), tables)

    def _with_ids(self, name: str, rows: pa.Table) -> pa.Table:
        return rows.append_column(ID, row_keys(rows, self._keys[name]))
