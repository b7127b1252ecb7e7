"""The batches of a followed query: from changes of its scans to changes of its target and of its state.

The rows SQL makes signed rows of the changes. Without aggregates, the last row of each key of the target decides. With
aggregates, tasks merge the rows of their groups with the kept state, and the result SQL computes the target's rows. The
driver publishes the changes of the target and of the state in one transaction, so the state is always that of the
published batches.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.batches.sinks.jobs import TargetJob, TargetJobs, state_name, target_taken
from headrace.batches.sinks.targets import TableTarget
from headrace.derived.follow.scans import FollowedScan, batch_of_each
from headrace.derived.follow.static_tables import StaticTable, is_loss, read_again
from headrace.derived.last_rows import DELETES, PUTS, last_rows, null_key
from headrace.derived.own_names import ALIVE, GROUPS_VIEW, KEEP, ORDER, SIGN, STATE
from headrace.derived.state.group_states import GroupStates
from headrace.derived.state.state_tables import StateRows, StateTable, create_tables, open_tables
from headrace.errors import ExpressionError, own_message
from headrace.model.own_names import PREFIX
from headrace.model.tables.changes import RowChange
from headrace.ports import Staged
from headrace.spark.batch_tasks import BatchContent, BatchTasks, Receipts, StreamBatches, publish_batch
from headrace.spark.executors import sent
from headrace.sql_text.query_text import with_views

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.ports import Store

STATE_DDL = "array<struct<target:bigint,id:bigint,rows:bigint>>"
"""The type of column `STATE`: the receipts of a task's state rows."""
_VIEW = f"{PREFIX}batch"
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
    """

    scans: tuple[FollowedScan, ...]
    rows_sql: str
    names: tuple[str, ...]
    key: tuple[str, ...]
    gathers: bool
    static: tuple[StaticTable, ...] = ()

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


@dataclass(frozen=True)
class GroupQuery:
    """What the batches of a query with aggregates compute of its signed rows. Picklable.

    Attributes:
        states: the state of the groups.
        merged: the columns of groups that `result_sql` reads.
        result_sql: the query for rows of the target.
        copied: the columns of `merged` that the output columns are, if the result SQL need not run; else None.
    """

    states: GroupStates
    merged: StructType
    result_sql: str
    copied: tuple[str, ...] | None


@dataclass
class FollowedBatches(StreamBatches):
    """The function of ``foreachBatch`` of a followed query.

    Attributes:
        query: the signed rows of a batch.
        groups: the aggregates of the query; None without.
        target: the target.
        job: the job without its tables; its ``job`` is empty if it has no checkpoint yet.
    """

    query: BatchQuery
    groups: GroupQuery | None
    target: TableTarget
    job: TargetJob

    def publish(self, store: Store, job: str, batch: DataFrame, number: int) -> None:
        """Compute and publish a batch.

        Raises:
            OptionError: the job cannot have the target, see `TargetJobs.begin`; or another job has taken it during
                the batch, which is not published.
        """
        jobs, groups = TargetJobs(store), self.groups
        state = {} if groups is None else groups.states.tables(f"{state_name(store, self.target.name, job)}_")
        names = tuple(table.name for table in state.values())
        begun, claim = jobs.begin(replace(self.job, job=job, state_tables=names), number)
        replaces = number == 0 and begun.overwrite
        try:
            tables = open_tables(store, state) if number else create_tables(store, state)
            content: FollowedBatch
            if groups is None:
                content = FollowedRows(self.query, self.target, replaces)
            else:
                groups.states.sweep(tables, number)
                content = FollowedGroups(self.query, self.target, replaces, groups, state)
            tasks = BatchTasks(self.sink, job, number, content.targets)
            publish_batch(store, tasks, batch, content, check=True, claim=claim)
        except Exception as error:
            # Besides a lost claim: the other job drops the state of this one, which this batch may be reading.
            if not jobs.is_lost(claim):
                raise
            jobs.drop(begun.state_tables)
            raise target_taken(begun.target, begun.job, number) from error
        jobs.drop(begun.obsolete)


@dataclass(frozen=True)
class FollowedBatch(BatchContent):
    """One batch of a followed query, from its changes to changes of the target. Tasks get a copy.

    Attributes:
        query: the signed rows of the batch.
        target: the table that the query writes.
        replaces: the batch replaces the rows of the target.
    """

    # Spark keeps no state of a followed query.
    rereads_published = False

    query: BatchQuery
    target: TableTarget
    replaces: bool

    @property
    def targets(self) -> tuple[TableTarget, ...]:
        """The rows to put, and the keys to delete."""
        put = RowChange.REPLACE_ALL if self.replaces else RowChange.PUT
        return replace(self.target, change=put), replace(self.target, change=RowChange.DELETE)

    def run(self, batch: DataFrame, tasks: BatchTasks) -> Receipts:
        """Compute the batch; and again from its net changes if the query fails for some row.

        The row can be one that the batch adds and removes again: a query over the table never sees it. Net changes give
        the same result as all changes, but cost a pass through Python, so they are not the first choice.
        """
        from pyspark.errors import PySparkException

        try:
            return self._compute(batch, tasks, net=False)
        except PySparkException as error:
            if not _is_of_expression(error):
                raise
            _log.info("batch %d failed, and is computed again from its net changes", tasks.batch, exc_info=True)
        tasks.discard()
        try:
            return self._compute(batch, tasks, net=True)
        except PySparkException as error:
            if not _is_of_expression(error) or own_message(str(error)) is not None:
                raise
            raise _failed_expression(error, self.target.name, tasks.batch) from error

    def _compute(self, batch: DataFrame, tasks: BatchTasks, *, net: bool) -> Receipts:
        """Compute the batch; and again when executors were lost with the rows of static tables."""
        losses = 0
        while True:
            try:
                if losses:
                    tasks.discard()
                    read_again(batch.sparkSession, self.query.static)
                with batch_of_each(batch, self.query.scans, net=net) as scans:
                    return self._stage_changes(self.query.signed_rows(scans), tasks)
            except Exception as error:
                if not self.query.static or losses == _LOSSES or not is_loss(error):
                    raise
                losses += 1
                _log.warning("batch %d lost rows of static tables with an executor, and reads them again", tasks.batch)

    @abstractmethod
    def _stage_changes(self, signed: DataFrame, tasks: BatchTasks) -> Receipts:
        """Stage the changes of the targets that signed rows give."""


class FollowedRows(FollowedBatch):
    """A batch without aggregates: the last row of each key of the target decides."""

    def _stage_changes(self, signed: DataFrame, tasks: BatchTasks) -> Receipts:
        rows = signed.toDF(*self.query.names, *signed.columns[-2:])
        if self.query.gathers:
            rows = rows.repartition(*_columns(self.query.key)).sortWithinPartitions(ORDER)
        return tasks.stage_routed(rows, self._last_rows)

    def _last_rows(self, _: Store, parts: Iterator[pa.RecordBatch]) -> Iterable[tuple[int, pa.RecordBatch]]:
        key = self.query.key
        return last_rows(parts, key, waiting_bytes=_NO_LIMIT) if self.replaces else last_rows(parts, key)


@dataclass(frozen=True)
class FollowedGroups(FollowedBatch):
    """A batch with aggregates: signed rows are merged with the state of their groups.

    Attributes:
        groups: the aggregates.
        state: the tables of state, by role.
    """

    groups: GroupQuery
    state: Mapping[str, StateTable]

    @property
    def state_writes(self) -> list[tuple[str, RowChange]]:
        """The role of the table and the change of each target after the two of the target itself."""
        return [(role, change) for role in self.state for change in (RowChange.PUT, RowChange.DELETE)]

    @property
    def targets(self) -> tuple[TableTarget, ...]:
        tables = [(self.state[role], change) for role, change in self.state_writes]
        state = (TableTarget(table.name, change, table.columns, is_state=True) for table, change in tables)
        return (*super().targets, *state)

    def _stage_changes(self, signed: DataFrame, tasks: BatchTasks) -> Receipts:
        groups, rows = self.groups, signed.drop(ORDER)
        names = [name for name in groups.merged.names if name in rows.columns]
        if not names and tasks.batch == 0:
            # The one group exists without rows, too.
            rows = rows.union(_no_change(rows))
        # The session is that of the query alone.
        session = rows.sparkSession
        session.conf.set(*_TASK_BYTES)
        rows = rows.repartition(*names) if names else rows.repartition(1)
        if groups.copied is not None:
            # One step of Python instead of two, and no rows of Spark between them.
            return tasks.stage_routed(rows, partial(self._merge_and_route, tasks.batch, groups.copied))
        view = f"{_VIEW}_groups"
        rows.mapInArrow(sent(partial(self._merge_and_stage, tasks)), groups.merged).createOrReplaceTempView(view)
        results = session.sql(with_views(groups.result_sql, {GROUPS_VIEW: view}))
        return tasks.stage_routed(results.toDF(*self.query.names, KEEP, STATE), self._route_results)

    def _merge(
        self, store: Store, batch: int, parts: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[pa.RecordBatch, list[tuple[int, StateRows]]]]:
        """Yield results of groups, and the state rows of these groups with the indexes of their targets."""
        places = {write: place for place, write in enumerate(self.state_writes, len(super().targets))}
        for groups, states in self.groups.states.merge(open_tables(store, self.state), batch, parts):
            yield groups, [(places[each.table, each.change], each) for each in states]

    def _merge_and_route(
        self, batch: int, copied: Sequence[str], store: Store, parts: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Merge the rows of a task where the result SQL only copies columns."""
        import pyarrow as pa

        for groups, states in self._merge(store, batch, parts):
            columns = [groups.column(name) for name in (*copied, ALIVE)]
            yield from self._routed(pa.RecordBatch.from_arrays(columns, [*self.query.names, KEEP]))
            for target, state in states:
                yield from ((target, rows) for rows in state.rows.to_batches())

    def _merge_and_stage(self, tasks: BatchTasks, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge the rows of a task, stage the state, and yield the groups with the receipts of their state.

        The state itself does not travel through the result SQL: Spark converts large binaries slowly.
        """
        import pyarrow as pa

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
            for each in part.column(STATE).drop_null().flatten().to_pylist():
                yield each["target"], Staged(each["id"], each["rows"])

    def _routed(self, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of the target to put, and the keys to delete."""
        import pyarrow.compute as pc

        for name in self.query.key:
            if rows.column(name).null_count:
                raise null_key(name)
        kept = rows.column(KEEP)
        shown = rows.drop_columns([KEEP])
        yield PUTS, shown.filter(kept)
        yield DELETES, shown.select(list(self.query.key)).filter(pc.invert(kept))


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


def _no_change(rows: DataFrame) -> DataFrame:
    """Return one row with sign 0, which changes no aggregate."""
    from pyspark.sql import functions as F

    values = [F.lit(0 if field.name == SIGN else None).cast(field.dataType).alias(field.name) for field in rows.schema]
    return rows.sparkSession.range(1).select(*values)


def _columns(names: Iterable[str]) -> list[Any]:
    from pyspark.sql import functions as F

    from headrace.sql_text.lexer import quote_name

    return [F.col(quote_name(name)) for name in names]
