"""What a stream into one of headrace's formats promises, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.streaming_sql.catalog import Catalog, ScanDefinition, TableDefinition
from headrace.streaming_sql.places import location_of
from headrace.streaming_sql.providers import is_headrace

_CONSUMER_OPTIONS = ("consumer", "consumer_path")


def guarantee(
    target: TableDefinition, sink_options: Mapping[str, str], catalog: Catalog, scans: Iterable[ScanDefinition]
) -> str:
    """Return the promise of the target's store, and when the consumers that the stream reads with advance.

    Args:
        sink_options: those of the stream over those of the target.
        scans: what the stream reads.
    """
    with location_of(target, sink_options).open_store() as store:
        parts = [store.capabilities.guarantee]
        in_transaction = store.id if store.capabilities.transactions else None
    for scan in scans:
        table = catalog.find_table(scan.table)
        if not scan.streaming or table is None or not is_headrace(table.provider):
            continue
        options = {name.lower(): value for name, value in table.resolved_options(scan.options).items()}
        consumer = next((options[name] for name in _CONSUMER_OPTIONS if options.get(name)), None)
        if consumer is None:
            continue
        with location_of(table, scan.options).open_store() as source:
            same = source.id == in_transaction
        when = "in the same transaction as the rows are written" if same else "when Spark asks for the next batch"
        parts.append(f"consumer {consumer} advances {when}")
    return "; ".join(parts)
