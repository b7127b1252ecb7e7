"""The statements about materialized views: each is a table, and a stream that keeps the result of a query in it.

``CREATE MATERIALIZED VIEW v AS SELECT … FROM orders`` does what these statements do:

    CREATE TUNNEL v ON orders;
    CREATE SCAN orders_of_v ON orders USING STREAM OPTIONS (tunnel = 'v', readAs = 'table');
    CREATE TABLE v (…, PRIMARY KEY (…)) USING headrace;
    CREATE STREAM v INSERT INTO v SELECT … FROM orders_of_v AS orders;

Spark says which columns the query has, and `headrace.derived.follow.target_keys` which of them are the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.batches.sinks.jobs import TargetJobs
from headrace.derived.follow.gathered import named_elsewhere
from headrace.derived.follow.plan import FollowedPlan
from headrace.derived.follow.stream import plan_for
from headrace.derived.follow.target_keys import key_of
from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, SqlError
from headrace.formats.checkpoint_locations import parse_location
from headrace.formats.location import find_table
from headrace.formats.registry import format_named
from headrace.model.types import type_name
from headrace.spark.default_checkpoint import default_checkpoint
from headrace.sql_text.lexer import quote_name
from headrace.sql_text.query_text import QueryText
from headrace.sql_text.script import ScriptPart
from headrace.streaming_sql.catalog import Catalog, ScanDefinition, TableDefinition, overlaid
from headrace.streaming_sql.kinds.follow import FollowedInserts, plan_properties
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.grammar import parse
from headrace.streaming_sql.locations import location_of, table_in_store
from headrace.streaming_sql.providers import is_headrace
from headrace.streaming_sql.results import Result
from headrace.streaming_sql.scripts import stream_text
from headrace.streaming_sql.store_guarantees import store_guarantee
from headrace.streaming_sql.stream_options import KNOWN, read_stream_options
from headrace.streaming_sql.stream_registry import StreamRegistry, StreamStatus
from headrace.streaming_sql.stream_uses import scans_of
from headrace.streaming_sql.streams import Streams
from headrace.streaming_sql.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OWN_OPTIONS = ("primaryKey", "store", "table")


@dataclass(frozen=True)
class _View:
    """A materialized view as its statement defines it.

    Attributes:
        follows: the tables of which it needs a tunnel and a scan.
        scans: these scans.
        target: the table with its result.
        stream: the statement of its stream.
        key: the columns that the user named as its key; empty if none.
    """

    name: str
    follows: tuple[TableDefinition, ...]
    scans: tuple[ScanDefinition, ...]
    target: TableDefinition
    stream: st.CreateStream
    key: tuple[str, ...]

    def key_in(self, plan: FollowedPlan) -> tuple[str, ...]:
        """Return the key of the view: the one that the user named, or that of its query.

        Raises:
            OptionError: the query does not have a column that the user named.
            SqlError: the query shows no key.
        """
        key = self.key or key_of(plan, "name its key in OPTIONS (primaryKey = 'a, b')")
        unknown = [name for name in key if name not in plan.names]
        if unknown:
            raise OptionError(
                "option primaryKey names a column that the query does not have",
                received=", ".join(unknown),
                valid=list(plan.names),
            )
        return key


class Views:
    """Creates, shows and drops the materialized views of a workspace."""

    def __init__(
        self, spark: SparkSession, catalog: Catalog, tables: Tables, registry: StreamRegistry, streams: Streams
    ) -> None:
        self._catalog = catalog
        self._tables = tables
        self._registry = registry
        self._streams = streams
        self._followed = FollowedInserts(spark, catalog, tables)

    # -- creating -----------------------------------------------------------------------------------------

    def create(self, statement: st.CreateView, *, available_now: bool) -> Result:
        """Create a view and start its stream. The stream of a view that exists continues if the query is the same."""
        name = str(statement.name)
        known = self._registry.find(name)
        if known is not None and known.view is None:
            raise AlreadyExistsError("a stream has this name", received=name, remedy="give the view another name")
        if known is not None and statement.if_not_exists:
            return self._as_it_is(known, statement, available_now=available_now)
        view = self._view(statement)
        undo: list[tuple[str, TableDefinition]] = []
        try:
            # Before the tunnels, which on PostgreSQL wait for open transactions.
            planned = None if self._has_table(view) else self._plan(view, statement.query)
            self._create_scans(view, undo)
            self._create_target(view, planned, undo)
            return self._streams.create(view.stream, available_now=available_now, view=statement.query.text)
        except Exception:
            self._undo(view, undo, is_new=known is None)
            raise

    def change(self, statement: st.CreateView) -> list[tuple[str, str]]:
        """Return what ``CREATE OR REPLACE MATERIALIZED VIEW`` with the query of a statement would change."""
        known = self._registry.find(str(statement.name))
        if known is None or known.view is None:
            return [("materialized view", "new")]
        view = self._view(statement)
        for scan in view.scans:
            self._catalog.add_scan(scan, replace=True)
        return self._streams.change(view.stream)

    def explain(self, statement: st.ExplainView) -> Result:
        """Return the columns and the key of a view, and how its query would be kept; create nothing."""
        view, query = self._view(statement.view), statement.view.query
        options = read_stream_options(view.name, view.stream.options)
        location = location_of(view.target)
        table = str(location.table)
        with location.open_store() as store:
            plan, key = self._plan(view, query)
            plan = plan_for(plan, store, table, key, allow_full_read=options.allow_full_read)
            counts = self._followed.counts(query, view.follows)
            rows = [
                ("materialized view", f"{view.name}: table {table} of {store.url}"),
                *(("column", f"{name} {kind}") for name, kind in _columns(plan).items()),
                ("primary key", ", ".join(key)),
                *plan_properties(plan, store, table, key, counts),
                ("trigger", options.trigger_text),
            ]
        rows.append(("guarantee", store_guarantee(view.target, options.sink, self._catalog, view.scans)))
        return Result(("property", "value"), tuple(rows))

    def _as_it_is(self, known: StreamStatus, statement: st.CreateView, *, available_now: bool) -> Result:
        """Start the stream of an existing view if it has ended."""
        if known.is_live:
            return Result(message=f"materialized view {known.name} exists, and its stream runs")
        return self._streams.start(
            st.StartStream(part=statement.part, name=statement.name), available_now=available_now
        )

    def _view(self, statement: st.CreateView) -> _View:
        name = str(statement.name)
        scans, tables = self._tables.definitions_in(statement.query)
        follows = tuple(table for table in tables if table.name.lower() != name.lower() and _can_be_followed(table))
        followed = [scan for scan in scans if self._followed.is_followed(scan)]
        if not follows and not followed:
            raise SqlError(
                f"the query of materialized view {name} names no table that it could follow",
                received=", ".join([*(each.name for each in scans), *(each.name for each in tables)])
                or "no table of this workspace",
                valid="tables of an embedded store, PostgreSQL or Delta Lake, or scans with readAs = 'table'",
                remedy="CREATE TABLE … USING headrace OPTIONS (store = '…', table = '…') before it",
            )
        first = follows[0] if follows else self._catalog.table(followed[0].table)
        own, others = _split_options(statement.options)
        target = _target(name, first, own)
        own_scans = {table.name: _scan(table, name) for table in follows}
        query = _renamed(statement.query, {table: scan.name for table, scan in own_scans.items()})
        body = f"INSERT INTO {quote_name(target.name)} {query}"
        (stream,) = parse(stream_text(name, others, body, replace=statement.replace))
        assert isinstance(stream, st.CreateStream)
        return _View(name, follows, tuple(own_scans.values()), target, stream, _key(own.get("primarykey", "")))

    def _create_scans(self, view: _View, undo: list[tuple[str, TableDefinition]]) -> None:
        for table, scan in zip(view.follows, view.scans, strict=True):
            location = location_of(table)
            with location.open_store() as store:
                try:
                    store.create_tunnel(table_in_store(table, location), view.name, "BaseAndStream")
                    undo.append(("tunnel", table))
                except AlreadyExistsError:
                    # This statement has run before. The stream refuses a tunnel that another query reads.
                    pass
            self._catalog.add_scan(scan, replace=True)
            self._tables.register_scan(scan)

    def _has_table(self, view: _View) -> bool:
        """Return whether the table of a view exists. A store that does not exist is created.

        Raises:
            AlreadyExistsError: it is not that of the view.
        """
        known = self._catalog.find_table(view.target.name)
        if known is not None and known.without_secrets() != view.target.without_secrets():
            raise AlreadyExistsError(
                f"the table of materialized view {view.name} has another definition",
                received=view.name,
                remedy=f"DROP MATERIALIZED VIEW {view.name}, or DROP TABLE {view.name}; or give the view another name",
            )
        location = location_of(view.target)
        with location.open_store(create=True) as store:
            exists = find_table(store, str(location.table)) is not None
        if exists and self._registry.find(view.name) is None:
            raise AlreadyExistsError(
                f"the store has a table with the name of materialized view {view.name}",
                received=str(location.table),
                remedy="name another one in OPTIONS (table = '…'); or write into it with CREATE STREAM",
            )
        return exists

    def _plan(self, view: _View, query: ScriptPart) -> tuple[FollowedPlan, tuple[str, ...]]:
        """Return the plan of the query of a view, and the key of the view."""
        for table in view.follows:
            table_in_store(table, location_of(table))
        with self._tables.own_errors(query):
            plan = self._followed.result_of(query, view.follows)
        return plan, view.key_in(plan)

    def _create_target(
        self, view: _View, planned: tuple[FollowedPlan, Sequence[str]] | None, undo: list[tuple[str, TableDefinition]]
    ) -> None:
        """Create the table of a view from the plan and the key, except if it exists and there is none; define it."""
        if planned is not None:
            plan, key = planned
            location = location_of(view.target)
            with location.open_store() as store:
                store.create_table(str(location.table), _columns(plan), key)
            undo.append(("table", view.target))
        if self._catalog.add_table(view.target, if_not_exists=True):
            undo.append(("definition", view.target))

    def _undo(self, view: _View, created: list[tuple[str, TableDefinition]], *, is_new: bool) -> None:
        """Remove what a statement that failed has created, so that the corrected one can run."""
        for kind, table in reversed(created):
            if kind == "definition":
                self._tables.drop(table.name)
                continue
            location = location_of(table)
            with location.open_store() as store:
                if kind == "table":
                    store.drop_table(str(location.table), missing_ok=True)
                else:
                    store.drop_tunnel(store.tunnel(view.name, location.table).id)
        if is_new:
            self._registry.forget(view.name)
            for scan in view.scans:
                self._catalog.drop_scan(scan.name)
                self._tables.unregister(scan.name)

    # -- dropping -----------------------------------------------------------------------------------------

    def drop(self, statement: st.DropView) -> Result:
        """Stop the stream of a view, and remove its table, its state, its tunnels and its checkpoint."""
        name = str(statement.name)
        known = self._registry.find(name)
        if known is None or known.view is None:
            if statement.if_exists:
                return Result(message=f"materialized view {name} does not exist")
            raise self._unknown(name)
        self._streams.end(known)
        for scan in scans_of(known):
            self._drop_tunnel(scan, known.name)
        target = self._catalog.find_table(known.target)
        if target is not None:
            self._drop_target(target, known)
            self._tables.drop(target.name)
        self._streams.forget(known.name)
        return Result(message=f"materialized view {known.name} dropped")

    def _drop_tunnel(self, scan: ScanDefinition, view: str) -> None:
        table = self._catalog.find_table(scan.table)
        if table is None or scan.name != _scan_name(table, view):
            return
        location = location_of(table)
        with location.open_store() as store:
            try:
                tunnel = store.tunnel(view, location.table)
            except NotFoundError:
                return
            store.drop_tunnel(tunnel.id)
        self._catalog.drop_scan(scan.name)
        self._tables.unregister(scan.name)

    def _drop_target(self, target: TableDefinition, known: StreamStatus) -> None:
        location = location_of(target)
        with location.open_store() as store:
            jobs = TargetJobs(store)
            job = jobs.find(str(location.table))
            if job is not None:
                jobs.drop((*job.state_tables, *job.obsolete))
            store.drop_table(str(location.table), missing_ok=True)
            default = parse_location(default_checkpoint(store, known.name)) if store.capabilities.files else None
            if default is not None and parse_location(known.checkpoint) == default:
                store.files().remove(default.path, recursive=True)

    # -- showing ------------------------------------------------------------------------------------------

    def show(self, _: st.ShowViews) -> Result:
        columns = ("name", "state", "lag", "lag_age_seconds", "error", "query")
        rows = [
            (each.name, each.state, each.lag, each.lag_age_seconds, each.error, each.view)
            for each in self._registry.all()
            if each.view is not None
        ]
        return Result(columns, tuple(rows))

    def describe(self, statement: st.DescribeView) -> Result:
        """Return the columns of a view, its key, and the properties of its stream."""
        known = self._registry.find(str(statement.name))
        if known is None or known.view is None:
            raise self._unknown(str(statement.name))
        rows: list[tuple[str, Any]] = [("query", known.view)]
        target = self._catalog.find_table(known.target)
        if target is not None:
            location = location_of(target)
            with location.open_store() as store:
                schema = location.open_table(store).schema
            rows += [("column", f"{each.name} {type_name(each.type)}") for each in schema.columns]
            rows.append(("primary key", ", ".join(schema.primary_key)))
        described = self._streams.describe(st.DescribeStream(part=statement.part, name=statement.name))
        return Result(described.columns, (*rows, *described.rows))

    def _unknown(self, name: str) -> NotFoundError:
        known = [each.name for each in self._registry.all() if each.view is not None]
        return NotFoundError("no such materialized view in this workspace", received=name, valid=known)


def _can_be_followed(table: TableDefinition) -> bool:
    return (
        is_headrace(table.provider)
        and location_of(table).queue is None
        and bool(format_named(table.provider).tunnel_option)
    )


def _columns(plan: FollowedPlan) -> dict[str, str]:
    """Return the columns of a query's result, with their types."""
    return {field.name: type_name(field.type) for field in plan.output}


