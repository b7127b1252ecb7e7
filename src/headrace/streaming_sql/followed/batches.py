"""The batches of a followed query: from changes of its scans to changes of its target and of its state.

The rows SQL makes signed rows of the changes. Without aggregates, the last row of each key of the target decides. With
aggregates, tasks merge the rows of their groups with the kept state, and the result SQL computes the target's rows. The
driver publishes the changes of the target and of the state in one transaction, so the state is always that of the
published batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.following.group_states import GroupStates
from headrace.following.jobs import FollowedJob, FollowedJobs, state_name
from headrace.following.last_rows import DELETE, ORDER, PUT, last_rows, null_key
from headrace.following.signed_rows import SIGN
from headrace.following.state_rows import STATE, state_rows
from headrace.following.state_tables import StateTable, create_tables, open_tables
from headrace.ports import Staged
from headrace.sinks.targets import TableTarget
from headrace.spark.batch_tasks import BatchTasks, Receipts, publishing
from headrace.spark.checkpoint import query_id
from headrace.spark.query_start import BatchFunction
from headrace.stores.registry import open as open_store
from headrace.streaming_sql.followed.scans import FollowedScan, batch_of_each
from headrace.streaming_sql.language.followed_query import GROUPS, KEEP, with_views
from headrace.tables.changes import RowChange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.ports import Store

STATE_DDL = "array<struct<target:bigint,id:bigint,rows:bigint>>"
"""The type of column `STATE` after the merge: the receipts of a task's state rows."""
_VIEW = "__headrace_batch"
# Classes of SQLSTATE: errors in data, of functions of users, and by raise_error.
_ERRORS_OF_EXPRESSIONS = ("22", "38", "39", "P0")
# A first batch that replaces the rows of the target puts all of them at the end.
_NO_LIMIT = 1 << 62
_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class BatchQuery:
    """What the batches of a followed query compute. Picklable.

    Attributes:
        scans: the followed scans.
        rows_sql: the query for signed rows, over views with the names of the scans.
        names: the output columns.
        key: the key columns of the target.
        gathers: the rows of a key can come from several tasks, in any order.
        result_sql, states, merged: for a query with aggregates, the query for rows of the target, the state of the
            groups, and the columns that `GroupStates.merge` yields; else None.
    """

    scans: tuple[FollowedScan, ...]
    rows_sql: str
    names: tuple[str, ...]
    key: tuple[str, ...]
    gathers: bool
    result_sql: str | None = None
    states: GroupStates | None = None
    merged: StructType | None = None

    def signed_rows(self, changes: Mapping[str, DataFrame]) -> DataFrame:
        """Return the signed rows of a batch.

        Args:
            changes: the signed rows of the scans, in the session of the batch.
        """
        views = {}
        for number, (name, rows) in enumerate(changes.items()):
            views[name] = f"{_VIEW}_{number}"
            rows.createOrReplaceTempView(views[name])
        session = next(iter(changes.values())).sparkSession
        return session.sql(with_views(self.rows_sql, views))


@dataclass
class FollowedBatches:
    """The function of ``foreachBatch`` of a followed query. Spark Connect pickles it.

    Attributes:
        query: what the batches compute.
        url: the absolute URL of the target's store.
        store_options: options for opening the store.
        target: the target.
        checkpoint: the checkpoint location, as Spark has it.
        definition: the meaning of the state, see `FollowedJob`.
        overwrite: the first batch replaces the rows of the target.
        rows_per_write: the maximum number of rows in one write to the store; None is no limit.
    """

    query: BatchQuery
    url: str
    store_options: Mapping[str, Any] = field(repr=False)
    target: TableTarget
    checkpoint: str
    definition: Mapping[str, str]
    overwrite: bool
    rows_per_write: int | None = None
    _job: str = field(default="", init=False)

    def __call__(self, batch_df: DataFrame, batch: int) -> None:
        """Compute and publish a batch.

        Raises:
            OptionError: the job cannot have the target, see `FollowedJobs.begin`.
        """
        with open_store(self.url, **self.store_options) as store:
            self._job = self._job or query_id(batch_df.sparkSession, self.checkpoint, store)
            tables = self._state_tables()
            jobs = FollowedJobs(store)
            names = tuple(table.name for table in tables.values())
            job = jobs.begin(
                FollowedJob(self.target.name, self._job, self.definition, names, overwrite=self.overwrite), batch
            )
            opened = create_tables(store, tables) if batch == 0 else open_tables(store, tables)
            if self.query.states is not None:
                self.query.states.sweep(opened, batch)
            self._publishing(tables, replaces=batch == 0 and job.overwrite)(batch_df, batch)
            jobs.drop_obsolete(job)

    def _state_tables(self) -> dict[str, StateTable]:
        states = self.query.states
        return {} if states is None else states.tables(state_name(self.target.name, self._job) + "_")

    def _publishing(self, tables: Mapping[str, StateTable], *, replaces: bool) -> BatchFunction:
        put = RowChange.REPLACE_ALL if replaces else RowChange.PUT
        targets = [
            TableTarget(self.target.name, put, self.target.columns),
            TableTarget(self.target.name, RowChange.DELETE, self.target.columns),
        ]
        places = {}
        for role, table in tables.items():
            for change in (RowChange.PUT, RowChange.DELETE):
                places[role, change] = len(targets)
                targets.append(TableTarget(table.name, change, table.columns))
        states = self.query.states
        stage = _rows_staging(self.query, replaces) if states is None else _groups_staging(self.query, tables, places)
        # Spark keeps no state, so a published batch that is repeated need not run.
        return publishing(
            self.url,
            self.store_options,
            targets,
            self.checkpoint,
            _repeated_with_net_changes(stage),
            stateful=False,
            rows_per_write=self.rows_per_write,
        )


