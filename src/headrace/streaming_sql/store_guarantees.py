"""The guarantee of a stream that writes into a store, as ``EXPLAIN STREAM`` and the web page show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.formats.registry import format_named
from headrace.streaming_sql.catalog import Catalog, ScanDefinition, TableDefinition
from headrace.streaming_sql.locations import location_of
from headrace.streaming_sql.providers import is_headrace


def store_guarantee(
    target: TableDefinition, sink_options: Mapping[str, str], catalog: Catalog, scans: Iterable[ScanDefinition]
) -> str:
    """Return the guarantee of the target's store, and when the consumers of the stream advance.

    Args:
        sink_options: the options of the stream that override those of the target.
        scans: the scans that the stream reads.
    """
    with location_of(target, sink_options).open_store() as store:
        parts = [store.capabilities.guarantee]
        in_transaction = store.id if store.capabilities.transactions else None
    for scan in scans:
        table = catalog.find_table(scan.table)
        if not scan.streaming or table is None or not is_headrace(table.provider):
            continue
        options = {name.lower(): value for name, value in table.resolved_options(scan.options).items()}
        consumer = options.get(format_named(table.provider).consumer_option or "")
        if not consumer:
            continue
        with location_of(table, scan.options).open_store() as source:
            same = source.id == in_transaction
        when = "in the same transaction as the rows are written" if same else "when Spark asks for the next batch"
        parts.append(f"consumer {consumer} advances {when}")
    return "; ".join(parts)
