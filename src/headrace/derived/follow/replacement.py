"""A new text of a query that has published batches: its result is computed over the rows of the last batch.

The query continues with its checkpoint and its tunnels, so the new text begins at the position where the old one ended.
The rows of the tables at that position are in the arrangements, if the old text kept all columns that the new one
needs; otherwise they are read from the tables, see `headrace.derived.follow.table_positions`. So there is no gap before
the next batch, and no change counts twice.

1. The record of the job gets a fence: a running batch of the old text is not published. If the old query goes on and
   publishes a later batch, it takes the fence away, and the new text is not published.
2. Spark evaluates the new text over the rows of that batch. Tasks stage the result and the new tables of state.
3. One transaction replaces the rows of the target, fills the new tables of state, and puts the record of the new text.
   Until then readers see the old result, and a query that starts again with either text begins from the old state.
4. The tables of state that the new text does not use are dropped, now or before its first batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.batches.sinks.jobs import ANEW, TargetJob, TargetJobs
from headrace.batches.sinks.targets import TableTarget
from headrace.derived.follow.batch_content import (
    BatchQuery,
    drop_views,
    is_of_expression,
    named_expressions,
)
from headrace.derived.follow.batches import batch_of, job_with_state
from headrace.derived.follow.gathered_in_tasks import GatheredLoad
from headrace.derived.follow.layouts import Arrangement, StateLayout
from headrace.derived.follow.scans import FollowedScan
from headrace.derived.follow.signed_batches import TASK_BYTES, SignedBatch
from headrace.derived.follow.sources import packed
from headrace.derived.follow.table_positions import TablePosition
from headrace.derived.state.state_tables import StateTable, create_tables
from headrace.errors import ClaimLostError, ExpressionError, OptionError, UnsupportedError
from headrace.formats.source import splits
from headrace.model.tables.change_columns import CHANGE_TYPE
from headrace.model.tables.schema import TableSchema
from headrace.model.types import type_name
from headrace.ports import Claim, Store
from headrace.spark.batch_tasks import BatchTasks, LocatedSink
from headrace.spark.checkpoint import BatchOffsets
from headrace.spark.settings import changed_settings
from headrace.spark.stored_rows import stored_rows
from headrace.sql_text.lexer import quote_name
from headrace.support import failpoints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class TextChange:
    """What a new text of a query keeps and computes, in words.

    Attributes:
        kept: the arrangements that it keeps.
        computed: what it computes again.
        reads: what it reads for that, with the numbers of rows; None if a store does not know it.
        gained: the columns that the target must gain, with their types.
        emptied: the columns of the target that become null.
    """

    kept: tuple[str, ...]
    computed: tuple[str, ...]
    reads: tuple[tuple[str, int | None], ...]
    gained: Mapping[str, str]
    emptied: tuple[str, ...]

    def properties(self) -> list[tuple[str, str]]:
        """Return the change as properties for people."""
        rows = [("kept", each) for each in self.kept] or [("kept", "nothing")]
        rows += [("computed again", each) for each in self.computed]
        rows += [("read", f"{what}: {'unknown' if count is None else count} rows") for what, count in self.reads]
        rows += [("new column", f"{name} {kind}") for name, kind in self.gained.items()]
        return rows + [("null from now on", name) for name in self.emptied]


@dataclass(frozen=True)
class Replacement:
    """The new text of a query, before it is computed.

    Attributes:
        old: the record of the job with the old text.
        query, target: those of the batches with the new text. Its arrangements have the columns of kept ones, too.
        layout: the tables of state of the new text.
        covering: the arrangements of the old text that have the rows of a scan, by scan in lower case.
        positions: the tables at the end of the last batch, by scan in lower case.
        last: the number of the last batch.
    """

    old: TargetJob
    query: BatchQuery
    target: TableTarget
    layout: StateLayout
    covering: Mapping[str, list[Arrangement]]
    positions: Mapping[str, TablePosition]
    last: int

    def check(self, store: Store) -> tuple[tuple[str, int | None], ...]:
        """Check that all rows can be read; return what is read, with the number of rows.

        Raises:
            UnsupportedError, OptionError: a table must be read, and cannot be read as of the last batch.
        """
        read: list[tuple[str, int | None]] = []
        for name, position in self.positions.items():
            if name in self.covering:
                table = self.covering[name][0].table
                read.append((f"the kept rows of {position.scan.name}", store.table(table).describe().rows))
            else:
                read.append((f"the table of {position.scan.name}", position.check()))
        return tuple(read)

    def described(self, store: Store, output: pa.Schema, target: TableSchema) -> TextChange:
        """Check the new text, and return what it changes.

        Args:
            output: the columns of its result.
            target: the columns of the target.
        """
        reads = self.check(store)
        kept, computed = list[str](), [f"all rows of {self.target.name}"]
        for role, table in self.state(store).items():
            what = self._state_in_words(role)
            (kept if table.name in self.layout.names.values() else computed).append(what)
        gained = {field.name: type_name(field.type) for field in output if field.name not in target}
        emptied = tuple(name for name in target.names if name not in output.names)
        return TextChange(tuple(kept), tuple(computed), reads, gained, emptied)

    def _state_in_words(self, role: str) -> str:
        for arranged in () if self.query.gathering is None else self.query.gathering.tables.values():
            if role in arranged.roles:
                columns = arranged.shown(arranged.schema.names)
                return f"rows of {arranged.name} by ({arranged.shown(arranged.roles[role])}): {columns}"
        return f"the state of groups ({role})"

    def state(self, store: Store) -> dict[str, StateTable]:
        return self.layout.state(store, self.target.name, self.old.job, self.query)

    def run(self, spark: SparkSession, store: Store, sink: LocatedSink, wanted: TargetJob) -> None:
        """Compute and publish the result of the new text, after `check`.

        Args:
            wanted: the job with the new text, without its tables.

        Raises:
            OptionError: another process has published a batch, or is replacing the text or has replaced it.
        """
        jobs, state, kept = TargetJobs(store), self.state(store), set(self.layout.names)
        with _errors_of_others(jobs, self.old, self.layout):
            fenced = jobs.fence(self.old, [table.name for role, table in state.items() if role not in kept])
        with _errors_of_others(jobs, fenced, self.layout):
            failpoints.reach("text-fenced")
            if store.publisher(self.old.job).last_batch() != self.last:
                raise _still_runs(self.last)
            create_tables(store, state)
            now, claim = jobs.succeed(fenced, job_with_state(wanted, state, self.layout, self.query.gathering))
            self._publish(spark, store, sink, fenced, state, claim)
        failpoints.reach("text-published")
        jobs.drop(now.obsolete)

    def _publish(
        self,
        spark: SparkSession,
        store: Store,
        sink: LocatedSink,
        fenced: TargetJob,
        state: Mapping[str, StateTable],
        claim: Claim,
    ) -> None:
        """Compute the result of the new text, and publish it with its record."""
        content = batch_of(self.query, self.target, state, first=True, replaces=True)
        # Spark may repeat the last batch, which must then be published for the new tables, too. If it is, because the
        # query writes the same tables as before, the result is the only batch of a job of its own.
        tasks = BatchTasks(sink, self.old.job, self.last, content.targets)
        repeats = tasks.writer(store).publisher.published(self.last)
        if repeats:
            tasks = replace(tasks, job=f"{self.old.job}-{fenced.fence}")
        writer = tasks.writer(store)
        offsets = BatchOffsets.read(sink.checkpoint, self.last, spark, store=store)
        try:
            with _errors_of_expressions(self.target.name), changed_settings(spark, dict([TASK_BYTES])):
                if isinstance(content, GatheredLoad):
                    staged = replace(content, kept=frozenset(self.layout.names)).load(
                        self._batch(spark, store, sink), tasks
                    )
                else:
                    assert isinstance(content, SignedBatch)
                    tables = {each.scan.name: each.rows() for each in self.positions.values()}
                    staged = content.stage_tables(tables, tasks)
            failpoints.reach("text-staged")
            writes = writer.writes(staged)
            writer.publisher.publish(self.last, writes, content=offsets.content, claim=claim, last=repeats)
        except ClaimLostError:
            writer.publisher.discard(self.last)
            raise _still_runs(self.last) from None
        except BaseException:
            writer.publisher.discard(self.last)
            raise
        finally:
            drop_views(spark, len(self.query.scans) + len(self.query.inner))

    def _batch(self, spark: SparkSession, store: Store, sink: LocatedSink) -> DataFrame:
        """Return the rows of all tables as changes that insert them."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        assert self.query.gathering is not None
        frames: list[DataFrame] = []
        for name, position in self.positions.items():
            columns = self.query.gathering.tables[name].schema.names
            if name in self.covering:
                table = store.table(self.covering[name][0].table)
                read = self.query.gathering.tables[name].stored_columns[: len(columns)]
                schema = StructType([position.scan.schema[each] for each in columns])
                rows = stored_rows(spark, sink.store, table.name, splits(table), read, schema)
            else:
                rows = position.rows().select(*map(quote_name, columns))
            frames.append(rows.withColumn(CHANGE_TYPE, F.lit("insert")))
        return packed(frames)