Stage: TypeAlias = 'Callable[["DataFrame", BatchTasks, bool], Receipts]'
"""Stages a batch; of its changes only the net ones if the last argument is true."""


def _repeated_with_net_changes(stage: Stage) -> Callable[[DataFrame, BatchTasks], Receipts]:
    """Return a function that stages a batch, and again with its net changes if the query fails for some row.

    The row can be one that the batch adds and removes again: a query over the table never sees it. Net changes give the
    same result as all changes, but cost a pass through Python, so they are not the first choice.
    """

    def repeated(batch: DataFrame, tasks: BatchTasks) -> Receipts:
        from pyspark.errors import PySparkException

        try:
            return stage(batch, tasks, False)
        except PySparkException as error:
            if (error.getSqlState() or "")[:2] not in _ERRORS_OF_EXPRESSIONS:
                raise
            _log.info("batch %d failed, and is computed again from its net changes", tasks.batch, exc_info=True)
        with tasks.open_store() as store:
            tasks.writer(store).discard(tasks.batch)
        return stage(batch, tasks, True)

    return repeated


def _rows_staging(query: BatchQuery, replaces: bool) -> Stage:
    """Return a function that stages the batches of a query without aggregates."""

    def route(store: Store, parts: Iterator[pa.RecordBatch]) -> Iterable[tuple[int, pa.RecordBatch]]:
        del store
        return last_rows(parts, query.key, waiting_bytes=_NO_LIMIT) if replaces else last_rows(parts, query.key)

    def stage(batch: DataFrame, tasks: BatchTasks, net: bool) -> Receipts:
        with batch_of_each(batch, query.scans, net=net) as changes:
            signed = query.signed_rows(changes)
            rows = signed.toDF(*query.names, *signed.columns[-2:])
            if query.gathers:
                rows = rows.repartition(*_columns(query.key)).sortWithinPartitions(ORDER)
            return tasks.stage_routed(rows, route)

    return stage


def _groups_staging(
    query: BatchQuery, tables: Mapping[str, StateTable], places: Mapping[tuple[str, RowChange], int]
) -> Stage:
    """Return a function that stages the batches of a query with aggregates.

    Args:
        tables: the tables of state, by role.
        places: the index of the target for each role and row change.
    """
    states, result_sql, merged = query.states, query.result_sql, query.merged
    assert states is not None
    assert result_sql is not None
    assert merged is not None

    def route(store: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch | Staged]]:
        del store
        for part in parts:
            yield from _routed_groups(part, query.key)
            for each in part.column(STATE).drop_null().flatten().to_pylist():
                yield each["target"], Staged(each["id"], each["rows"])

    def stage(batch: DataFrame, tasks: BatchTasks, net: bool) -> Receipts:
        def merge(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with tasks.open_store() as store:
                for part in states.merge(open_tables(store, tables), tasks.batch, parts):
                    yield _with_state_staged(part, store, tasks, places)

        with batch_of_each(batch, query.scans, net=net) as changes:
            rows = query.signed_rows(changes).drop(ORDER)
            groups = [name for name in merged.names if name in rows.columns]
            if not groups and tasks.batch == 0:
                # The one group exists without rows, too.
                rows = rows.union(_no_change(rows))
            rows = rows.repartition(*groups) if groups else rows.repartition(1)
            view = f"{_VIEW}_groups"
            rows.mapInArrow(merge, merged).createOrReplaceTempView(view)
            results = batch.sparkSession.sql(with_views(result_sql, {GROUPS: view}))
            return tasks.stage_routed(results.toDF(*query.names, KEEP, STATE), route)

    return stage


def _with_state_staged(
    results: pa.RecordBatch, store: Store, tasks: BatchTasks, places: Mapping[tuple[str, RowChange], int]
) -> pa.RecordBatch:
    """Stage the state rows of a record batch, and return it with their receipts in place of them.

    The state itself does not travel through the result SQL: Spark converts large binaries slowly.
    """
    import pyarrow as pa

    writer = tasks.writer(store)
    receipts: list[dict[str, int]] = []
    for rows in state_rows(results.column(STATE)):
        place = places[rows.table, rows.change]
        staged = writer.stage(tasks.batch, tasks.targets[place], rows.rows.to_batches(), tasks.rows_per_write)
        receipts += [{"target": place, "id": receipt.id, "rows": receipt.rows} for receipt in staged]
    fields = [pa.field(name, pa.int64()) for name in ("target", "id", "rows")]
    column = pa.array([receipts, *[None] * (results.num_rows - 1)], pa.list_(pa.struct(fields)))
    return results.set_column(results.schema.get_field_index(STATE), STATE, column)


def _no_change(rows: DataFrame) -> DataFrame:
    """Return one row with sign 0, which changes no aggregate."""
    from pyspark.sql import functions as F

    values = [F.lit(0 if field.name == SIGN else None).cast(field.dataType).alias(field.name) for field in rows.schema]
    return rows.sparkSession.range(1).select(*values)


def _routed_groups(rows: pa.RecordBatch, key: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of the target to put, and the keys to delete."""
    import pyarrow.compute as pc

    for name in key:
        if rows.column(name).null_count:
            raise null_key(name)
    kept = rows.column(KEEP)
    shown = rows.drop_columns([KEEP, STATE])
    yield PUT, shown.filter(kept)
    yield DELETE, shown.select(list(key)).filter(pc.invert(kept))


def _columns(names: Iterable[str]) -> list[Any]:
    from pyspark.sql import functions as F

    from headrace.streaming_sql.language.lexer import quote_name

    return [F.col(quote_name(name)) for name in names]
