"""``CREATE STREAM … INSERT INTO … SELECT`` over scans with ``readAs = 'table'``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.batches.sinks.jobs import state_name
from headrace.derived.follow.plan import FollowedPlan
from headrace.derived.follow.planning import read_plan
from headrace.derived.follow.scans import FollowedScan
from headrace.derived.follow.settings import with_variables
from headrace.derived.follow.sources import ScanFrames, sources
from headrace.derived.follow.stream import FollowedStream, followed_stream
from headrace.derived.gathering.tree import Node, RowCount, blocks, expensive
from headrace.derived.own_names import inner_groups
from headrace.derived.state.state_tables import keeps_previous
from headrace.errors import OptionError, SqlError
from headrace.formats.old_rows import check_old_rows, check_store
from headrace.formats.registry import format_named, source_of
from headrace.ports import Store
from headrace.sql_text.lexer import quote_name
from headrace.sql_text.script import ScriptPart, StreamBody
from headrace.streaming_sql.catalog import ScanDefinition, TableDefinition
from headrace.streaming_sql.kinds.kind import DefinedStream, ReadyStream, StreamKind
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.locations import location_of
from headrace.streaming_sql.providers import is_headrace

_KEPT = {
    "count_rows": "a count in the row of the group",
    "count": "a count in the row of the group",
    "sum": "an exact sum and a count in the row of the group",
    "avg": "an exact sum and a count in the row of the group; their quotient is rounded once",
    "min": "each value with its count in the table of values; the least one also in the row of the group",
    "max": "each value with its count in the table of values; the greatest one also in the row of the group",
    "count_distinct": "each value with its count in the table of values; their number also in the row of the group",
}


class FollowedInserts(StreamKind):
    """``INSERT INTO`` with a query over followed scans: the target holds its result over the current rows."""

    def reads(self, body: StreamBody) -> bool:
        """Return whether a statement is of this kind."""
        return isinstance(body, st.Insert) and bool(self._scans(body.query))

    def check_replaceable(self, stream: DefinedStream) -> None:
        """Accept each stream: `prepare` checks whether its text can replace the one before."""

    def change(self, stream: DefinedStream) -> list[tuple[str, str]]:
        followed = self._stream(stream)
        with followed.arguments.store.open() as store:
            change = followed.checked(store).change(store)
        return [("text", "unchanged")] if change is None else change.properties()

    def prepare(self, stream: DefinedStream) -> ReadyStream:
        followed = self._stream(stream)
        with followed.arguments.store.open() as store:
            checked = followed.checked(store)
            if checked.replace:
                # Before the stream with the text before is stopped.
                checked.change(store)
        return stream.ready(followed.start)

    def properties(self, stream: DefinedStream) -> list[tuple[str, str]]:
        followed = self._stream(stream)
        with followed.arguments.store.open() as store:
            checked = followed.checked(store)
            change = checked.change(store) if checked.replace else None
            replaced = [] if change is None else change.properties()
            return [
                ("output mode", "update"),
                *replaced,
                *plan_properties(checked.plan, store, checked.target.name, checked.key(store), self._counts(stream)),
            ]

    def _counts(self, stream: DefinedStream) -> dict[str, RowCount]:
        assert isinstance(stream.statement.body, st.Insert)
        return self.counts(stream.statement.body.query)

    def counts(self, query: ScriptPart, tables: Sequence[TableDefinition] = ()) -> dict[str, RowCount]:
        """Return the numbers of rows of followed tables by scan, as far as a store knows them without reading rows.

        Args:
            tables: the tables in the query that it would follow by new scans.
        """
        counts = dict[str, RowCount]()
        scanned = [(scan.name, self._catalog.find_table(scan.table), scan.options) for scan in self._scans(query)]
        for name, table, options in [*scanned, *((table.name, table, {}) for table in tables)]:
            location = None if table is None else location_of(table, options)
            if location is None or not location.table:
                continue
            with location.open_store() as store:
                size = store.table(location.table).size()
            if size.rows is not None:
                counts[name.lower()] = RowCount(size.rows, size.rows_exact)
        return counts

    def result_of(self, query: ScriptPart, tables: Sequence[TableDefinition] = ()) -> FollowedPlan:
        """Return the plan of a query over followed scans, which has the columns of its result.

        Args:
            tables: the tables in the query that it would follow by new scans.

        Raises:
            OptionError: one of these does not keep pre-images.
            UnsupportedError: the store of one cannot.
        """
        text, _ = with_variables(self._spark, self._tables.rewritten(query))
        scans = [FollowedScan.of(name, *each) for name, each in self._frames(query).items()]
        return read_plan(self._spark, text, [*scans, *map(self._new_scan, tables)])

    def _new_scan(self, definition: TableDefinition) -> FollowedScan:
        location = location_of(definition)
        with location.open_store() as store:
            table = location.open_table(store)
            check_store(store.capabilities)
            check_old_rows(table)
            key = table.schema.primary_key
        return FollowedScan(definition.name, self._spark.table(quote_name(definition.name)).schema, key)

    def _frames(self, query: ScriptPart) -> dict[str, ScanFrames]:
        return {scan.name: self._tables.followed(scan.name) for scan in self._scans(query)}

    def _stream(self, stream: DefinedStream) -> FollowedStream:
        insert, target = stream.statement.body, stream.target
        assert isinstance(insert, st.Insert)
        if target is None or not is_headrace(target.provider):
            raise SqlError(
                f"stream {stream.name} follows a table, and its target cannot delete rows",
                received=f"{insert.target}, {'a table of Spark' if target is None else f'format {target.provider}'}",
                remedy="INSERT INTO a table of a store: CREATE TABLE … USING headrace OPTIONS (store = …, table = …)",
            )
        sink_options = stream.sink_options()
        _check_mode(stream.name, stream.statement.options)
        text = self._tables.rewritten(insert.query)
        frames = self._frames(insert.query)
        sink = source_of(target.provider, sink_options)
        return followed_stream(
            self._spark,
            text,
            frames,
            sink,
            stream.arguments(self._spark, sink),
            columns=insert.columns,
            overwrite=stream.options.overwrite,
            allow_full_read=stream.options.allow_full_read,
            replace=stream.statement.replace,
        )

    def _scans(self, query: ScriptPart) -> list[ScanDefinition]:
        """Return the followed scans that a query names."""
        scans, _ = self._tables.definitions_in(query)
        return [scan for scan in scans if self.is_followed(scan)]

    def is_followed(self, scan: ScanDefinition) -> bool:
        """Return whether a scan has readAs = 'table'."""
        if not scan.streaming:
            return False
        table = self._catalog.find_table(scan.table)
        return (
            table is not None
            and is_headrace(table.provider)
            and format_named(table.provider).follows_tables(table.resolved_options(scan.options))
        )


def _check_mode(name: str, options: Mapping[str, str]) -> None:
    """Raise `OptionError` for an output mode other than update. It may be omitted."""
    for option, value in options.items():
        if option.lower() == "outputmode" and value.strip().lower() != "update":
            raise OptionError(
                f"stream {name} follows a table: it changes and deletes single rows of its target",
                received=f"outputMode = {value!r}",
                valid="update",
                remedy="append cannot remove rows, and complete would write all of them in each batch; to start with "
                "an empty target set overwrite = 'true'",
            )


def plan_properties(
    plan: FollowedPlan, store: Store, target: str, primary_key: Sequence[str], counts: Mapping[str, RowCount]
) -> Iterator[tuple[str, str]]:
    """Yield the properties of a followed query.

    Args:
        store: the store of the target.
        target: the name of the target.
        primary_key: its primary key.
        counts: the rows of followed tables by scan, as far as they are known.
    """
    query = plan.query
    for scan in plan.scans:
        yield "followed", f"{scan.name}, by its key ({', '.join(scan.key)})"
    for group in sources(plan.scans):
        if (tunnel := group[0].tunnel) is not None:
            names = ", ".join(scan.name for scan in group)
            yield "one tunnel", f"{tunnel.name}: {names}; a batch has whole transactions of its tables"
    for name in query.others:
        yield "static table", f"{name}: read when the stream starts; its content must not change"
    key = ", ".join(primary_key)
    states, gathering = plan.states(keeps_previous=keeps_previous(store)), plan.gathering
    name = state_name(store, target, "")
    tables: list[str] = []
    if gathering is not None:
        tree = blocks(gathering, counts)
        if query.groups is not None:
            calls = ", ".join(call.text for call in query.groups.aggregates)
            tree = Node(f"groups by ({key}): {calls or 'no aggregates'}, merged with the changed rows", inner=[tree])
        yield "blocks", "\n".join(Node(f"{target}: a row for each ({key})", inner=[tree]).lines())
        yield from (("expensive", line) for line in expensive(gathering, counts))
        tables += gathering.state(f"{name}_")
    for number, inner in plan.inner.items():
        kept = inner.states(keeps_previous=False, number=number)
        assert inner.query.groups is not None, "an inner query is one of groups"
        assert kept is not None
        for call in inner.query.groups.aggregates:
            yield "aggregate", f"{call.text} of {inner_groups(number)}: {_KEPT[call.kind]}"
        tables += kept.tables(f"{name}_")
    if states is None or query.groups is None:
        if gathering is None:
            yield "rows", f"the last row of a batch for each key ({key}) is put, or the key is deleted"
            yield "state tables", "none"
            return
        yield "rows", f"a row of the result for each key ({key}), which each batch checks"
    else:
        of_groups = f"a row for each group in {target}, with the key ({key}); deleted with the last row of the group"
        yield "groups", of_groups
        for call in query.groups.aggregates:
            yield "aggregate", f"{call.text}: {_KEPT[call.kind]}"
        tables += states.tables(f"{name}_")
    where = f"in the store of {target}, published in one transaction with it"
    if keeps_previous(store):
        where = f"in the store of {target}; each row also keeps its state before the last batch, which can be repeated"
    yield "state tables", f"{', '.join(tables)}: named {name[:-12]}…, {where}"
