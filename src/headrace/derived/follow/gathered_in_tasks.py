"""Batches of queries that are evaluated as they are written, over all rows of their tables, in Spark's tasks.

So is the first batch, before which there are no rows: Spark joins the tables as in a batch query. And so is a later one
whose changes reach more rows than the driver should have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.derived.follow.batch_content import FollowedBatch, GroupQuery, InnerGroups
from headrace.derived.follow.gathered_settings import settings_for, settings_over_unions
from headrace.derived.follow.signed_batches import FollowedGroups, receipts_of
from headrace.derived.follow.sources import entered_rows, signed_tables, used_columns
from headrace.derived.gathering.arrangements import Gathering
from headrace.derived.gathering.gather import TableChange, by_sign, difference, with_signs
from headrace.derived.gathering.routes import GatherPlan
from headrace.derived.gathering.row_keys import ID, row_bytes
from headrace.derived.last_rows import DELETES, PUTS, LastRows
from headrace.derived.own_names import ALIVE, BATCH_VIEW, SIGN, STATE
from headrace.derived.state.state_tables import StateRows, open_tables
from headrace.formats.source import splits
from headrace.model.tables.changes import RowChange
from headrace.ports import Staged, Store, Table
from headrace.spark.arrow_functions import map_in_arrow
from headrace.spark.batch_tasks import BatchTasks, Receipts, all_receipts
from headrace.spark.settings import FOLLOWS_TRUNCATIONS, changed_settings
from headrace.spark.stored_rows import stored_rows
from headrace.spark.versions import arrow_schema
from headrace.sql_text.lexer import quote_name
from headrace.sql_text.query_text import with_queries, with_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class LargeChange:
    """What a batch changes in a table, in tasks: it is more than the driver should have.

    Attributes:
        rows: the rows that leave (-1 in column `SIGN`) and that enter (1), with their keys in column `ID`. A task has
            all rows of a key.
    """

    rows: DataFrame


Change: TypeAlias = "TableChange | LargeChange"


@dataclass(frozen=True)
class RunningBatch:
    """What the driver has open for a batch.

    Attributes:
        tables: the tables of state by role, as of the last batch.
        opened: closes what the batch has opened.
    """

    session: SparkSession
    tasks: BatchTasks
    tables: Mapping[str, Table]
    opened: ExitStack

    def persisted(self, rows: DataFrame) -> DataFrame:
        """Return rows that several jobs of the batch read."""
        self.opened.callback(rows.persist().unpersist)
        return rows


class GatheredInTasks(FollowedBatch):
    """What batches over all rows have."""

    @property
    def gathering(self) -> Gathering:
        """How the rows are found over which the query is evaluated, and which rows are kept for that."""
        assert self.query.gathering is not None
        return self.query.gathering

    @property
    def _types(self) -> dict[str, StructType]:
        """The columns of scans and of the tables with groups of inner queries, by their names in lower case."""
        scans = {scan.name.lower(): scan.schema for scan in self.query.scans}
        return scans | {inner.table: inner.schema for inner in self.query.inner}

    def _grouped(self, groups: GroupQuery) -> FollowedGroups:
        """Return the same batch with groups of signed rows: after the first batch, all rows before and after it."""
        grouped = FollowedGroups if self.first else _ChangedGroups
        query = replace(self.query, groups=groups, gathering=None)
        return grouped(query, self.target, self.first, self.replaces, self.state)

    def _writes(self, table: str, change: TableChange) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the changes of the arrangements of a table, with the indexes of their targets."""
        for each in self.gathering.tables[table].writes(change):
            yield from self._of_state(each)

    def _of_state(self, state: StateRows) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield state rows with the index of their target."""
        place = self.state_writes[state.table, state.change]
        return ((place, part) for part in state.rows.to_batches())

    def _puts_and_deletes(self, rows: Mapping[int, pa.Table]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of the target to put, and the keys to delete, for rows that leave (-1) and enter (1)."""
        if 1 in rows:
            yield from ((PUTS, part) for part in rows[1].to_batches())
        if -1 in rows:
            left = rows[-1].select(list(self.query.key))
            if 1 in rows:
                stays = pc.is_in(row_bytes(left), row_bytes(rows[1].select(left.column_names)))
                left = left.filter(pc.invert(stays))
            yield from ((DELETES, part) for part in left.to_batches())

    def _signed_whole(
        self, running: RunningBatch, plan: GatherPlan, rows_sql: str, changes: Mapping[str, Change]
    ) -> tuple[DataFrame, int]:
        """Return the results of a query over all rows before (-1) and after (1) a batch, and the number of tasks."""
        session = running.session
        # Spark plans the results when they are read.
        running.opened.enter_context(changed_settings(session, settings_over_unions(session)))
        before, after, count = dict[str, str](), dict[str, str](), 0
        for number, (name, arranged) in enumerate(self.gathering.tables.items()):
            if name not in plan.tables:
                continue
            kept, tasks = self._kept(running, name)
            view, shown = f"{BATCH_VIEW}_{number}", ", ".join(map(quote_name, arranged.schema.names))
            kept.createOrReplaceTempView(view)
            before[name] = after[name] = f"SELECT {shown} FROM {view}"
            count += tasks
            if (change := changes.get(name)) is not None:
                self._in_tasks(session, name, change).createOrReplaceTempView(f"{view}_changes")
                removed = f"(SELECT {ID} FROM {view}_changes WHERE {SIGN} < 0)"
                after[name] = (
                    f"SELECT {shown} FROM {view} LEFT ANTI JOIN {removed} USING ({ID}) "
                    f"UNION ALL SELECT {shown} FROM {view}_changes WHERE {SIGN} > 0"
                )
        signed = session.sql(
            " UNION ALL ".join(
                f"SELECT *, CAST({sign} AS TINYINT) AS {SIGN} FROM ({with_queries(rows_sql, queries)})"
                for sign, queries in ((-1, before), (1, after))
            )
        )
        return signed, 2 * count

    def _kept(self, running: RunningBatch, name: str) -> tuple[DataFrame, int]:
        """Return the kept rows of a table with their keys in column `ID`, and the number of tasks that read them."""
        arranged = self.gathering.tables[name]
        table = running.tables[arranged.role]
        ranges, store = splits(table), running.tasks.sink.store
        schema = self._kept_columns(name)
        return stored_rows(running.session, store, table.name, ranges, arranged.stored_columns, schema), len(ranges)

    def _kept_columns(self, name: str) -> StructType:
        from pyspark.sql.types import BinaryType, StructField, StructType

        columns = [self._types[name][column] for column in self.gathering.tables[name].schema.names]
        return StructType([*columns, StructField(ID, BinaryType())])

    def _changed_columns(self, name: str) -> StructType:
        from pyspark.sql.types import ByteType, StructField, StructType

        return StructType([*self._kept_columns(name), StructField(SIGN, ByteType())])

    def _in_tasks(self, session: SparkSession, name: str, change: Change) -> DataFrame:
        """Return the rows of `LargeChange` for a change of a table."""
        if isinstance(change, LargeChange):
            return change.rows
        schema = self._changed_columns(name)
        return session.createDataFrame(change.signed.cast(arrow_schema(schema)), schema)

    def _truncation(self, running: RunningBatch, name: str, truncation: pa.Table, change: TableChange) -> LargeChange:
        """Return a TRUNCATE and a change after it as one change."""
        arranged, schema = self.gathering.tables[name], self._changed_columns(name)

        def removed(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for part in parts:
                yield from with_signs([(-1, arranged.truncated(pa.Table.from_batches([part]), truncation))])

        kept, count = self._kept(running, name)
        rows = map_in_arrow(kept, removed, schema).union(self._in_tasks(running.session, name, change))
        net = map_in_arrow(rows.repartition(count, ID), _net, schema)
        return LargeChange(running.persisted(net))

    def _arranged_change(
        self, name: str, _: Store, parts: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the changes of the arrangements of a table, of a task with all rows of its keys."""
        if rows := [part for part in parts if part.num_rows]:
            yield from self._writes(name, TableChange(*by_sign(pa.Table.from_batches(rows))))

    def _changed_inner(
        self, running: RunningBatch, inner: InnerGroups, signed: DataFrame
    ) -> tuple[Receipts, LargeChange]:
        """Stage the groups of an inner query and their state, and return what changes in the table with the groups.

        Args:
            signed: the results of the inner query over all rows before and after the batch.
        """
        tasks = running.tasks
        merged = running.persisted(self._grouped(inner.groups).merged(signed, tasks))
        staged = tasks.stage_routed(merged, partial(self._arranged_groups, inner))
        rows = partial(self._signed_groups, inner, tasks)
        return staged, LargeChange(map_in_arrow(merged, rows, self._changed_columns(inner.table)))

    def _signed_groups(
        self, inner: InnerGroups, tasks: BatchTasks, parts: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        with tasks.open_store() as store:
            for part in parts:
                yield from self._change_of_groups(inner, store, part).signed.to_batches()

    def _change_of_groups(self, inner: InnerGroups, store: Store, groups: pa.RecordBatch) -> TableChange:
        """Return what touched groups change in their table, in a task."""
        arranged = self.gathering.tables[inner.table]
        tables = None if self.first else open_tables(store, {role: self.state[role] for role in arranged.roles})
        return arranged.of_groups(pa.Table.from_batches([groups]), tables)

    def _arranged_groups(
        self, inner: InnerGroups, store: Store, parts: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[int, pa.RecordBatch | Staged]]:
        """Yield the changes of the arrangements of groups, and the receipts of their state."""
        for part in parts:
            yield from self._writes(inner.table, self._change_of_groups(inner, store, part))
            yield from receipts_of(part.column(STATE))

    def _stage_whole(self, signed: DataFrame, count: int, tasks: BatchTasks) -> Receipts:
        """Stage the difference between the results over all rows before and after a batch."""
        if self.query.groups is not None:
            return self._grouped(self.query.groups).stage_changes(signed, tasks)
        rows = self._by_key(signed.toDF(*self.query.names, SIGN), tasks=count)
        return tasks.stage_routed(rows, self._changed_rows)

    def _changed_rows(self, _: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows to put and the keys to delete, of a task with all signed rows of its keys."""
        rows = [part for part in parts if part.num_rows]
        if not rows:
            return
        sides = by_sign(pa.Table.from_batches(rows))
        self._check_null_keys(sides[1])
        key = list(self.query.key)
        keys = row_bytes(sides[1].select(key))
        self._check_unique(len(keys) - len(keys.unique()))
        yield from self._puts_and_deletes(dict(difference(*sides)))


class _ChangedGroups(FollowedGroups):
    """A batch whose signed rows are all rows before and after it. A group whose rows are the same is not touched."""

    def _merge(
        self, store: Store, batch: int, parts: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[pa.RecordBatch, list[tuple[int, StateRows]]]]:
        return super()._merge(store, batch, _net(parts))


def _net(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what signed rows change, of a task with all rows of their keys: an equal row does not leave and enter."""
    rows = [part for part in parts if part.num_rows]
    return with_signs(difference(*by_sign(pa.Table.from_batches(rows)))) if rows else iter(())


@dataclass(frozen=True)
class GatheredLoad(GatheredInTasks):
    """The first batch of a query that is evaluated as it is written. No rows are in the memory of the driver.

    Attributes:
        kept: the roles of the arrangements that have the rows already, in a batch with a new text.
    """

    kept: frozenset[str] = frozenset()

    @property
    def _columns(self) -> dict[str, pa.Schema]:
        """The columns that are kept, by scan."""
        return {scan.name: self.gathering.tables[scan.name.lower()].schema for scan in self.query.scans}

    def _attempt(self, batch: DataFrame, tasks: BatchTasks, *, net: bool) -> Receipts:
        """Stage the rows of the target and of the state. The changes of scans are always net."""
        # The session is that of the query alone. A TRUNCATE before the first rows removes none.
        batch.sparkSession.conf.set(FOLLOWS_TRUNCATIONS, "[]")
        return self.load(used_columns(batch, self.query.scans, self._columns), tasks)

    def load(self, changes: DataFrame, tasks: BatchTasks) -> Receipts:
        """Stage the rows of the target and of the state.

        Args:
            changes: changes as those of `used_columns`, before which the tables have no rows.
        """
        persisted = [changes.persist()]
        try:
            staged = [tasks.stage_routed(changes, self._arranged)]
            size = sum(receipt.rows for receipts in staged[0] for receipt in receipts)
            session = changes.sparkSession
            # With arrangements that are kept, the number of rows is not known.
            with changed_settings(session, {} if self.kept else settings_for(size)):
                views = {}
                entered = entered_rows(changes, self.query.scans, self._columns)
                for number, (name, rows) in enumerate(entered.items()):
                    views[name.lower()] = f"{BATCH_VIEW}_{number}"
                    rows.createOrReplaceTempView(views[name.lower()])
                for number, inner in enumerate(self.query.inner, len(views)):
                    signed = self._entering(session, with_views(inner.rows_sql, views))
                    persisted.append(self._grouped(inner.groups).merged(signed, tasks).persist())
                    staged.append(tasks.stage_routed(persisted[-1], partial(self._arranged_groups, inner)))
                    views[inner.table] = f"{BATCH_VIEW}_{number}"
                    persisted[-1].where(ALIVE).select(*inner.schema.names).createOrReplaceTempView(views[inner.table])
                staged.append(self._stage(session, with_views(self.query.rows_sql, views), tasks))
        finally:
            for each in persisted:
                each.unpersist()
        return all_receipts(staged)

    def _entering(self, session: SparkSession, sql: str) -> DataFrame:
        """Return the rows of a query as signed ones that enter its result."""
        return session.sql(f"SELECT *, CAST(1 AS TINYINT) AS {SIGN} FROM ({sql})")

    def _arranged(self, _: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of the arrangements, of a task with all changes of its rows."""
        last: dict[str, LastRows] = {}
        for part in parts:
            tables = signed_tables(pa.Table.from_batches([part]), self.query.scans, self._columns)
            for scan, signed, _truncation in tables:
                for role, rows in self.gathering.tables[scan.name.lower()].arranged(signed):
                    if role in self.kept:
                        continue
                    own = last.setdefault(role, LastRows(rows.schema.names[:2]))
                    yield from self._placed(role, own.add(rows))
        for role, own in last.items():
            yield from self._placed(role, own.deletes())

    def _placed(self, role: str, routed: Iterator[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, pa.RecordBatch]]:
        places = self.state_writes
        for place, rows in routed:
            yield places[role, RowChange.PUT if place == PUTS else RowChange.DELETE], rows

    def _stage(self, session: SparkSession, rows_sql: str, tasks: BatchTasks) -> Receipts:
        """Stage the rows of the target, and the states of groups."""
        if self.query.groups is not None:
            return self._grouped(self.query.groups).stage_changes(self._entering(session, rows_sql), tasks)
        return tasks.stage_routed(self._by_key(session.sql(rows_sql).toDF(*self.query.names)), self._unique_rows)

    def _unique_rows(self, _: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of a task with all rows of their keys, of which each must have one."""
        keys: list[pa.BinaryArray] = []
        for part in parts:
            self._check_null_keys(part)
            keys.append(row_bytes(pa.Table.from_batches([part]).select(list(self.query.key))))
            yield PUTS, part
        self._check_unique(sum(map(len, keys)) - pc.count_distinct(pa.chunked_array(keys, pa.binary())).as_py())
