"""The batches of a followed query: from changes of its scans to changes of its target and of its state.

The rows SQL makes signed rows of the changes. Without aggregates, the last row of each key of the target decides. With
aggregates, tasks merge the rows of their groups with the kept state, and the result SQL computes the target's rows. The
driver publishes the changes of the target and of the state in one transaction, so the state is always that of the
published batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.batches.sinks.targets import TableTarget
from headrace.errors import ExpressionError, own_message
from headrace.following.group_states import GroupStates
from headrace.following.jobs import FollowedJob, FollowedJobs, state_name, target_taken
from headrace.following.last_rows import DELETES, PUTS, last_rows, null_key
from headrace.following.own_names import ALIVE, GROUPS_VIEW, KEEP, ORDER, SIGN, STATE
from headrace.following.state_tables import StateRows, StateTable, create_tables, open_tables
from headrace.model.tables.changes import RowChange
from headrace.ports import Claim, Staged
from headrace.spark.batch_tasks import BatchTasks, Receipts, publishing
from headrace.spark.checkpoint import query_id
from headrace.spark.executors import sent, task_store
from headrace.spark.query_start import BatchFunction
from headrace.stores.registry import open as open_store
from headrace.streaming_sql.followed.scans import FollowedScan, batch_of_each
from headrace.streaming_sql.followed.static_tables import StaticTable, is_loss, read_again
from headrace.streaming_sql.language.followed_query import with_views

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.ports import Store

STATE_DDL = "array<struct<target:bigint,id:bigint,rows:bigint>>"
"""The type of column `STATE`: the receipts of a task's state rows."""
_VIEW = "__headrace_batch"
# Classes of SQLSTATE: errors in data, of functions of users, and by raise_error.
_ERRORS_OF_EXPRESSIONS = ("22", "38", "39", "P0")
# Spark joins smaller partitions of a shuffle into one task. By default it does so below 1 MB, which is 100,000 groups.
_TASK_BYTES = ("spark.sql.adaptive.coalescePartitions.minPartitionSize", "64k")
# A first batch that replaces the rows of the target puts all of them at the end.
_NO_LIMIT = 1 << 62
# The number of further attempts at a batch after losses of executors. Spark allows each task as many.
_LOSSES = 3
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
        static: the static tables whose rows `rows_sql` reads.
        result_sql, states, merged: for a query with aggregates, the query for rows of the target, the state of the
            groups, and the columns that the result SQL reads; else None.
        copied: the columns of `merged` that the output columns are, if the result SQL need not run; else None.
    """

    scans: tuple[FollowedScan, ...]
    rows_sql: str
    names: tuple[str, ...]
    key: tuple[str, ...]
    gathers: bool
    static: tuple[StaticTable, ...] = ()
    result_sql: str | None = None
    states: GroupStates | None = None
    merged: StructType | None = None
    copied: tuple[str, ...] | None = None

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
        identity: the identity of the store where the query was started.
        target: the target.
        checkpoint: the checkpoint location, as Spark has it.
        job: the job without its tables; its ``job`` is empty if it has no checkpoint yet.
        rows_per_write: the maximum number of rows in one write to the store; None is no limit.
    """

    query: BatchQuery
    url: str
    store_options: Mapping[str, Any] = field(repr=False)
    identity: str
    target: TableTarget
    checkpoint: str
    job: FollowedJob
    rows_per_write: int | None = None
    _id: str = field(default="", init=False)

    def __call__(self, batch_df: DataFrame, batch: int) -> None:
        """Compute and publish a batch.

        Raises:
            OptionError: the job cannot have the target, see `FollowedJobs.begin`; or another job has taken it during
                the batch, which is not published.
        """
        with task_store(lambda: open_store(self.url, **self.store_options), self.identity) as store:
            self._id = self._id or query_id(batch_df.sparkSession, self.checkpoint, store)
            tables = self._state_tables(store)
            jobs = FollowedJobs(store)
            names = tuple(table.name for table in tables.values())
            job, claim = jobs.begin(replace(self.job, job=self._id, state_tables=names), batch)
            try:
                opened = create_tables(store, tables) if batch == 0 else open_tables(store, tables)
                if self.query.states is not None:
                    self.query.states.sweep(opened, batch)
                self._publishing(tables, claim, replaces=batch == 0 and job.overwrite)(batch_df, batch)
            except Exception as error:
                # Besides a lost claim: the other job drops the state of this one, which this batch may be reading.
                if not jobs.is_lost(claim):
                    raise
                jobs.abandon(job)
                raise target_taken(job.target, job.job, batch) from error
            jobs.drop_obsolete(job)

    def _state_tables(self, store: Store) -> dict[str, StateTable]:
        states = self.query.states
        return {} if states is None else states.tables(state_name(store, self.target.name, self._id) + "_")

    def _publishing(self, tables: Mapping[str, StateTable], claim: Claim, *, replaces: bool) -> BatchFunction:
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
        stage = _repeated_with_static_tables(stage, self.query.static)
        # Spark keeps no state, so a published batch that is repeated need not run.
        return publishing(
            self.url,
            self.store_options,
            self.identity,
            targets,
            self.checkpoint,
            _repeated_with_net_changes(stage, self.target.name),
            stateful=False,
            rows_per_write=self.rows_per_write,
            claim=claim,
            results=2,
        )


