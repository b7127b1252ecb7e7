"""`headrace.follow`: keeps the result of a SELECT over followed tables in a table."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.batches.sinks.jobs import TargetJob, TargetJobs, is_changed
from headrace.batches.sinks.targets import TableTarget
from headrace.derived.follow.batch_content import BatchQuery, InnerGroups
from headrace.derived.follow.batches import FollowedBatches
from headrace.derived.follow.determinism import called_functions
from headrace.derived.follow.layouts import Arrangement, StateLayout
from headrace.derived.follow.plan import FollowedPlan
from headrace.derived.follow.planning import read_plan
from headrace.derived.follow.replacement import Replacement, TextChange, check_target, columns_lost, other_scans
from headrace.derived.follow.scans import FollowedScan
from headrace.derived.follow.settings import answer_settings, check_unchanged, with_variables
from headrace.derived.follow.sources import ScanFrames, one_stream, sources
from headrace.derived.follow.static_tables import StaticTable, forget, read_static_tables, reading, refuse_target
from headrace.derived.follow.table_positions import TablePosition
from headrace.derived.gathering.arrangements import Gathering
from headrace.derived.gathering.tree import expensive, refuse_full_reads
from headrace.derived.own_names import inner_table
from headrace.derived.state.state_tables import check_keeps_groups, keeps_previous
from headrace.derived.used_names import used_names
from headrace.errors import OptionError, UnsupportedError, shown
from headrace.formats.source import Source
from headrace.model.tables.change_columns import source_mark
from headrace.model.tables.changes import RowChange
from headrace.model.types import type_name
from headrace.ports import Store
from headrace.ports.arguments import flag
from headrace.spark.analysed_plans import passes_columns, plan_of
from headrace.spark.batch_tasks import LocatedSink
from headrace.spark.batched_stream import BatchedStream, SinkArguments, sink_of
from headrace.spark.checkpoint import source_offsets, stored_query_id
from headrace.spark.connect import is_connect
from headrace.spark.own_source import check_no_feedback
from headrace.spark.sql_errors import errors_in_a_sentence
from headrace.spark.versions import SESSIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("headrace")


@dataclass(frozen=True, kw_only=True)
class FollowedStream(BatchedStream):
    """A followed query that `start` starts. `follow` creates it.

    Attributes:
        spark: the session of the query.
        frames: the streaming DataFrames of the sources of the scans that the query reads, by scan.
        plan: the query.
        settings: the settings of the session when the query was checked.
        variables: the values of the variables in the query, by their references.
        target: the table that it writes.
        overwrite: the first batch of a query with a new checkpoint replaces the rows of the target.
        allow_full_read: the query may read whole tables in its batches.
        replace: the text may be another one than that of the checkpoint; then its result replaces the rows of the
            target before the first batch.
    """

    spark: SparkSession
    frames: Mapping[str, DataFrame]
    plan: FollowedPlan
    settings: Mapping[str, str]
    variables: Mapping[str, str]
    target: TableTarget
    overwrite: bool = False
    allow_full_read: bool = True
    replace: bool = False

    def start(self) -> StreamingQuery:
        """Check the target and the static tables, and start the query.

        Raises:
            NotFoundError: the store or the table does not exist.
            SchemaError: the columns, or the key, of the target do not fit.
            OptionError: the target has rows that this query did not write; the query, a static table or a setting has
                changed since the checkpoint; Spark cannot write the checkpoint, or does not accept the trigger.
        """
        with self.arguments.store.open() as store:
            return self.checked(store)._start_in(store)

    def _start_in(self, store: Store) -> StreamingQuery:
        sink = self._sink(self.spark, store)
        with read_static_tables(self.spark, self.plan.query.others) as static:
            check_unchanged(self.settings, self.spark)
            jobs, job = TargetJobs(store), self._job(store, sink, static)
            replacement = self._replacement(store, sink, job, static) if self.replace else None
            # Before the target changes.
            if replacement is not None:
                check_target(store, self.target.name)
                replacement.check(store)
            else:
                jobs.check(job)
            if self.replace:
                self._add_columns(store)
            if replacement is not None:
                replacement.run(self.spark, store, sink, job)
                jobs.check(job)
            for line in () if self.plan.gathering is None else expensive(self.plan.gathering):
                _log.warning("the query into %s is expensive: %s", self.target.name, line)
            self._record(store, [self.target.name], replace=self.replace)
            known = jobs.own(job)
            layout = StateLayout() if known is None else StateLayout.of_json(known.layout)
            scans = layout.ordered(self.plan.scans) or self.plan.scans
            if known is None:
                # Spark may have planned the first batch for another text, which named them in another order.
                scans = tuple(sorted(scans, key=lambda scan: scan.name.lower()))
            lost, gathering = self._exchanged(layout, scans), self.plan.gathering
            if gathering is not None:
                gathering, covering = layout.arranged(gathering, scans)
                if layout.arrangements:
                    lost += [scan.name for scan in scans if scan.name.lower() not in covering]
            if lost:
                raise columns_lost(list(dict.fromkeys(lost)))
            layout = layout.reading(scans)
            query = self._query(store, scans, static, gathering)
            batches = FollowedBatches(sink, query, self.target, job, layout)
            return self._start(one_stream(self.frames, scans), "append", batches)

    def _query(
        self,
        store: Store,
        scans: Sequence[FollowedScan],
        static: Sequence[StaticTable],
        gathering: Gathering | None,
    ) -> BatchQuery:
        text = self.plan.query
        return BatchQuery(
            tuple(scans),
            reading(text.rows_sql, static),
            self.plan.names,
            self.key(store),
            gathers=text.has_join,
            static=tuple(static),
            used=self._used(gathering),
            groups=self.plan.group_query(keeps_previous=keeps_previous(store), key=self.key(store)),
            gathering=gathering,
            inner=tuple(
                InnerGroups(
                    inner_table(number),
                    reading(plan.query.rows_sql, static),
                    _signed_sql(plan.gathering, static),
                    groups,
                )
                for number, plan in self.plan.inner.items()
                if (groups := plan.group_query(keeps_previous=False, number=number)) is not None
            ),
            signed_sql=_signed_sql(gathering, static),
        )

    def _job(self, store: Store, sink: LocatedSink, static: Sequence[StaticTable]) -> TargetJob:
        """Return the job without its tables; its ``job`` is empty if it has no checkpoint yet."""
        groups = self.plan.query.groups
        definition = {"query": self.plan.fingerprint}
        definition |= {f"static table {table.name}": table.fingerprint for table in static}
        # Without the source of its positions a checkpoint has no meaning.
        for group in sources(self.plan.scans):
            if (tunnel := group[0].tunnel) is not None:
                definition[f"tunnel of {', '.join(scan.name for scan in group)}"] = tunnel.id
        texts = [each.query.rows_sql for each in (self.plan, *self.plan.inner.values())]
        called = called_functions(self.spark, " ".join((*texts, "" if groups is None else groups.result_sql)))
        definition |= {f"function {function.name}": function.fingerprint for function in called}
        settings = {**self.settings, **self.variables}
        settings |= {name: value for function in called for name, value in function.settings.items()}
        return TargetJob(
            self.target.name,
            stored_query_id(sink.checkpoint, store) or "",
            definition,
            overwrite=self.overwrite,
            settings=settings,
        )

    # -- a new text ---------------------------------------------------------------------------------------

    def change(self, store: Store) -> TextChange | None:
        """Return what the start of this text would change for a query with another text; None if there is none.

        Raises:
            HeadraceError: the text cannot replace the other one.
        """
        sink = self._sink(self.spark, store)
        with read_static_tables(self.spark, self.plan.query.others) as static:
            job = self._job(store, sink, static)
            replacement = self._replacement(store, sink, job, static)
            forget(self.spark, static)
            if replacement is None:
                return None
            check_target(store, self.target.name)
            schema = store.table(self.target.name, self.target.columns).schema
            return replacement.described(store, self.plan.output, schema)

    def _replacement(
        self, store: Store, sink: LocatedSink, job: TargetJob, static: Sequence[StaticTable]
    ) -> Replacement | None:
        """Return the change of the text of a query that has published batches; None if its text is this one."""
        known = TargetJobs(store).own(job)
        last = None if known is None else store.publisher(known.job).last_batch()
        if known is None or last is None:
            return None
        layout = StateLayout.of_json(known.layout)
        scans = layout.ordered(self.plan.scans)
        if scans is None:
            raise other_scans(layout, self.plan.scans)
        gathering, covering = self.plan.gathering, dict[str, list[Arrangement]]()
        if gathering is not None:
            gathering, covering = layout.arranged(gathering, scans)
        is_whole = not layout.arrangements or len(covering) == len(scans)
        if is_whole and not self._exchanged(layout, scans) and not is_changed(known, job):
            return None
        offsets = source_offsets(sink.checkpoint, last, self.spark, store=store)
        positions = {
            scan.name.lower(): TablePosition(scan, self.frames[scan.name], offset)
            for group, offset in zip(sources(scans), offsets, strict=True)
            for scan in group
        }
        return Replacement(
            known,
            self._query(store, scans, static, gathering),
            self.target,
            layout.following(scans, gathering, covering),
            covering,
            positions,
            last,
        )

    def _exchanged(self, layout: StateLayout, scans: Sequence[FollowedScan]) -> list[str]:
        """Return the scans of which the query uses columns that are others than those of its record."""
        used = used_names(self.plan.query.tokens)
        return [
            scan.name
            for scan in scans
            if any(used is None or name.lower() in used or name in scan.key for name in layout.exchanged(scan))
        ]

    def _add_columns(self, store: Store) -> None:
        """Add the columns of the query that the target lacks."""
        table = store.table(self.target.name, self.target.columns)
        missing = {field.name: field.type for field in self.plan.output if field.name not in table.schema}
        if missing:
            table.add_columns({name: type_name(kind) for name, kind in missing.items()})
        self.target.check(store, self.plan.output)

    def _used(self, gathering: Gathering | None) -> str | None:
        """Return the names of the columns that the query uses or keeps, as the setting `USED_COLUMNS`."""
        used = used_names(self.plan.query.tokens)
        if used is None or not all(passes_columns(plan_of(frame)) for frame in self.frames.values()):
            return None
        kept = () if gathering is None else gathering.tables.values()
        columns = [*(scan.key for scan in self.plan.scans), *(each.schema.names for each in kept)]
        return json.dumps(sorted(used | {name.lower() for names in columns for name in names}))

    def key(self, store: Store) -> tuple[str, ...]:
        """Return the key columns of the target."""
        return store.table(self.target.name, self.target.columns).schema.primary_key

    def checked(self, store: Store) -> FollowedStream:
        """Check the columns and the key of the target; return the stream with the plan for this key.

        Raises:
            SchemaError: they do not fit.
            OptionError: the target is a followed table, or a static one.
            SqlError: the query reads whole tables, and may not.
        """
        table = store.table(self.target.name, self.target.columns)
        columns = self.plan.output
        if self.replace and store.capabilities.add_columns:
            # A new text adds the columns that the target lacks.
            columns = pa.schema([field for field in columns if field.name in table.schema])
        self.target.check(store, columns)
        own = source_mark(store.id, table.identity() or table.name)
        followed = [scan.name for scan in self.plan.scans if scan.source == own]
        if followed:
            raise OptionError(
                "the target of a followed query is a table that it follows: each result would be new input",
                received=f"table {self.target.name!r}, followed as {', '.join(followed)}",
                remedy="write into another table",
            )
        for frame in self.frames.values():
            check_no_feedback(frame, store, [table.name], "this query")
        refuse_target(self.spark, self.plan.query.others, store, table.name)
        plan = plan_for(self.plan, store, self.target.name, self.key(store), allow_full_read=self.allow_full_read)
        return replace(self, plan=plan)


def plan_for(
    plan: FollowedPlan, store: Store, table: str, key: Sequence[str], *, allow_full_read: bool
) -> FollowedPlan:
    """Return the plan of a query for the table of a store and its primary key.

    Raises:
        SchemaError: the key does not fit.
        SqlError: the query reads whole tables, and may not.
        UnsupportedError: the store cannot keep the rows of the query's tables, or its groups.
    """
    if plan.gathering is not None and keeps_previous(store):
        raise UnsupportedError(
            "the rows of this query's tables are kept beside its target, in one transaction with it",
            received=f"table {table!r} of {store.url}",
            remedy="write into a table of an embedded store, PostgreSQL or Delta Lake",
        )
    plan = plan.for_key(table, key)
    if plan.query.groups is not None or plan.inner:
        check_keeps_groups(store)
    if plan.gathering is not None and not allow_full_read:
        refuse_full_reads(plan.gathering)
    return plan


def follow(
    spark: SparkSession,
    sql: str,
    *,
    scans: Mapping[str, DataFrame],
    checkpoint: str | os.PathLike[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    table: str | None = None,
    name: str | None = None,
    overwrite: bool = False,
    allow_full_read: bool = True,
    replace: bool = False,
    trigger: Mapping[str, Any] | None = None,
    format: str = "headrace",
    options: Mapping[str, str] | None = None,
) -> FollowedStream:
    """Follow tables into a table: after each batch it holds what the same SELECT gives over their current rows.

    The query is a text over named scans, not a DataFrame, because each batch runs parts of it over other rows than the
    whole table. Spark has a public way to run a text over other views, in classic Spark and in Spark Connect. It has
    none to run the plan of a DataFrame over other rows.

    Args:
        spark: the session. Its views and tables that the query names are static: they are read when the query starts,
            and again if an executor is lost with their rows.
        sql: a SELECT in Spark SQL; docs/following-tables.md has what it can contain.
        scans: for each name of a followed scan in ``sql`` a streaming DataFrame that ``format("headrace")`` with
            ``option("readAs", "table")`` has loaded. One of a tunnel of several tables is the table that ``load``
            names, else the table with the name of the scan; all scans of this tunnel are one streaming source.
        checkpoint: the checkpoint location, see `write_stream`; a query with a name may leave it out.
        store: the path or URL of the target's store. The state of aggregates is in this store, too.
        table: the target. Its primary key has all columns of GROUP BY, but need not have one that others determine,
            such as a name beside the key of its table; without aggregates the key of the scan. Over several tables it
            has columns that are unique in the result, which each batch checks.
        name: the query's name.
        overwrite: replace the rows of the target in the first batch of a query with a new checkpoint. Without it, such
            a query needs an empty target.
        allow_full_read: whether a query may start whose batches read whole tables, because no equality leads to the
            rows that a change reaches. The log has a warning about it.
        replace: continue a checkpoint whose query had another text. Its result over the rows of the last batch replaces
            the rows of the target, in one transaction, before the first batch. The target gets the columns that it
            lacks. The checkpoint and the tunnels stay.
        trigger: as for Spark's ``trigger``: ``{"processingTime": "5 seconds"}``, ``{"availableNow": True}``.
        format: ``headrace``; or ``tablestore`` or ``yt``, with store and table in the ``options`` of that format.
        options: further options of the format for writing streams.

    Returns:
        A `FollowedStream`; its ``start()`` returns Spark's ``StreamingQuery``.

    Raises:
        SqlError: the query has a construct that cannot be followed, or Spark refuses it.
        OptionError: an option is missing, invalid, or unknown to the format; or a scan is not a followed one.

    Examples:
        >>> totals = store.create_table("totals", {"kind": "string", "spent": "double"}, "kind")
        >>> reader = spark.readStream.format("headrace").options(store="shop", tunnel="stats", readAs="table")
        >>> stream = headrace.follow(
        ...     spark,
        ...     "SELECT left(id, 1) AS kind, sum(price) AS spent FROM orders_now GROUP BY left(id, 1)",
        ...     scans={"orders_now": reader.load()},
        ...     store="shop",
        ...     table="totals",
        ...     checkpoint="checkpoints/totals",
        ...     trigger={"availableNow": True},
        ... )
        >>> stream.start().awaitTermination(60)
        True
        >>> totals.get({"kind": "o"})
        {'kind': 'o', 'spent': 12.5}
    """
    sink = sink_of("follow", format, options, store=store, table=table)
    arguments = SinkArguments.of(sink, spark, checkpoint=checkpoint, name=name, trigger=trigger)
    if not isinstance(sql, str):
        raise OptionError("a query must be a text", received=shown(sql), valid="a SELECT in Spark SQL")
    if not scans:
        raise OptionError("no scans to follow", valid='scans={"orders_now": df}')
    with errors_in_a_sentence():
        frames = {name: ScanFrames.of(name, df) for name, df in scans.items()}
        return followed_stream(
            spark,
            sql,
            frames,
            sink,
            arguments,
            overwrite=flag(overwrite, "overwrite"),
            allow_full_read=flag(allow_full_read, "allow_full_read"),
            replace=flag(replace, "replace"),
        )


def followed_stream(
    spark: SparkSession,
    sql: str,
    frames: Mapping[str, ScanFrames],
    sink: Source,
    arguments: SinkArguments,
    *,
    columns: Sequence[str] | None = None,
    overwrite: bool,
    allow_full_read: bool,
    replace: bool,
) -> FollowedStream:
    """Return the stream of a query, checked by itself. `FollowedStream.checked` compares it with its target.

    Args:
        sql: Spark SQL, without the functions of the dialect.
        frames: the DataFrames of all followed scans.
        sink: the target, with its options.
        arguments: the arguments of the stream.
        columns: names for the output columns, by position; by default they have the names in the query.
        overwrite, allow_full_read, replace: see `FollowedStream`.

    Raises:
        SqlError: the query cannot be followed.
        AnalysisException, ParseException: the query is invalid, in Spark's words.
        OptionError: a DataFrame is not a followed scan; or the options name no table.
        UnsupportedError: over Spark Connect, Spark is too old.
    """
    if is_connect(spark):
        SESSIONS.check()
    text, variables = with_variables(spark, sql)
    plan = read_plan(spark, text, [FollowedScan.of(name, *each) for name, each in frames.items()], columns)
    sources(plan.scans)
    location = sink.location
    if location.queue or not location.table:
        raise OptionError(
            "the target of a followed query must be a table: rows of a queue cannot be replaced or deleted",
            received=f"queue {location.queue!r}" if location.queue else "no table",
            remedy="name a table with the columns of the query",
        )
    if sink.row_change() not in (None, RowChange.PUT):
        raise OptionError(
            "a followed query puts and deletes rows as the result has them",
            received=f"{sink.format.row_change_option}={sink.row_change()}",
            remedy=f"leave out option {sink.format.row_change_option}",
        )
    if sink.keeps_bad_rows():
        raise OptionError(
            "a followed query keeps no bad rows: it computes the changes of its target from its state, and a new text "
            "of it from the rows of the target, which must be the same",
            received="badRows=table",
            remedy="leave out option badRows; or follow into a table without constraints, and mirror that one",
        )
    return FollowedStream(
        arguments=arguments,
        definition=plan.fingerprint,
        spark=spark,
        frames={scan.name: frames[scan.name].stream for scan in plan.scans},
        plan=plan,
        settings=answer_settings(spark),
        variables=variables,
        target=TableTarget(location.table, columns=location.columns),
        overwrite=overwrite,
        allow_full_read=allow_full_read,
        replace=replace,
    )


def _signed_sql(gathering: Gathering | None, static: Sequence[StaticTable]) -> str | None:
    """Return the query for the rows that leave and that enter the result of a query that is gathered."""
    found = None if gathering is None else gathering.signed_sql
    return None if found is None else reading(found, static)
