"""Streams whose statement is ``MIRROR``."""

from __future__ import annotations

from headrace.derived.mirror.evolution import EVOLVE
from headrace.derived.mirror.history import HISTORY_COLUMNS
from headrace.derived.mirror.statement import Mirror
from headrace.derived.mirror.stream import MirrorStream, mirror
from headrace.errors import NotFoundError, OptionError, SqlError, UnsupportedError
from headrace.formats.registry import DEFAULT_FORMAT, format_named
from headrace.options.option import SOURCE
from headrace.streaming_sql.catalog import TableDefinition
from headrace.streaming_sql.format_options import options_for_use
from headrace.streaming_sql.kinds.kind import DefinedStream, ReadyStream, StreamKind
from headrace.streaming_sql.providers import is_headrace


class MirrorStreams(StreamKind):
    """``MIRROR``: a table of a store follows another table."""

    table_read = "rows and changes"

    def prepare(self, stream: DefinedStream) -> ReadyStream:
        query = self._query(stream)
        return stream.ready(query.start, stream.sink_options(), query.source_options)

    def properties(self, stream: DefinedStream) -> list[tuple[str, str]]:
        query = self._query(stream)
        query.check()
        added = f"all versions, with {', '.join(HISTORY_COLUMNS)}" if query.history else "the current rows"
        return [("keeps", added), ("tunnel", query.tunnel_name), ("changes of columns", query.schema_change)]

    def plan(self, stream: DefinedStream) -> str:
        query = self._query(stream)
        each = "every change is a version" if query.history else "the last change of each key is a put or a delete"
        return f"table {query.source.table} -> tunnel {query.tunnel_name} -> {each} -> table {query.target_table}"

    def _query(self, stream: DefinedStream) -> MirrorStream:
        body, options = stream.statement.body, stream.options
        assert isinstance(body, Mirror)
        if stream.target is None or not is_headrace(stream.target.provider):
            raise UnsupportedError(
                f"stream {stream.name} mirrors into a table that is in no store",
                received=str(body.target),
                remedy="define it: CREATE TABLE … USING headrace OPTIONS (store = '…', table = '…')",
            )
        sink_options = stream.sink_options()
        if options.output_mode == "complete":
            raise OptionError("a mirror has no output mode", received=options.output_mode, remedy="leave it out")
        return mirror(
            self._spark,
            checkpoint=options.checkpoint,
            history=body.history,
            name=stream.name,
            schema_change=options.schema_change or EVOLVE,
            trigger=options.trigger,
            options=self._source_options(str(body.source)),
            to_format=stream.target.provider.lower(),
            to_options=sink_options,
        )

    def _source_options(self, name: str) -> dict[str, str]:
        """Return the options of a table, or of a streaming scan of a table."""
        scan = self._catalog.find_scan(name)
        if scan is not None and not scan.streaming:
            raise SqlError(f"{name} is a batch scan", remedy="mirror its table, or a scan that is USING STREAM")
        table = self._catalog.find_table(name if scan is None else scan.table)
        if table is None:
            raise NotFoundError(
                "no such table to mirror in this workspace",
                received=name,
                valid=[each.name for each in self._catalog.tables()],
            )
        _check_source(table)
        return options_for_use(table.provider, table.resolved_options({} if scan is None else scan.options), SOURCE)


def _check_source(table: TableDefinition) -> None:
    if not is_headrace(table.provider) or format_named(table.provider) is not DEFAULT_FORMAT:
        raise UnsupportedError(
            f"table {table.name} cannot be mirrored as it is defined",
            received=f"USING {table.provider}",
            valid=f"USING {DEFAULT_FORMAT.name}",
        )