def _split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of the view's table and key by their names in lower case, and those of its stream."""
    own = {name.lower() for name in _OWN_OPTIONS}
    for name in options:
        if name.lower() == "overwrite":
            raise OptionError(
                "a materialized view has its own table, so it overwrites none",
                received=name,
                valid=(*_OWN_OPTIONS, *(each for each in KNOWN if each != name)),
            )
    return (
        {name.lower(): value for name, value in options.items() if name.lower() in own},
        {name: value for name, value in options.items() if name.lower() not in own},
    )


def _target(name: str, first: TableDefinition, own: Mapping[str, str]) -> TableDefinition:
    """Return the definition of the table of a view, by default in the store of the first table that it follows."""
    table = own.get("table", name)
    if "store" in own:
        return TableDefinition(name, "headrace", {"store": own["store"], "table": table})
    return TableDefinition(name, first.provider, overlaid(first.options, {"table": table}))


def _key(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _scan_name(table: TableDefinition, view: str) -> str:
    return f"{table.name}_of_{view}"


def _scan(table: TableDefinition, view: str) -> ScanDefinition:
    option = str(format_named(table.provider).tunnel_option)
    return ScanDefinition(_scan_name(table, view), table.name, True, {option: view, "readAs": "table"})


def _renamed(query: ScriptPart, scans: Mapping[str, str]) -> str:
    """Return a query that reads scans instead of tables, under the same names."""
    text = QueryText(query.text)
    wanted = {table.lower(): (table, scan) for table, scan in scans.items()}
    defined = next((each.name for each in text.definitions if each.name in wanted), None)
    if defined is not None:
        raise SqlError(
            f"WITH gives a query the name of a table that the view follows: {defined}",
            remedy="choose another name",
        )
    elsewhere = next(
        (each.table for each in named_elsewhere(text) if each.table and each.table.lower() in wanted), None
    )
    if elsewhere is not None:
        raise SqlError(
            f"a materialized view reads its tables in FROM clauses of SELECT: {elsewhere}",
            remedy=f"write SELECT … FROM {elsewhere} in place of TABLE, pipes, and FROM before SELECT",
        )
    edits: dict[int, tuple[int, str]] = {}
    for block in text.blocks():
        for relation in text.all_relations(block):
            if relation.table is None or relation.table.lower() not in wanted:
                continue
            if text.travels_in_time(relation.name_end):
                raise text.error("a followed query cannot have time travel", relation.name_end, remedy="leave it out")
            table, scan = wanted[relation.table.lower()]
            alias = f" AS {quote_name(table)}" if relation.alias is None else ""
            edits[relation.start] = (relation.name_end, f"{quote_name(scan)}{alias}")
    return text.render(0, len(text.tokens), [(start, end, new) for start, (end, new) in sorted(edits.items())])
