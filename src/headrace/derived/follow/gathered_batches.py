"""Batches of queries that are evaluated as they are written, over the rows before and after the batch.

They run in the driver, besides the evaluation itself, as long as the changes reach few rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.batches.sinks import batch_figures
from headrace.derived.follow.batch_content import BatchQuery, GroupQuery, InnerGroups
from headrace.derived.follow.gathered_in_tasks import Change, GatheredInTasks, LargeChange, RunningBatch
from headrace.derived.follow.gathered_settings import settings_for
from headrace.derived.follow.sources import NetChanges, net_changes_of
from headrace.derived.gathering.gather import TableChange, TableViews, by_sign, difference, with_signs
from headrace.derived.gathering.routes import GatherPlan
from headrace.derived.gathering.row_keys import ID, row_bytes
from headrace.derived.own_names import ALIVE, BATCH_VIEW, GROUPS_VIEW, KEEP, SIGN, STATE
from headrace.derived.state.state_tables import open_tables
from headrace.model.tables.changes import RowChange
from headrace.rows import to_arrow
from headrace.spark.batch_tasks import BatchTasks, DriverRows, Receipts, all_receipts
from headrace.spark.settings import FOLLOWS_TRUNCATIONS, changed_settings
from headrace.spark.versions import arrow_schema
from headrace.sql_text.lexer import quote_name
from headrace.sql_text.query_text import with_queries, with_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.ports import Store, Table

# More rows are read by tasks.
_MOST_ROWS = 500_000
_log = logging.getLogger("headrace")


class GatheredBatch(GatheredInTasks):
    """A batch whose query is evaluated over the rows before and after it that its changes reach."""

    def _attempt(self, batch: DataFrame, tasks: BatchTasks, *, net: bool) -> Receipts | DriverRows:
        """Compute the changes of the targets. The changes of scans are always net."""
        session = batch.sparkSession
        # The session is that of the query alone.
        session.conf.set(FOLLOWS_TRUNCATIONS, "[]")
        with batch_figures.part(tasks.job, tasks.batch, "gather"):
            read = self._read(batch)
        with tasks.open_store() as store, ExitStack() as opened:
            running = RunningBatch(session, tasks, open_tables(store, self.state), opened)
            changes, receipts = dict[str, Change](), list[Receipts]()
            routed = list[tuple[int, pa.RecordBatch]]()
            for name, each in read.items():
                if change := self._change(running, name.lower(), each):
                    changes[name.lower()] = change
            for name, change in changes.items():
                if isinstance(change, LargeChange):
                    receipts.append(tasks.stage_routed(change.rows, partial(self._arranged_change, name)))
                else:
                    routed += self._writes(name, change)
            for inner in self.query.inner:
                found = self._signed(running, self.gathering.inner[inner.table].plan, inner, changes)
                of_groups: Change | None
                if isinstance(found, dict):
                    of_groups, state = self._merged_inner(running, inner, found)
                    routed += state
                else:
                    staged, large = self._changed_inner(running, inner, found[0])
                    receipts.append(staged)
                    of_groups = self._small(inner.table, large, staged)
                if of_groups:
                    changes[inner.table] = of_groups
            found = self._signed(running, self.gathering.plan, self.query, changes)
            if not isinstance(found, dict):
                receipts.append(self._stage_whole(*found, tasks))
            elif self.query.groups is None:
                routed += self._changes_of_rows(store, {sign: self._named(rows) for sign, rows in found.items()})
            else:
                changed = self._changes_of_groups(session, self.query.groups, running.tables, found, tasks.batch)
                routed += self._of_keys(changed)
            if not receipts:
                return DriverRows(routed)
            return all_receipts([*receipts, tasks.stage_in_driver(tasks.writer(store), routed)])

    def _signed(
        self, running: RunningBatch, plan: GatherPlan, query: BatchQuery | InnerGroups, changes: Mapping[str, Change]
    ) -> dict[int, pa.Table] | tuple[DataFrame, int]:
        """Return the rows that leave (-1) and that enter (1) the result of a query.

        If the changes reach too many rows, return its results over all rows instead; see `_signed_whole`.
        """
        batch = running.tasks.batch
        own = {name: change for name, change in changes.items() if name in plan.tables}
        small = {name: change for name, change in own.items() if isinstance(change, TableChange)}
        if not own:
            return {}
        views = None
        if len(small) == len(own):
            with batch_figures.part(running.tasks.job, batch, "gather"):
                views = self.gathering.views(plan, small, running.tables, _MOST_ROWS)
        if views is not None:
            return self._difference(running.session, views, query) if views else {}
        _log.info("batch %d reaches too many rows for the driver: tasks read all rows", batch)
        return self._signed_whole(running, plan, query.rows_sql, changes)

    def _read(self, batch: DataFrame) -> dict[str, NetChanges]:
        arranged = self.gathering.tables
        columns = {scan.name: arranged[scan.name.lower()].schema for scan in self.query.scans}
        return net_changes_of(batch, self.query.scans, columns)

    def _change(self, running: RunningBatch, name: str, net: NetChanges) -> Change:
        """Return what a batch changes in a table, with a TRUNCATE at its beginning."""
        arranged = self.gathering.tables[name]
        change = TableChange(arranged.with_ids(net.removed), arranged.with_ids(net.added))
        if net.truncation is None:
            return change
        change = arranged.after_truncation(change, net.truncation)
        kept = arranged.rows(running.tables).all(_MOST_ROWS)
        if kept is None:
            return self._truncation(running, name, net.truncation, change)
        removed = pa.concat_tables([arranged.truncated(kept, net.truncation), change.removed])
        return _table_change(difference(removed, change.added), removed.schema)

    def _merged_inner(
        self, running: RunningBatch, inner: InnerGroups, rows: Mapping[int, pa.Table]
    ) -> tuple[Change | None, list[tuple[int, pa.RecordBatch]]]:
        """Return what changes in the table with the groups of an inner query, and the changes of its state.

        Args:
            rows: the rows that leave and that enter the result of the inner query.
        """
        merged, routed = list[pa.RecordBatch](), list[tuple[int, pa.RecordBatch]]()
        for groups, states in self._merged(inner.groups, running.tables, rows, running.tasks.batch):
            merged.append(groups)
            routed += states
        if not merged:
            return None, routed
        change = self.gathering.tables[inner.table].of_groups(pa.Table.from_batches(merged), running.tables)
        return change, [*routed, *self._writes(inner.table, change)]

    def _small(self, table: str, change: LargeChange, staged: Receipts) -> Change | None:
        """Return a change of a table with groups as one in the driver if it has few rows; None if it has none.

        Args:
            staged: the receipts of its rows.
        """
        role = self.gathering.tables[table].role
        places = [self.state_writes[role, each] for each in (RowChange.PUT, RowChange.DELETE)]
        rows = sum(receipt.rows for place in places for receipt in staged[place])
        if rows > _MOST_ROWS:
            return change
        schema = arrow_schema(self._kept_columns(table))
        return _table_change(zip((-1, 1), by_sign(change.rows.toArrow()), strict=True), schema) if rows else None

    def _difference(
        self, session: SparkSession, views: Mapping[str, TableViews], query: BatchQuery | InnerGroups
    ) -> dict[int, pa.Table]:
        """Return the rows that leave (-1) and that enter (1) the result of a query, in one Spark job."""
        size = sum(each.rows.num_rows for each in views.values())
        with changed_settings(session, settings_for(size)):
            names = self._created(session, views)
            found = None if query.signed_sql is None else _tried(session, with_views(query.signed_sql, names))
            if found is None:
                texts = [with_queries(query.rows_sql, side) for side in _sides(views, names)]
                selects = [
                    f"SELECT {sign} AS {SIGN}, * FROM ({text})" for sign, text in zip((-1, 1), texts, strict=True)
                ]
                found = session.sql(" UNION ALL ".join(selects)).toArrow()
        return dict(difference(*by_sign(found)))

    def _named(self, rows: pa.Table) -> pa.Table:
        """Return rows of the result with the names of the target's columns."""
        return rows.rename_columns(list(self.query.names))

    def _created(self, session: SparkSession, views: Mapping[str, TableViews]) -> dict[str, str]:
        """Create a view of the rows of each table with their signs, and return the names of the views."""
        from pyspark.sql.types import ByteType, StructField, StructType

        sign, names = StructField(SIGN, ByteType()), dict[str, str]()
        for number, (table, each) in enumerate(views.items()):
            names[table] = f"{BATCH_VIEW}_{number}"
            _view(session, each.rows.drop_columns([ID]), StructType([*self._types[table], sign]), names[table])
        return names

    def _changes_of_rows(self, store: Store, rows: Mapping[int, pa.Table]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of the target to put, and the keys to delete."""
        if 1 in rows:
            self._check_null_keys(rows[1])
            new = rows[1].select(list(self.query.key))
            keys = row_bytes(new)
            if -1 in rows:
                new = new.filter(pc.invert(pc.is_in(keys, row_bytes(rows[-1].select(new.column_names)))))
            self._check_keys(store, keys, new)
        yield from self._puts_and_deletes(rows)

    def _check_keys(self, store: Store, keys: pa.BinaryArray, new: pa.Table) -> None:
        """Raise `UnsupportedError` if two rows of the result have one key.

        Args:
            keys: the keys of all rows that enter the result.
            new: the keys that no row had before. The target has all other rows of the result.
        """
        several = len(keys) - len(keys.unique())
        if not several and new.num_rows:
            table = store.table(self.target.name, self.target.columns)
            typed = to_arrow(new, table.schema, columns="keys")
            several = pc.sum(pc.is_valid(table.get_many(typed, self.query.key[:1]).column(0))).as_py()
        self._check_unique(several)

    def _changes_of_groups(
        self,
        session: SparkSession,
        groups: GroupQuery,
        tables: Mapping[str, Table],
        rows: Mapping[int, pa.Table],
        batch: int,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of the target to put, the keys to delete, and the state of groups."""
        for merged, states in self._merged(groups, tables, rows, batch):
            yield from states
            if groups.copied is not None:
                columns = [merged.column(name) for name in (*groups.copied, ALIVE)]
                yield from self._routed(pa.RecordBatch.from_arrays(columns, [*self.query.names, KEEP]))
                continue
            receipts = pa.nulls(merged.num_rows, arrow_schema(groups.merged).field(STATE).type)
            view = f"{BATCH_VIEW}_groups"
            _view(session, pa.table(merged).append_column(STATE, receipts), groups.merged, view)
            results = session.sql(with_views(groups.result_sql, {GROUPS_VIEW: view})).toArrow().drop_columns([STATE])
            for part in results.rename_columns([*self.query.names, KEEP]).to_batches():
                yield from self._routed(part)

    def _merged(
        self, groups: GroupQuery, tables: Mapping[str, Table], rows: Mapping[int, pa.Table], batch: int
    ) -> Iterator[tuple[pa.RecordBatch, list[tuple[int, pa.RecordBatch]]]]:
        """Yield the groups of rows that leave and that enter, and the state of these groups."""
        signed = list(with_signs(rows.items()))
        if signed:
            for merged, states in groups.states.merge(tables, batch, signed):
                yield merged, [placed for each in states for placed in self._of_state(each)]


def _table_change(rows: Iterable[tuple[int, pa.Table]], schema: pa.Schema) -> TableChange:
    """Return a change with the rows of each sign."""
    sides = dict(rows)
    removed, added = (sides[sign].cast(schema) if sign in sides else schema.empty_table() for sign in (-1, 1))
    return TableChange(removed, added)


def _tried(session: SparkSession, signed_sql: str) -> pa.Table | None:
    """Return the result of a query; None if it fails, perhaps for rows that were never together in the tables."""
    from pyspark.errors import PySparkException

    try:
        return session.sql(signed_sql).toArrow()
    except PySparkException as error:
        # The query is stopped.
        if error.getCondition() == "SPARK_JOB_CANCELLED":
            raise
        _log.warning("one evaluation of a batch failed, perhaps for rows that were never together; two follow")
        return None


def _sides(views: Mapping[str, TableViews], names: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the queries for the rows of each table before and after the batch."""
    before, after = dict[str, str](), dict[str, str]()
    for table, each in views.items():
        columns = (quote_name(name) for name in each.rows.column_names if name not in (ID, SIGN))
        query = f"SELECT {', '.join(columns)} FROM {names[table]}"
        before[table] = f"{query} WHERE {SIGN} <= 0" if each.changes else query
        after[table] = f"{query} WHERE {SIGN} >= 0" if each.changes else query
    return before, after


def _view(session: SparkSession, rows: pa.Table, types: StructType, name: str) -> None:
    """Create a view of rows in the driver, with some of the columns of a table."""
    from pyspark.sql.types import StructType

    schema = StructType([types[column] for column in rows.column_names])
    session.createDataFrame(rows.cast(arrow_schema(schema)), schema).createOrReplaceTempView(name)
