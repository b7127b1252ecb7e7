"""The statements about streams."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.derived.merge.statement import Merge
from headrace.derived.mirror.statement import Mirror
from headrace.errors import SqlError
from headrace.options.secrets import resolved
from headrace.spark.default_checkpoint import default_checkpoint
from headrace.sql_text.lexer import fingerprint
from headrace.sql_text.script import Name, StreamBody
from headrace.streaming_sql.catalog import Catalog, ScanDefinition, TableDefinition
from headrace.streaming_sql.kinds.follow import FollowedInserts
from headrace.streaming_sql.kinds.insert import InsertStreams
from headrace.streaming_sql.kinds.kind import DefinedStream, StreamKind
from headrace.streaming_sql.kinds.merge import MergeStreams
from headrace.streaming_sql.kinds.mirror import MirrorStreams
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.grammar import parse
from headrace.streaming_sql.locations import location_of
from headrace.streaming_sql.providers import is_headrace
from headrace.streaming_sql.results import Result
from headrace.streaming_sql.running_streams import RunningStreams
from headrace.streaming_sql.scripts import script_of, stream_text
from headrace.streaming_sql.stream_explanation import explanation
from headrace.streaming_sql.stream_options import StreamOptions, no_checkpoint, no_target, read_stream_options
from headrace.streaming_sql.stream_registry import StreamRegistry, StreamStatus
from headrace.streaming_sql.stream_states import kept_beside
from headrace.streaming_sql.stream_uses import StreamUses
from headrace.streaming_sql.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Streams:
    """Starts, stops, shows and explains the streams of a workspace.

    Attributes:
        uses: what the streams read and write.
    """

    def __init__(self, spark: SparkSession, catalog: Catalog, tables: Tables, registry: StreamRegistry) -> None:
        self._spark = spark
        self._catalog = catalog
        self._tables = tables
        self._registry = registry
        self.uses = StreamUses(catalog, registry)
        self._running = RunningStreams(registry)
        self._kinds: dict[type[StreamBody], StreamKind] = {
            st.Insert: InsertStreams(spark, catalog, tables),
            Merge: MergeStreams(spark, catalog, tables),
            Mirror: MirrorStreams(spark, catalog, tables),
        }
        self._followed = FollowedInserts(spark, catalog, tables)
        # The statements of this session, with the secrets that the workspace does not store.
        self._statements: dict[str, st.CreateStream] = {}

    # -- creating -----------------------------------------------------------------------------------------

    def create(self, statement: st.CreateStream, *, available_now: bool, view: str | None = None) -> Result:
        """Start a stream. A stream that has ended continues if the text of its statement is the same.

        With ``OR REPLACE`` a running stream is stopped, and the text may be another one.

        Args:
            view: the query of the materialized view that the stream keeps.
        """
        name = str(statement.name)
        known = self._registry.find(name)
        if known is not None and not statement.replace:
            known.check_ended()
        self._start(statement, available_now=available_now, view=view)
        self._statements[name.lower()] = replace(statement, replace=False)
        # A query that never started has left nothing to continue.
        how = "started" if known is None or known.query_id is None else "started again from its checkpoint"
        if known is not None and known.query_id is not None and known.fingerprint != _fingerprint(statement):
            how = "continues with its new text"
        return Result(message=f"stream {name} {how}")

    def _start(self, statement: st.CreateStream, *, available_now: bool, view: str | None = None) -> None:
        stream = self._defined(statement, available_now=available_now)
        known = self._registry.find(stream.name)
        if known is not None and not statement.replace:
            known.check_text(_fingerprint(statement))
        with self._tables.own_errors(statement.body.reads):
            kind = self._kind(statement.body)
            if statement.replace:
                kind.check_replaceable(stream)
            ready = kind.prepare(stream)
        if statement.replace and known is not None:
            _check_same_places(known, stream)
            self._stop(known)
        scans, _ = self._tables.definitions_in(statement.body.reads)
        self._check_tunnels(stream.name, scans)
        self._registry.record_start(
            stream.name,
            script=_script(scans, statement),
            fingerprint=_fingerprint(statement),
            target=str(statement.body.target),
            checkpoint=stream.checkpoint,
            view=view,
            replace=statement.replace,
            bounded="availableNow" in stream.options.trigger,
        )
        secrets = self._tables.secrets() | ready.secrets
        self._running.start(stream.name, ready.start, timeout_ms=stream.options.timeout_ms, secrets=secrets)
        if statement.replace:
            # From here on another start must find this text.
            self._registry.set_script(stream.name, _script(scans, replace(statement, replace=False)))

    def _check_tunnels(self, name: str, scans: Iterable[ScanDefinition]) -> None:
        """Raise `SqlError` if a running stream reads a tunnel that a new stream would take from it."""
        wanted = {tunnel: scan.name for scan in scans if (tunnel := self.uses.tunnel_of(scan)) is not None}
        reader = self.uses.running_reader(set(wanted), besides=name)
        if reader is not None:
            stream, tunnel = reader
            raise SqlError(
                f"stream {stream} already reads the tunnel of scan {wanted[tunnel]}, and runs",
                received=f"tunnel {tunnel[1]} of table {tunnel[0]}",
                valid="a tunnel of its own for each stream",
                remedy="CREATE TUNNEL … and a scan with it for this stream",
            )

    def _kind(self, body: StreamBody) -> StreamKind:
        return self._followed if self._followed.reads(body) else self._kinds[type(body)]

    def _defined(self, statement: st.CreateStream, *, available_now: bool) -> DefinedStream:
        """Return a stream with its options and the definition of its target."""
        name = str(statement.name)
        options = read_stream_options(name, resolved(statement.options, f"stream {name}"), available_now=available_now)
        table = str(statement.body.target)
        if self._catalog.find_scan(table) is not None:
            raise SqlError(f"{table} is a scan, which can only be read", remedy="name its table as the target")
        target = self._catalog.find_table(table)
        if target is None:
            self._check_of_spark(table)
        return DefinedStream(statement, options, target, _checkpoint(name, options, target))

    def _check_of_spark(self, table: str) -> None:
        """Raise `NotFoundError` if Spark has no table of this name: its streams would create one, with any name."""
        try:
            exists = self._spark.catalog.tableExists(table)
        except Exception:
            # The name is not one of Spark's.
            exists = False
        if not exists:
            raise no_target(table, [each.name for each in self._catalog.tables()])

    # -- starting, stopping, dropping -----------------------------------------------------------------------

    def start(self, statement: st.StartStream, *, available_now: bool) -> Result:
        """Start a stream that has ended, in any process."""
        status = self._registry.get(str(statement.name))
        status.check_ended()
        created = self._statements.get(status.name.lower())
        if created is None:
            created = self._from_script(status)
        self._start(created, available_now=available_now)
        return Result(message=f"stream {status.name} started again from its checkpoint")

    def _from_script(self, status: StreamStatus) -> st.CreateStream:
        """Create the scans of a stream that do not exist, and return the stream's statement."""
        for statement in parse(status.script):
            if isinstance(statement, st.CreateScan) and self._catalog.find_scan(str(statement.name)) is None:
                self._catalog.add_scan(ScanDefinition.from_statement(statement))
            elif isinstance(statement, st.CreateStream):
                return statement
        raise SqlError(f"the workspace has no statement for stream {status.name}", remedy="create it again")

    def stop(self, statement: st.StopStream) -> Result:
        """Stop a stream, in any process."""
        return Result(message=self._stop(self._registry.get(str(statement.name))))

    def _stop(self, status: StreamStatus) -> str:
        if self._running.stop(status.name):
            return f"stream {status.name} stopped"
        if status.is_live:
            self._registry.ask_to_stop(status.name)
            self._registry.wait_until_ended(status.name)
            return f"stream {status.name} stopped (it ran in process {status.pid})"
        if status.state == "lost":
            self._registry.set_ended(status.name, "stopped", status.error)
        return f"stream {status.name} was not running ({status.state})"

    def drop(self, statement: st.DropStream) -> Result:
        """Stop a stream and remove it from the workspace. Its checkpoint stays."""
        name = str(statement.name)
        if statement.if_exists and self._registry.find(name) is None:
            return Result(message=f"stream {name} does not exist")
        status = self._registry.get(name)
        self.end(status)
        self.forget(name)
        kept = f"its checkpoint stays in {status.checkpoint}"
        return Result(message=f"stream {status.name} dropped; {kept}")

    def end(self, status: StreamStatus) -> None:
        """Stop a stream, in any process, if it runs."""
        self._stop(status)

    def forget(self, name: str) -> None:
        """Remove a stream that has ended from the workspace."""
        self._registry.forget(name)
        self._running.forget(name)
        self._statements.pop(name.lower(), None)

    def statuses(self) -> list[StreamStatus]:
        return self._registry.all()

    def wait(self, timeout: float | None = None, *, fail_fast: bool = False) -> bool:
        return self._running.wait(timeout, fail_fast=fail_fast)

    def stop_all(self) -> None:
        self._running.stop_all()

    # -- showing ------------------------------------------------------------------------------------------

    def show(self, statement: st.ShowStreams) -> Result:
        columns = (
            "name",
            "state",
            "target",
            "batch",
            "rows_per_second",
            "lag",
            "lag_age_seconds",
            "eta_seconds",
            "pid",
            "error",
        )
        rows = tuple(tuple(getattr(status, column) for column in columns) for status in self._registry.all())
        return Result(columns, rows)

    def describe(self, statement: st.DescribeStream) -> Result:
        status = self._registry.get(str(statement.name))
        names = ("name", "state", "target", "checkpoint", "pid", "query_id", "batch", "rows_per_second")
        rows = [(name, getattr(status, name)) for name in names]
        rows += [("lag", status.lag_text), ("eta_seconds", status.eta_seconds)]
        rows += [("error", status.error), ("remedy", status.remedy)]
        rows += [("started", _time_text(status.started)), ("updated", _time_text(status.updated))]
        kept = kept_beside([status], self._catalog)[status.name]
        rows += [] if kept.bad_rows is None else [("bad_rows", kept.bad_rows)]
        rows += [("state table", f"{each.content}: {each.size}") for each in kept.states]
        return Result(("property", "value"), (*rows, ("script", status.script)))

    def change(self, statement: st.CreateStream) -> list[tuple[str, str]]:
        """Return what ``CREATE OR REPLACE STREAM`` with the text of a statement would change, as properties."""
        name = str(statement.name)
        known = self._registry.find(name)
        if known is None or known.query_id is None:
            return [("stream", "new")]
        stream = self._defined(replace(statement, replace=True), available_now=False)
        _check_same_places(known, stream)
        with self._tables.own_errors(statement.body.reads):
            return self._kind(statement.body).change(stream)

    def explain(self, statement: st.ExplainStream, *, available_now: bool) -> Result:
        """Return the sources, the sink, the options, the guarantee and the plan of a stream, without starting it."""
        created = statement.target
        if isinstance(created, Name):
            status = self._registry.get(str(created))
            created = self._statements.get(status.name.lower()) or self._from_script(status)
        stream = self._defined(created, available_now=available_now)
        with self._tables.own_errors(created.body.reads):
            rows = explanation(stream, self._kind(created.body), self._catalog, self._tables)
        return Result(("property", "value"), rows)


