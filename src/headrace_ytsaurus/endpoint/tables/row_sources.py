"""The rows of tables for queries and lookups, from one state of the store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.model.queues.columns import ROW_INDEX, TABLET_INDEX
from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.stores.embedded.for_servers import Database, EmbeddedQueue, EmbeddedTable, catalog
from headrace_ytsaurus.endpoint.clock import timestamp_of
from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.queues import consumer_rows, producer_rows, registration_rows
from headrace_ytsaurus.endpoint.queues.pages import addressed, columns_of_queue, read_page
from headrace_ytsaurus.endpoint.storage.snapshot import SnapshotDatabase
from headrace_ytsaurus.endpoint.tables.layout import rows_of
from headrace_ytsaurus.endpoint.tables.past_states import KEPT_SECONDS
from headrace_ytsaurus.endpoint.tables.state import Table, TableKind
from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson import documents

if TYPE_CHECKING:
    from headrace_ytsaurus.endpoint.select.execution import RowSource

_PAGE_ROWS = 65536
_MOST_ROWS = 1 << 62
# Timestamps from this one on are not times, but mean the newest rows.
_FIRST_SPECIAL = 0x3FFFFFFFFFFFFF00


def check_timestamp(parameters: Parameters) -> None:
    """Raise an error if a command filters rows by age."""
    retention = parameters.number("retention_timestamp", 0)
    if retention:
        problem = "This endpoint does not hide rows by their age"
        raise refused(problem, received=f"retention_timestamp={retention}", remedy="read without it")


@contextlib.contextmanager
def reading(context: Context, parameters: Parameters) -> Iterator[Database]:
    """Yield a state of the store: at the command's timestamp, in its transaction, or now.

    Raises:
        YtError: the state at the timestamp is not kept.
    """
    transaction = context.tablet_transactions.of(parameters)
    timestamp = parameters.number("timestamp", None)
    if timestamp is not None and timestamp < _FIRST_SPECIAL:
        ((committed,),) = context.database.query("SELECT ts FROM clock")
        newest = timestamp_of(int(committed))
        if timestamp < newest:
            with context.cluster.past_states.at(timestamp) as view:
                if view is None:
                    raise refused(
                        "This endpoint keeps the newest rows only, and those at timestamps that it has generated"
                        " lately",
                        received=f"timestamp={timestamp}",
                        valid=f"{newest} or later, or one of generate_timestamp, for {KEPT_SECONDS:.0f} seconds",
                        remedy="read within a tablet transaction to see one state",
                    )
                yield view
            return
    if transaction is not None:
        with transaction.exclusive():
            yield transaction.view
        return
    database = context.database
    with database.read() as connection:
        yield SnapshotDatabase(database, connection)


class SortedRows:
    """The rows of a sorted table, in key order.

    Args:
        database: for a consistent read, a `SnapshotDatabase`.
    """

    def __init__(self, database: Database, table: Table) -> None:
        self.columns: Sequence[YtColumn] = table.schema.columns
        self._table = table
        self._handle = EmbeddedTable(database, table.name)

    def scan(self, names: Sequence[str], conditions: Sequence[Predicate]) -> Iterator[pa.RecordBatch]:
        layout = self._table.schema.layout
        # With a key range, even a full one, the scan stays on one connection.
        reader = self._handle.scan(list(names), layout.predicates(conditions), keys=KeyRange(), batch_rows=_PAGE_ROWS)
        for batch in reader:
            yield layout.from_stored(batch, names)


class QueueRows:
    """The rows of a queue, in the order of its partitions."""

    def __init__(self, database: Database, table: Table) -> None:
        self.columns: Sequence[YtColumn] = columns_of_queue(table)
        self._table = table
        self._handle = EmbeddedQueue(database, table.name)

    def scan(self, names: Sequence[str], conditions: Sequence[Predicate]) -> Iterator[pa.RecordBatch]:
        low, high = _interval(conditions, TABLET_INDEX)
        first, end = _interval(conditions, ROW_INDEX)
        for number, bounds in self._handle.bounds().items():
            if not low <= number < high:
                continue
            row, last = max(first, bounds.lower), min(end, bounds.upper)
            while row < last:
                page = read_page(self._handle, number, row, min(_PAGE_ROWS, last - row))
                yield addressed(page, self._table).select(list(names))
                row = page.next


class RowsInMemory:
    """Rows in memory."""

    def __init__(self, rows: pa.RecordBatch, columns: Sequence[YtColumn]) -> None:
        self.columns = columns
        self._rows = rows

    def scan(self, names: Sequence[str], conditions: Sequence[Predicate]) -> Iterator[pa.RecordBatch]:
        yield self._rows.select(list(names))


def source_of(database: Database, table: Table, cluster: str) -> RowSource:
    """Return the rows of a dynamic table; ``cluster`` is the name of this cluster."""
    if table.kind is TableKind.SORTED:
        return SortedRows(database, table)
    if table.kind is TableKind.QUEUE:
        return QueueRows(database, table)
    return RowsInMemory(small_table_rows(database, table, cluster), table.schema.columns)


def small_table_rows(database: Database, table: Table, cluster: str) -> pa.RecordBatch:
    """Return all rows of a small table: a consumer, a producer or the table of registrations."""
    with database.read() as connection:
        if table.kind is TableKind.CONSUMER:
            rows = consumer_rows.rows(connection, catalog.find(connection, table.name, "consumer"), cluster)
            values: Mapping[str, Sequence[Any]] = {
                "queue_cluster": [row.cluster for row in rows],
                "queue_path": [row.path for row in rows],
                "partition_index": [row.number for row in rows],
                "offset": [row.offset for row in rows],
                "meta": [row.meta for row in rows],
            }
        elif table.kind is TableKind.PRODUCER:
            sessions = producer_rows.rows(connection, catalog.find(connection, table.name, "producer"))
            values = {
                "queue_cluster": [cluster] * len(sessions),
                "queue_path": [row.queue for row in sessions],
                "session_id": [row.session for row in sessions],
                "sequence_number": [row.sequence for row in sessions],
                "epoch": [row.epoch for row in sessions],
                "user_meta": [_yson(json.loads(row.meta)) for row in sessions],
                "system_meta": [None] * len(sessions),
            }
        else:
            registrations = registration_rows.rows(connection, cluster)
            values = {
                "queue_cluster": [row.key.queue_cluster for row in registrations],
                "queue_path": [row.key.queue for row in registrations],
                "consumer_cluster": [row.key.consumer_cluster for row in registrations],
                "consumer_path": [row.key.consumer for row in registrations],
                "vital": [row.vital for row in registrations],
                "partitions": [
                    _yson(None if row.partitions is None else list(row.partitions)) for row in registrations
                ],
            }
    return rows_of(values, table.schema.columns)


def _yson(value: Any) -> bytes | None:
    return None if value is None else documents.dumps(value, text=False)


def _interval(conditions: Sequence[Predicate], column: str) -> tuple[int, int]:
    """Return the first value and the end of the range that conditions allow for a column."""
    low, end = 0, _MOST_ROWS
    for each in conditions:
        if each.column != column:
            continue
        values = each.value if isinstance(each.value, tuple) else (each.value,)
        if not values or not all(isinstance(value, int) for value in values):
            continue
        if each.operator in ("=", "in", ">=", ">"):
            low = max(low, min(values) + (each.operator == ">"))
        if each.operator in ("=", "in", "<=", "<"):
            end = min(end, max(values) + (each.operator != "<"))
    return low, end