@contextmanager
def _errors_of_others(jobs: TargetJobs, known: TargetJob, layout: StateLayout) -> Iterator[None]:
    """Explain errors of a replacement while another process replaces the text, or after it has.

    Args:
        known: the record of the query, which this process has read or fenced.
        layout: that of the new text of this process.
    """
    try:
        yield
    except Exception as error:
        now = jobs.find(known.target)
        if now is None or (now.fence in ("", known.fence) and now.layout == known.layout):
            raise
        if StateLayout.of_json(now.layout).attempt == layout.attempt:
            # This process has published its text.
            raise
        raise OptionError(
            f"another process replaces the text of the query into {known.target!r}, or has replaced it",
            received="a new text of one process, and then one of another",
            remedy="repeat this if the text of the other process is not the one that you want",
        ) from error


def _still_runs(last: int) -> OptionError:
    return OptionError(
        "the query with the text before has published a batch while its text was being replaced",
        received=f"a batch after {last}",
        remedy="stop it, and repeat this",
    )


def columns_lost(scans: Sequence[str]) -> OptionError:
    """Return the error for tables that no longer have all columns with which the result of a query was computed."""
    return OptionError(
        "a followed table lost a column of the query, has it with another type, or has another column under its name",
        received=", ".join(scans),
        remedy="CREATE OR REPLACE STREAM with the same text, in Python follow(…, replace=True), computes it anew",
    )