Stage: TypeAlias = 'Callable[["DataFrame", BatchTasks, bool], Receipts]'
"""Stages a batch; of its changes only the net ones if the last argument is true."""


def _repeated_with_static_tables(stage: Stage, tables: Sequence[StaticTable]) -> Stage:
    """Return a function that stages a batch, and again when executors were lost with the rows of static tables."""

    def repeated(batch: DataFrame, tasks: BatchTasks, net: bool) -> Receipts:
        losses = 0
        while True:
            try:
                if losses:
                    _discard(tasks)
                    read_again(batch.sparkSession, tables)
                return stage(batch, tasks, net)
            except Exception as error:
                if not tables or losses == _LOSSES or not is_loss(error):
                    raise
                losses += 1
                _log.warning("batch %d lost rows of static tables with an executor, and reads them again", tasks.batch)

    return repeated


def _discard(tasks: BatchTasks) -> None:
    """Delete what a failed attempt at a batch has staged."""
    with tasks.open_store() as store:
        tasks.writer(store).discard(tasks.batch)


def _repeated_with_net_changes(stage: Stage, target: str) -> Callable[[DataFrame, BatchTasks], Receipts]:
    """Return a function that stages a batch, and again with its net changes if the query fails for some row.

    The row can be one that the batch adds and removes again: a query over the table never sees it. Net changes give the
    same result as all changes, but cost a pass through Python, so they are not the first choice.
    """

    def repeated(batch: DataFrame, tasks: BatchTasks) -> Receipts:
        from pyspark.errors import PySparkException

        try:
            return stage(batch, tasks, False)
        except PySparkException as error:
            if not _is_of_expression(error):
                raise
            _log.info("batch %d failed, and is computed again from its net changes", tasks.batch, exc_info=True)
        _discard(tasks)
        try:
            return stage(batch, tasks, True)
        except PySparkException as error:
            if not _is_of_expression(error) or own_message(str(error)) is not None:
                raise
            raise _failed_expression(error, target, tasks.batch) from error

    return repeated


def _is_of_expression(error: PySparkException) -> bool:
    return (error.getSqlState() or "")[:2] in _ERRORS_OF_EXPRESSIONS


