"""``EXPLAIN STREAM``: the sources, the sink, the guarantee and the plan of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.options.secrets import hide, secret_values
from headrace.streaming_sql.catalog import Catalog, ScanDefinition, TableDefinition, overlaid
from headrace.streaming_sql.kinds.kind import DefinedStream, StreamKind
from headrace.streaming_sql.providers import is_headrace, is_of_files
from headrace.streaming_sql.scripts import options_text
from headrace.streaming_sql.store_guarantees import store_guarantee
from headrace.streaming_sql.stream_options import StreamOptions
from headrace.streaming_sql.tables import Tables


def explanation(
    stream: DefinedStream, kind: StreamKind, catalog: Catalog, tables: Tables
) -> tuple[tuple[str, str], ...]:
    """Return the properties of a stream and their values, without starting it."""
    body, options, target = stream.statement.body, stream.options, stream.target
    scans, without_scan = tables.definitions_in(body.reads)
    rows = [("stream", stream.name)]
    for scan in scans:
        table = catalog.find_table(scan.table)
        rows.append(("source", f"{scan.name}: {scan.kind} scan of {_table_text(scan.table, table, scan.options)}"))
    rows += [
        ("source", f"{table.name}: {kind.table_read} of {_table_text(table.name, table, {})}") for table in without_scan
    ]
    rows += [
        ("sink", _table_text(str(body.target), target, options.sink)),
        *kind.properties(stream),
        ("trigger", options.trigger_text),
        ("checkpoint", stream.checkpoint),
        ("guarantee", _guarantee(target, options, catalog, scans)),
        ("plan", hide(kind.plan(stream), tables.secrets() | secret_values(stream.statement.options))),
    ]
    return tuple(rows)


def _guarantee(
    target: TableDefinition | None, options: StreamOptions, catalog: Catalog, scans: Iterable[ScanDefinition]
) -> str:
    if target is None:
        return "as Spark's own table promises"
    if is_headrace(target.provider):
        return store_guarantee(target, options.sink, catalog, scans)
    if is_of_files(target.provider):
        return "exactly once (Spark's sink keeps a log of its batches)"
    return f"as the sink of format {target.provider} promises; at least once for most"


def _table_text(name: str, table: TableDefinition | None, over: Mapping[str, str]) -> str:
    if table is None:
        return f"{name} (Spark's own table)"
    return f"{name} USING {table.provider} ({options_text(overlaid(table.options, over))})"