def other_scans(layout: StateLayout, scans: Sequence[FollowedScan]) -> OptionError:
    """Return the error for a new text that does not read the scans of the text before."""
    if not layout.scans:
        return OptionError(
            "the record of the text before does not say in which order it reads its scans: it is of an earlier release",
            received=f"{len(scans)} scans",
            remedy="start the text before once with this release, until it has published a batch",
        )
    return OptionError(
        "a new text of a query must read the same scans of the same tables, because it continues with their tunnels",
        received=", ".join(scan.name for scan in scans),
        valid=", ".join(name for name, _ in layout.scans),
        remedy=f"for other tables, {ANEW}",
    )


def check_target(store: Store, target: str) -> None:
    """Raise `UnsupportedError` if a store cannot replace the result of a query in one transaction."""
    able = store.capabilities
    if not able.transactions or able.rows_at_once is not None or able.atomic_targets is not None:
        raise UnsupportedError(
            "this store cannot replace the text of a query: it does not publish target and state in one transaction",
            received=f"table {target!r} of {store.url}",
            valid="targets in an embedded store or in PostgreSQL",
            remedy=ANEW,
        )


@contextmanager
def _errors_of_expressions(target: str) -> Iterator[None]:
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if not is_of_expression(error):
            raise
        raise ExpressionError(
            f"{named_expressions(error)} of the new query into {target!r} fails for a row of its tables: "
            f"{error.getCondition() or 'an error of the expression'}",
            remedy="the target has the result of the text before: correct the row, or write the expression so that "
            "it does not fail (try_divide, try_cast, WHERE)",
        ) from error
