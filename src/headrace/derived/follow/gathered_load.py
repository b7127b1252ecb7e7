"""The first batch of a query that is evaluated as it is written: over all rows of its tables, in Spark's tasks.

Before the batch there are no rows, so nothing is gathered and there is no difference. Spark joins the tables as in a
batch query, and no rows are in the memory of the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from headrace.derived.follow.batch_content import FollowedBatch, GroupQuery
from headrace.derived.follow.gathered_settings import settings_for
from headrace.derived.follow.scans import entered_rows, signed_tables, used_columns
from headrace.derived.follow.signed_batches import FollowedGroups
from headrace.derived.gathering.arrangements import Gathering
from headrace.derived.gathering.row_keys import row_bytes
from headrace.derived.last_rows import PUTS, LastRows, null_key
from headrace.derived.own_names import SIGN
from headrace.model.own_names import PREFIX
from headrace.model.tables.changes import RowChange
from headrace.ports import Store
from headrace.spark.batch_tasks import BatchTasks, Receipts
from headrace.spark.settings import changed_settings
from headrace.sql_text.lexer import quote_name
from headrace.sql_text.query_text import with_views

_VIEW = f"{PREFIX}batch"


@dataclass(frozen=True)
class GatheredLoad(FollowedBatch):
    """The first batch of a query that is evaluated as it is written.

    Attributes:
        groups: the aggregates at the end of the query; None without.
        gathering: which rows of the tables are kept.
    """

    groups: GroupQuery | None
    gathering: Gathering

    def _attempt(self, batch: DataFrame, tasks: BatchTasks, *, net: bool) -> Receipts:
        """Stage the rows of the target and of the state. The changes of scans are always net."""
        scans = self.query.scans
        columns = {scan.name: self.gathering.tables[scan.name.lower()].schema for scan in scans}
        changes = used_columns(batch, scans, columns).persist()
        try:
            kept = tasks.stage_routed(changes, self._arranged)
            size = sum(receipt.rows for receipts in kept for receipt in receipts)
            session = batch.sparkSession
            with changed_settings(session, settings_for(size)):
                views = {}
                for number, (name, rows) in enumerate(entered_rows(changes, scans, columns).items()):
                    views[name.lower()] = f"{_VIEW}_{number}"
                    rows.createOrReplaceTempView(views[name.lower()])
                shown = self._stage(session, with_views(self.query.rows_sql, views), tasks)
        finally:
            changes.unpersist()
        return [[*of_state, *of_target] for of_state, of_target in zip(kept, shown, strict=True)]

    def _arranged(self, _: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of the arrangements, of a task with all changes of its rows."""
        last: dict[str, LastRows] = {}
        columns = {scan.name: self.gathering.tables[scan.name.lower()].schema for scan in self.query.scans}
        for part in parts:
            for scan, signed in signed_tables(pa.Table.from_batches([part]), self.query.scans, columns):
                for role, rows in self.gathering.tables[scan.name.lower()].arranged(signed):
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
        if self.groups is not None:
            signed = session.sql(f"SELECT *, CAST(1 AS TINYINT) AS {SIGN} FROM ({rows_sql})")
            grouped = FollowedGroups(self.query, self.target, self.replaces, self.state, self.groups)
            return grouped.stage_changes(signed, tasks)
        rows = session.sql(rows_sql).toDF(*self.query.names)
        rows = rows.repartition(*(rows[quote_name(name)] for name in self.query.key))
        return tasks.stage_routed(rows, self._unique_rows)

    def _unique_rows(self, _: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of a task with all rows of their keys, of which each must have one."""
        keys: list[pa.BinaryArray] = []
        for part in parts:
            for name in self.query.key:
                if part.column(name).null_count:
                    raise null_key(name)
            keys.append(row_bytes(pa.Table.from_batches([part]).select(list(self.query.key))))
            yield PUTS, part
        self._check_unique(sum(map(len, keys)) - pc.count_distinct(pa.chunked_array(keys, pa.binary())).as_py())