def _failed_expression(error: PySparkException, target: str, batch: int) -> ExpressionError:
    expressions = dict.fromkeys(each.fragment() for each in error.getQueryContext() if each.fragment())
    named = f"expression {', '.join(expressions)}" if expressions else "an expression"
    return ExpressionError(
        f"{named} of the query into {target!r} fails for a row that is in the table at the end of batch {batch}: "
        f"{error.getCondition() or 'an error of the expression'}",
        remedy="the batch cannot succeed later: correct the row, or write the expression so that it does not fail "
        "(try_divide, try_cast, WHERE); then start again with a new checkpoint location, a new tunnel and overwrite",
    )


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

    def route_results(store: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch | Staged]]:
        del store
        for part in parts:
            yield from _routed_groups(part.drop_columns([STATE]), query.key)
            for each in part.column(STATE).drop_null().flatten().to_pylist():
                yield each["target"], Staged(each["id"], each["rows"])

    def stage(batch: DataFrame, tasks: BatchTasks, net: bool) -> Receipts:
        def merge_and_route(store: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
            for groups, writes in states.merge(open_tables(store, tables), tasks.batch, parts):
                yield from _routed_groups(_copied(groups, query), query.key)
                for each in writes:
                    yield from ((places[each.table, each.change], rows) for rows in each.rows.to_batches())

        def merge(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with tasks.open_store() as store:
                for groups, writes in states.merge(open_tables(store, tables), tasks.batch, parts):
                    yield _with_state_staged(groups, writes, store, tasks, places)

        with batch_of_each(batch, query.scans, net=net) as changes:
            rows = query.signed_rows(changes).drop(ORDER)
            groups = [name for name in merged.names if name in rows.columns]
            if not groups and tasks.batch == 0:
                # The one group exists without rows, too.
                rows = rows.union(_no_change(rows))
            # The session is that of the query alone.
            rows.sparkSession.conf.set(*_TASK_BYTES)
            rows = rows.repartition(*groups) if groups else rows.repartition(1)
            if query.copied is not None:
                # One step of Python instead of two, and no rows of Spark between them.
                return tasks.stage_routed(rows, merge_and_route)
            view = f"{_VIEW}_groups"
            rows.mapInArrow(sent(merge), merged).createOrReplaceTempView(view)
            results = batch.sparkSession.sql(with_views(result_sql, {GROUPS_VIEW: view}))
            return tasks.stage_routed(results.toDF(*query.names, KEEP, STATE), route_results)

    return stage


def _copied(groups: pa.RecordBatch, query: BatchQuery) -> pa.RecordBatch:
    """Return what the result SQL gives for groups if it only copies columns."""
    import pyarrow as pa

    columns = [groups.column(name) for name in (*(query.copied or ()), ALIVE)]
    return pa.RecordBatch.from_arrays(columns, [*query.names, KEEP])


def _with_state_staged(
    groups: pa.RecordBatch,
    writes: Iterable[StateRows],
    store: Store,
    tasks: BatchTasks,
    places: Mapping[tuple[str, RowChange], int],
) -> pa.RecordBatch:
    """Stage the state rows of groups, and return the groups with their receipts.

    The state itself does not travel through the result SQL: Spark converts large binaries slowly.
    """
    import pyarrow as pa

    writer = tasks.writer(store)
    receipts: list[dict[str, int]] = []
    for rows in writes:
        place = places[rows.table, rows.change]
        staged = writer.stage(tasks.batch, tasks.targets[place], rows.rows.to_batches(), tasks.rows_per_write)
        receipts += [{"target": place, "id": receipt.id, "rows": receipt.rows} for receipt in staged]
    fields = [pa.field(name, pa.int64()) for name in ("target", "id", "rows")]
    column = pa.array([receipts, *[None] * (groups.num_rows - 1)], pa.list_(pa.struct(fields)))
    return groups.append_column(STATE, column)


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
    shown = rows.drop_columns([KEEP])
    yield PUTS, shown.filter(kept)
    yield DELETES, shown.select(list(key)).filter(pc.invert(kept))


def _columns(names: Iterable[str]) -> list[Any]:
    from pyspark.sql import functions as F

    from headrace.streaming_sql.language.lexer import quote_name

    return [F.col(quote_name(name)) for name in names]
