"""The rules of headrace without Spark: its reading of the text, its lookups and its difference, in memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.derived.gathering import constructs
from headrace.derived.gathering.gather import TableChange, TableViews, by_sign, difference, gather
from headrace.derived.gathering.model import QueryModel
from headrace.derived.gathering.orders import refuse_orders
from headrace.derived.gathering.routes import plan_gather, plan_whole
from headrace.derived.gathering.row_keys import ID, key_kind, row_keys
from headrace.derived.gathering.scopes import Columns, UnclearStructure, read_model
from headrace.derived.gathering.signed_joins import signed_join
from headrace.derived.own_names import SIGN
from headrace.sql_text.query_text import QueryText
from tests.views.changes import Delta
from tests.views.rules import Bag, Evaluate, View
from tests.views.tables import TableDefinition


@dataclass
class RowsInMemory:
    """The rows of a table as of the last batch."""

    rows: pa.Table

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def of_keys(self, columns: tuple[str, ...], keys: pa.BinaryArray) -> pa.Table:
        return self.rows.filter(pc.is_in(row_keys(self.rows, columns), keys))

    def between(self, column: str, low: bytes, high: bytes, most: int) -> pa.Table:
        keys = row_keys(self.rows, (column,))
        return self.rows.filter(pc.and_(pc.greater_equal(keys, low), pc.less_equal(keys, high)))

    def all(self, most: int) -> pa.Table:
        return self.rows


def columns_of(tables: Mapping[str, TableDefinition]) -> dict[str, Columns]:
    """Return what a query's text is read with."""
    return {
        name: Columns({field.name: key_kind(field.type) for field in table.schema}, table.key)
        for name, table in tables.items()
    }


class Gathered:
    """An engine that evaluates a query over the rows that changes reach."""

    def __init__(self, view: View, rows: Mapping[str, pa.Table], evaluate: Evaluate) -> None:
        self._view, self._evaluate = view, evaluate
        text, columns = QueryText(view.sql), columns_of(view.tables)
        names = sorted(text.references() & view.tables.keys())
        model: QueryModel | None
        try:
            model = read_model(text, columns)
            self.plan = plan_gather(model)
        except UnclearStructure as unclear:
            model, self.plan = None, plan_whole(names, constructs.unclear(str(unclear)))
        refuse_orders(text, model)
        self._signed_sql = signed_join(text, model, names)
        self._kept = {name: RowsInMemory(self._with_ids(name, rows[name])) for name in names}
        first = evaluate(view.sql, {name: rows[name] for name in names})
        self._answer = Bag(first.schema)
        self._answer.add(with_one_zero(first), strict=True)

    def apply(self, deltas: Mapping[str, Delta]) -> None:
        changes = {
            name: TableChange(self._with_ids(name, deltas[name].removed), self._with_ids(name, deltas[name].added))
            for name in self._kept
            if name in deltas
        }
        views = gather(self.plan, changes, self._kept, most=sys.maxsize)
        assert views is not None
        if views:
            for sign, rows in difference(*map(with_one_zero, self._answers(views))):
                self._answer.add(rows, sign, strict=True)
        for name, change in changes.items():
            kept = self._kept[name].rows
            stays = pc.invert(pc.is_in(kept.column(ID), change.removed.column(ID).combine_chunks()))
            self._kept[name] = RowsInMemory(pa.concat_tables([kept.filter(stays), change.added]))

    def rows(self) -> pa.Table:
        return self._answer.rows()

    def _answers(self, views: Mapping[str, TableViews]) -> Sequence[pa.Table]:
        """Return the rows that can be in the result only before a batch, and only after it."""
        if self._signed_sql is not None:
            # The quotes of DuckDB.
            sql = self._signed_sql.replace("`", '"')
            return by_sign(self._evaluate(sql, {name: each.rows.drop_columns([ID]) for name, each in views.items()}))
        before, after = ({name: side(each.rows, sign) for name, each in views.items()} for sign in (-1, 1))
        return self._evaluate(self._view.sql, before), self._evaluate(self._view.sql, after)

    def _with_ids(self, name: str, rows: pa.Table) -> pa.Table:
        return rows.append_column(ID, row_keys(rows, self._view.tables[name].key))


def side(rows: pa.Table, sign: int) -> pa.Table:
    """Return the rows before (-1) or after (1) a batch."""
    return rows.filter(pc.not_equal(rows.column(SIGN), -sign)).drop_columns([ID, SIGN])


def with_one_zero(rows: pa.Table) -> pa.Table:
    """Return rows without -0.0: DuckDB shows either zero for a group, and Spark always 0.0."""
    columns = [pc.add(each, 0.0) if pa.types.is_floating(each.type) else each for each in rows.columns]
    return pa.table(columns, rows.column_names)
