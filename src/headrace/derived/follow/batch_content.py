"""What all batches of followed queries have: the query, the targets, and what happens if it fails for a row."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.batches.sinks.targets import TableTarget
from headrace.derived.follow.scans import FollowedScan
from headrace.derived.follow.static_tables import StaticTable, is_loss, read_again
from headrace.derived.gathering.arrangements import Gathering
from headrace.derived.gathering.row_keys import row_keys
from headrace.derived.last_rows import DELETES, PUTS, null_key
from headrace.derived.own_names import BATCH_VIEW, KEEP
from headrace.derived.state.group_states import GroupStates
from headrace.derived.state.state_tables import StateTable
from headrace.errors import ExpressionError, UnsupportedError, own_message
from headrace.model.tables.changes import RowChange
from headrace.model.tunnels.losses import is_truncation
from headrace.ports import Staged
from headrace.rows.by_position import last_rows
from headrace.spark.batch_tasks import BatchContent, BatchTasks, DriverRows, Receipts
from headrace.spark.settings import USED_COLUMNS, changed_settings
from headrace.sql_text.lexer import quote_name
from headrace.sql_text.query_text import with_views

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Classes of SQLSTATE: errors in data, of functions of users, and by raise_error.
_ERRORS_OF_EXPRESSIONS = ("22", "38", "39", "P0")
# The number of further attempts at a batch after losses of executors. Spark allows each task as many.
_LOSSES = 3
_log = logging.getLogger("headrace")
_Routed = TypeVar("_Routed", pa.RecordBatch, pa.RecordBatch | Staged)


@dataclass(frozen=True)
class GroupQuery:
    """What the batches of a query with aggregates compute of its signed rows. Picklable.

    Attributes:
        states: the state of the groups.
        merged: the columns of groups that `result_sql` reads.
        result_sql: the query for rows of the target.
        copied: the columns of `merged` that the output columns are, if the result SQL need not run; else None.
        by: the groups' columns in the key of the target; of inner groups all.
        shares_keys: there are others, which they determine. So one of the groups with a key is left after a batch.
    """

    states: GroupStates
    merged: StructType
    result_sql: str
    copied: tuple[str, ...] | None
    by: tuple[str, ...]
    shares_keys: bool


@dataclass(frozen=True)
class InnerGroups:
    """An inner query of a followed query, whose groups the query reads as a table. Picklable.

    Attributes:
        table: the name of the table.
        rows_sql: the query for the rows that are grouped.
        signed_sql: the query for the rows that leave and that enter; see `signed_join`.
        groups: their groups, without a result SQL.
    """

    table: str
    rows_sql: str
    signed_sql: str | None
    groups: GroupQuery

    @property
    def schema(self) -> StructType:
        """The columns of the table."""
        from pyspark.sql.types import StructType

        return StructType(self.groups.merged.fields[:-2])


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
        used: the names of the columns that the query uses, as the setting `USED_COLUMNS`; None for all.
        inner: the inner queries whose groups `rows_sql` reads, inner ones first.
        signed_sql: the query for gathered rows that leave and that enter; see `signed_join`.
        groups: the aggregates at the end of the query; None without.
        gathering: how the rows are found over which the query is evaluated; None if it runs over signed rows.
    """

    scans: tuple[FollowedScan, ...]
    rows_sql: str
    names: tuple[str, ...]
    key: tuple[str, ...]
    gathers: bool
    static: tuple[StaticTable, ...] = ()
    used: str | None = None
    inner: tuple[InnerGroups, ...] = ()
    signed_sql: str | None = None
    groups: GroupQuery | None = None
    gathering: Gathering | None = None

    def state(self, prefix: str) -> dict[str, StateTable]:
        """Return the definitions of the tables of state by role; ``prefix`` is the beginning of their names."""
        groups = [*([] if self.groups is None else [self.groups]), *(each.groups for each in self.inner)]
        found = {role: table for each in groups for role, table in each.states.tables(prefix).items()}
        return found if self.gathering is None else found | self.gathering.state(prefix)

    def signed_rows(self, changes: Mapping[str, DataFrame]) -> DataFrame:
        """Return the signed rows of a batch.

        Args:
            changes: the signed rows of the scans, in the session of the batch.
        """
        views = {}
        for number, (name, rows) in enumerate(changes.items()):
            views[name] = f"{BATCH_VIEW}_{number}"
            rows.createOrReplaceTempView(views[name])
        session = next(iter(changes.values())).sparkSession
        return session.sql(with_views(self.rows_sql, views))


