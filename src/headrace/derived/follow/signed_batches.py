"""Batches over signed rows: the query runs over the changes themselves, each with a sign.

Without aggregates, the last row of each key of the target decides. With aggregates, tasks merge the rows of their
groups with the kept state, and the result SQL computes the target's rows.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.derived.follow.batch_content import FollowedBatch, GroupQuery
from headrace.derived.follow.scans import ORDERED
from headrace.derived.follow.sources import batch_of_each
from headrace.derived.last_rows import last_rows
from headrace.derived.own_names import ALIVE, BATCH_VIEW, GROUPS_VIEW, KEEP, ORDER, SIGN, STATE
from headrace.derived.state.state_tables import NoState, StateReads, StateRows, open_tables
from headrace.model.tables.change_columns import CHANGE_TYPE, TRUNCATE
from headrace.ports import Staged
from headrace.spark.batch_tasks import BatchTasks, Receipts, Route
from headrace.spark.executors import sent
from headrace.spark.settings import FOLLOWS_TRUNCATIONS, changed_settings
from headrace.sql_text.query_text import with_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.ports import Store

# Spark joins smaller partitions of a shuffle into one task. By default it does so below 1 MB, which is 100,000 groups.
TASK_BYTES = ("spark.sql.adaptive.coalescePartitions.minPartitionSize", "64k")
# A first batch that replaces the rows of the target puts all of them at the end.
_NO_LIMIT = 1 << 62


class SignedBatch(FollowedBatch):
    """A batch whose query runs over signed rows of changes."""

    def _attempt(self, batch: DataFrame, tasks: BatchTasks, *, net: bool) -> Receipts:
        changes = batch.where(f"{CHANGE_TYPE} <> '{TRUNCATE}'") if self.begins_anew else batch
        # A TRUNCATE of another table of a tunnel is of no concern.
        refused = [] if self.begins_anew else [scan.table for scan in self.query.scans]
        with (
            changed_settings(batch.sparkSession, {FOLLOWS_TRUNCATIONS: json.dumps(refused)}),
            batch_of_each(changes, self.query.scans, net=net) as scans,
        ):
            return self.stage_changes(self.query.signed_rows(scans), tasks)

    def stage_tables(self, tables: Mapping[str, DataFrame], tasks: BatchTasks) -> Receipts:
        """Stage the result over whole tables, by scan, as the first batch of a query does."""
        signed = {name: rows.selectExpr("*", f"CAST(1 AS TINYINT) AS {SIGN}", ORDERED) for name, rows in tables.items()}
        return self.stage_changes(self.query.signed_rows(signed), tasks)

    @abstractmethod
    def stage_changes(self, signed: DataFrame, tasks: BatchTasks) -> Receipts:
        """Stage the changes of the targets that signed rows give."""


class FollowedRows(SignedBatch):
    """A batch without aggregates: the last row of each key of the target decides."""

    def stage_changes(self, signed: DataFrame, tasks: BatchTasks) -> Receipts:
        rows = signed.toDF(*self.query.names, *signed.columns[-2:])
        if self.query.gathers:
            rows = self._by_key(rows).sortWithinPartitions(ORDER)
        return tasks.stage_routed(rows, self._last_rows)

    def _last_rows(self, _: Store, parts: Iterator[pa.RecordBatch]) -> Iterable[tuple[int, pa.RecordBatch]]:
        key = self.query.key
        waits = self.replaces or self.begins_anew
        return last_rows(parts, key, waiting_bytes=_NO_LIMIT) if waits else last_rows(parts, key)


class FollowedGroups(SignedBatch):
    """A batch with aggregates: signed rows are merged with the state of their groups."""

    @property
    def groups(self) -> GroupQuery:
        """The aggregates."""
        assert self.query.groups is not None
        return self.query.groups

    def stage_changes(self, signed: DataFrame, tasks: BatchTasks) -> Receipts:
        groups = self.groups
        if groups.copied is not None:
            # One step of Python instead of two, and no rows of Spark between them.
            route = partial(self._merge_and_route, tasks.batch, groups.copied)
            return tasks.stage_routed(self._by_group(signed), partial(self._route, route))
        view = f"{BATCH_VIEW}_groups"
        self.merged(signed, tasks).createOrReplaceTempView(view)
        results = signed.sparkSession.sql(with_views(groups.result_sql, {GROUPS_VIEW: view}))
        route = partial(self._route, self._route_results)
        return tasks.stage_routed(results.toDF(*self.query.names, KEEP, STATE), route)

    def merged(self, signed: DataFrame, tasks: BatchTasks) -> DataFrame:
        """Return the touched groups, and in column `STATE` the receipts of their state, which tasks stage."""
        rows = self._by_group(signed)
        return rows.mapInArrow(sent(partial(self._merge_and_stage, tasks)), self.groups.merged)

    def _by_group(self, signed: DataFrame) -> DataFrame:
        """Return signed rows such that a task has all rows of a group, and all groups of a key of the target."""
        rows, names = signed.drop(ORDER), self.groups.by
        if not names and (self.first or self.begins_anew):
            # The one group exists without rows, too.
            rows = rows.union(_no_change(rows))
        # The session is that of the query alone.
        rows.sparkSession.conf.set(*TASK_BYTES)
        return rows.repartition(*names) if names else rows.repartition(1)

    def _merge(
        self, store: Store, batch: int, parts: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[pa.RecordBatch, list[tuple[int, StateRows]]]]:
        """Yield results of groups, and the state rows of these groups with the indexes of their targets."""
        places = self.state_writes
        number = 0 if self.first else batch
        tables: Mapping[str, StateReads] = open_tables(store, self.state)
        if self.begins_anew:
            tables = {role: NoState(table.columns) for role, table in self.state.items()}
        for groups, states in self.groups.states.merge(tables, number, parts):
            yield groups, [(places[each.table, each.change], each) for each in states]

    def _route(
        self, route: Route, store: Store, parts: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[int, pa.RecordBatch | Staged]]:
        return self._of_keys(route(store, parts))

    def _merge_and_route(
        self, batch: int, copied: Sequence[str], store: Store, parts: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Merge the rows of a task where the result SQL only copies columns."""
        for groups, states in self._merge(store, batch, parts):
            columns = [groups.column(name) for name in (*copied, ALIVE)]
            yield from self._routed(pa.RecordBatch.from_arrays(columns, [*self.query.names, KEEP]))
            for target, state in states:
                yield from ((target, rows) for rows in state.rows.to_batches())

    def _merge_and_stage(self, tasks: BatchTasks, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge the rows of a task, stage the state, and yield the groups with the receipts of their state.

        The state itself does not travel through the result SQL: Spark converts large binaries slowly.
        """
        receipt = pa.struct([pa.field(name, pa.int64()) for name in ("target", "id", "rows")])
        with tasks.open_store() as store:
            writer = tasks.writer(store)
            for groups, states in self._merge(store, tasks.batch, parts):
                receipts = [
                    {"target": target, "id": staged.id, "rows": staged.rows}
                    for target, state in states
                    for staged in tasks.stage_in_task(writer, target, state.rows.to_batches())
                ]
                column = pa.array([receipts, *[None] * (groups.num_rows - 1)], pa.list_(receipt))
                yield groups.append_column(STATE, column)

    def _route_results(
        self, _: Store, parts: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[int, pa.RecordBatch | Staged]]:
        """Yield the rows of the result SQL, and the receipts of state that came with them."""
        for part in parts:
            yield from self._routed(part.drop_columns([STATE]))
            yield from receipts_of(part.column(STATE))


def receipts_of(states: pa.Array) -> Iterator[tuple[int, Staged]]:
    """Yield the receipts of a column `STATE`, with the indexes of their targets."""
    for each in states.drop_null().flatten().to_pylist():
        yield each["target"], Staged(each["id"], each["rows"])


def _no_change(rows: DataFrame) -> DataFrame:
    """Return one row with sign 0, which changes no aggregate."""
    from pyspark.sql import functions as F

    values = [F.lit(0 if field.name == SIGN else None).cast(field.dataType).alias(field.name) for field in rows.schema]
    return rows.sparkSession.range(1).select(*values)