def _script(scans: Iterable[ScanDefinition], statement: st.CreateStream) -> str:
    name, body = str(statement.name), statement.body.text
    return script_of(scans, stream_text(name, statement.options, body, replace=statement.replace))


def _fingerprint(statement: st.CreateStream) -> str:
    return fingerprint(stream_text(str(statement.name), statement.options, statement.body.text))


def _check_same_places(known: StreamStatus, stream: DefinedStream) -> None:
    """Raise `SqlError` if a new text of a stream has another target or another checkpoint."""
    target = str(stream.statement.body.target)
    if known.query_id is None:
        return
    if known.target.lower() != target.lower():
        raise SqlError(
            "a new text of a stream must write the same table",
            received=target,
            valid=known.target,
            remedy=f"DROP STREAM {known.name}, or give this stream another name",
        )
    if known.checkpoint != stream.checkpoint:
        raise SqlError(
            "a new text of a stream continues with the same checkpoint",
            received=stream.checkpoint,
            valid=known.checkpoint,
            remedy=f"DROP STREAM {known.name} to begin with another one",
        )


def _checkpoint(name: str, options: StreamOptions, target: TableDefinition | None) -> str:
    """Return the checkpoint location of a stream, or the default one in the store of its target."""
    if options.checkpoint is not None:
        return options.checkpoint
    if target is None or not is_headrace(target.provider):
        raise no_checkpoint(name)
    with location_of(target, options.sink).open_store() as store:
        return default_checkpoint(store, name)


def _time_text(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