@dataclass(frozen=True)
class FollowedBatch(BatchContent):
    """One batch of a followed query, from its changes to changes of the target. Tasks get a copy.

    Attributes:
        query: the signed rows of the batch.
        target: the table that the query writes.
        first: nothing is kept before it: the first batch of a query, or of its new text.
        replaces: the batch replaces the rows of the target.
        state: the tables of state, by role.
        begins_anew: a TRUNCATE is its first change, so its other changes give all rows of the target and of the state.
    """

    # Spark keeps no state of a followed query.
    rereads_published = False

    query: BatchQuery
    target: TableTarget
    first: bool
    replaces: bool
    state: Mapping[str, StateTable]
    begins_anew: bool = field(default=False, kw_only=True)

    @property
    def targets(self) -> tuple[TableTarget, ...]:
        """The rows to put, the keys to delete, and the same for each table of state."""
        put = RowChange.REPLACE_ALL if self.replaces or self.begins_anew else RowChange.PUT
        put_state = RowChange.REPLACE_ALL if self.begins_anew else RowChange.PUT
        return (
            replace(self.target, change=put),
            replace(self.target, change=RowChange.DELETE),
            *(
                TableTarget(
                    self.state[role].name,
                    put_state if change is RowChange.PUT else change,
                    self.state[role].columns,
                    is_state=True,
                )
                for role, change in self.state_writes
            ),
        )

    @property
    def state_writes(self) -> dict[tuple[str, RowChange], int]:
        """The index of the target for each change of a table of state, by its role."""
        writes = [(role, change) for role in self.state for change in (RowChange.PUT, RowChange.DELETE)]
        return {write: place for place, write in enumerate(writes, DELETES + 1)}

    def run(self, batch: DataFrame, tasks: BatchTasks) -> Receipts | DriverRows:
        """Compute the batch; and again from its net changes if the query fails for some row.

        The row can be one that the batch adds and removes again: a query over the table never sees it. Net changes give
        the same result as all changes, but cost a pass through Python, so they are not the first choice.
        """
        from pyspark.errors import PySparkException

        try:
            return self._compute(batch, tasks, net=False)
        except PySparkException as error:
            # A TRUNCATE begins the net changes, too.
            if not is_of_expression(error) or is_truncation(error):
                raise
            _log.info("batch %d failed, and is computed again from its net changes", tasks.batch, exc_info=True)
        tasks.discard()
        try:
            return self._compute(batch, tasks, net=True)
        except PySparkException as error:
            if not is_of_expression(error) or own_message(str(error)) is not None:
                raise
            raise _failed_expression(error, self.target.name, tasks.batch) from error

    def _compute(self, batch: DataFrame, tasks: BatchTasks, *, net: bool) -> Receipts | DriverRows:
        """Compute the batch; and again when executors were lost with the rows of static tables."""
        losses = 0
        while True:
            try:
                if losses:
                    tasks.discard()
                    read_again(batch.sparkSession, self.query.static)
                used = {} if self.query.used is None else {USED_COLUMNS: self.query.used}
                # Static tables are read with all their columns.
                with changed_settings(batch.sparkSession, used):
                    return self._attempt(batch, tasks, net=net)
            except Exception as error:
                if not self.query.static or losses == _LOSSES or not is_loss(error):
                    raise
                losses += 1
                _log.warning("batch %d lost rows of static tables with an executor, and reads them again", tasks.batch)

    def _by_key(self, rows: DataFrame, tasks: int | None = None) -> DataFrame:
        """Return rows such that a task has all rows of a key of the target."""
        key = [rows[quote_name(name)] for name in self.query.key]
        return rows.repartition(*key) if tasks is None else rows.repartition(tasks, *key)

    def _routed(self, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of the target to put, and the keys to delete."""
        self._check_null_keys(rows)
        kept = rows.column(KEEP)
        shown = rows.drop_columns([KEEP])
        yield PUTS, shown.filter(kept)
        yield DELETES, shown.select(list(self.query.key)).filter(pc.invert(kept))

    def _of_keys(self, routed: Iterable[tuple[int, _Routed]]) -> Iterator[tuple[int, _Routed]]:
        """Yield routed rows of groups without the deletes of keys that others of them put, or that come twice."""
        if self.query.groups is None or not self.query.groups.shares_keys:
            yield from routed
            return
        key = list(self.query.key)
        put, deleted = [pa.array([], pa.binary())], list[pa.RecordBatch]()
        for place, rows in routed:
            if place == DELETES and isinstance(rows, pa.RecordBatch):
                deleted.append(rows)
                continue
            if place == PUTS and isinstance(rows, pa.RecordBatch):
                put.append(row_keys(pa.Table.from_batches([rows]), key))
            yield place, rows
        if deleted:
            left = pa.Table.from_batches(deleted)
            left = left.filter(pc.invert(pc.is_in(row_keys(left, key), pa.chunked_array(put))))
            yield from ((DELETES, part) for part in left.take(pa.array(last_rows(left, key))).to_batches())

    def _check_null_keys(self, rows: pa.Table | pa.RecordBatch) -> None:
        for name in self.query.key:
            if rows.column(name).null_count:
                raise null_key(name)

    def _check_unique(self, several: int) -> None:
        """Raise `UnsupportedError` if the result has rows with the key of another one, ``several`` of them."""
        if several:
            raise UnsupportedError(
                f"the query gives several rows with the same key of table {self.target.name!r}",
                received=f"{several} such rows",
                valid=f"one row for each ({', '.join(self.query.key)})",
                remedy="add the key columns of the joined tables to the primary key of the target, or GROUP BY the key",
            )

    @abstractmethod
    def _attempt(self, batch: DataFrame, tasks: BatchTasks, *, net: bool) -> Receipts | DriverRows:
        """Stage or compute the changes of the targets; from net changes, if the query may fail for other rows."""


def is_of_expression(error: PySparkException) -> bool:
    """Return whether an expression of the query has failed for a row."""
    return (error.getSqlState() or "")[:2] in _ERRORS_OF_EXPRESSIONS


def named_expressions(error: PySparkException) -> str:
    """Return the expressions that have failed, for messages."""
    expressions = dict.fromkeys(each.fragment() for each in error.getQueryContext() if each.fragment())
    return f"expression {', '.join(expressions)}" if expressions else "an expression"


def drop_views(session: SparkSession, scans: int) -> None:
    """Drop the views of a batch in a session that has other uses."""
    views = [f"{BATCH_VIEW}_{number}{suffix}" for number in range(scans) for suffix in ("", "_before")]
    for view in (*views, f"{BATCH_VIEW}_groups"):
        session.catalog.dropTempView(view)


def _failed_expression(error: PySparkException, target: str, batch: int) -> ExpressionError:
    return ExpressionError(
        f"{named_expressions(error)} of the query into {target!r} fails for a row that is in the table at the end of "
        f"batch {batch}: {error.getCondition() or 'an error of the expression'}",
        remedy="the batch cannot succeed later: correct the row, or write the expression so that it does not fail "
        "(try_divide, try_cast, WHERE); then start again with a new checkpoint location, a new tunnel and overwrite",
    )
