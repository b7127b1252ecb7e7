"""The objects of the embedded store with the rows of dynamic tables; created, renamed and removed with the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import apsw
import pyarrow as pa

from headrace.model.queues.columns import CUMULATIVE_DATA_WEIGHT, TIMESTAMP, QueueSchema
from headrace.model.queues.validation import changed_options
from headrace.model.queues.values import QueueOptions
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.options import TableOptions
from headrace.model.tables.schema import Column
from headrace.stores.embedded.for_servers import (
    Database,
    EmbeddedTable,
    catalog,
    stored_queues,
    stored_tables,
    stored_tunnels,
)
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.parameters import duration_of, flag_of, number_of
from headrace_ytsaurus.endpoint.queues import consumer_rows, queue_partitions, registration_rows
from headrace_ytsaurus.endpoint.storage.snapshot import SnapshotDatabase
from headrace_ytsaurus.endpoint.tables.state import Schema, Table, TableKind
from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson.scalars import is_entity

_SECOND = 1000


def queue_schema(schema: Schema) -> QueueSchema:
    """Return the columns of a queue of the embedded store for a schema.

    Raises:
        SchemaError: the store does not support the schema.
    """
    return QueueSchema(tuple(_queue_column(column) for column in schema.columns))


def _queue_column(column: YtColumn) -> Column:
    if column.expression is not None:
        raise refused(f"Column {column.name!r} is computed, which this endpoint does not support")
    if column.name == TIMESTAMP:
        return Column(TIMESTAMP, pa.timestamp("us", tz="UTC"))
    if column.name == CUMULATIVE_DATA_WEIGHT:
        return Column(CUMULATIVE_DATA_WEIGHT, pa.int64())
    return column.column


def create(connection: apsw.Connection, table: Table, cluster: str) -> None:
    """Create the object for a new table, in the caller's write transaction."""
    kind = table.object_kind
    if kind is None:
        return
    catalog.is_taken(connection, table.name, kind, exist_ok=False)
    if kind == "table":
        stored_tables.create(connection, table.name, table.schema.layout.stored, TableOptions())
    elif kind == "queue":
        queue_id = stored_queues.create(
            connection, table.name, queue_schema(table.schema), QueueOptions(), len(table.tablets)
        )
        consumer_rows.adopt(connection, queue_id, table.name, cluster)
    else:
        catalog.create(connection, table.name, kind)
    registration_rows.adopt(connection, table.name, cluster)


def begin(connection: apsw.Connection, table: Table, begins: Mapping[int, tuple[int, int]]) -> None:
    """Set the first rows of a new queue's tablets, see `headrace_ytsaurus.endpoint.tables.tablets.starts_of`."""
    if not begins:
        return
    if table.kind is not TableKind.QUEUE:
        raise refused(f"Only tablets of ordered dynamic tables begin with trimmed rows, and {table.name} is not one")
    queue_partitions.set_starts(connection, stored_queues.load(connection, table.name).id, begins)


def drop(connection: apsw.Connection, table: Table, cluster: str) -> None:
    """Delete the object of a table with its rows, in the caller's write transaction."""
    kind = table.object_kind
    object_id = None if kind is None else catalog.find_to_drop(connection, table.name, kind, missing_ok=True)
    if object_id is None:
        return
    registration_rows.release(connection, object_id, cluster)
    if kind == "table":
        stored_tunnels.drop_all(connection, object_id)
        stored_tables.drop(connection, object_id)
    elif kind == "queue":
        consumer_rows.release(connection, object_id, table.name, cluster)
        stored_queues.drop(connection, object_id)
    else:
        dependent = "consumer_offset" if kind == "consumer" else "producer_session"
        connection.execute(f"DELETE FROM {dependent} WHERE {kind} = ?", (object_id,))
        consumer_rows.forget(connection, object_id)
        catalog.drop(connection, object_id)


def rename(connection: apsw.Connection, table: Table, old: str, cluster: str) -> None:
    """Rename the object of a moved table, in the caller's write transaction."""
    kind = table.object_kind
    if kind is None:
        return
    object_id = catalog.find(connection, old, kind)
    catalog.is_taken(connection, table.name, kind, exist_ok=False)
    # Registrations and offsets refer to the path of a queue, so they stay with the path.
    registration_rows.release(connection, object_id, cluster)
    if kind == "queue":
        consumer_rows.release(connection, object_id, old, cluster)
    connection.execute("UPDATE object SET name = ? WHERE id = ?", (table.name, object_id))
    if kind == "queue":
        consumer_rows.adopt(connection, object_id, table.name, cluster)
    registration_rows.adopt(connection, table.name, cluster)


def copy(connection: apsw.Connection, source: Table, target: Table, database: Database) -> None:
    """Copy the rows of a table to a new one, in the caller's write transaction.

    Raises:
        YtError: tables of this kind cannot be copied.
    """
    kind = source.object_kind
    if kind == "table":
        rows = EmbeddedTable(SnapshotDatabase(database, connection), source.name).scan(keys=KeyRange())
        handle = EmbeddedTable(database, target.name)
        for batch in rows:
            handle.put(batch)
    elif kind == "queue":
        ends = [catalog.find(connection, each.name, kind) for each in (source, target)]
        queue_partitions.copy(connection, *ends)
    else:
        raise refused("Queue consumers and producers are not copied", received=source.name)


def set_auto_trim(connection: apsw.Connection, table: Table, config: Any) -> None:
    """Configure the automatic trimming of a queue, and trim it once, in the caller's write transaction.

    Raises:
        YtError: the table is not a queue, or the configuration is invalid.
    """
    if table.kind is not TableKind.QUEUE:
        raise refused(f"{table.name} is not a queue, and cannot trim itself")
    if not isinstance(config, Mapping | None):
        raise refused("auto_trim_config is not a map", received=repr(config)[:200])
    given = dict(config or {})
    lifetime, retained = None, None
    if not is_entity(duration := given.get("retained_lifetime_duration")):
        lifetime, rest = divmod(duration_of(duration, "retained_lifetime_duration of auto_trim_config"), _SECOND)
        if rest:
            raise refused(
                "retained_lifetime_duration is not a whole number of seconds",
                received=repr(duration),
                valid="milliseconds, a multiple of 1000",
            )
    if not is_entity(rows := given.get("retained_rows")):
        retained = number_of(rows, "retained_rows of auto_trim_config", least=0)
    state = stored_queues.load(connection, table.name)
    changes = {
        "auto_trim": flag_of(given.get("enable", False), "enable of auto_trim_config"),
        "retained_rows": retained,
        "retained_seconds": lifetime,
    }
    options = changed_options(state.options, changes)
    catalog.set_options(connection, state.id, options)
    if options.auto_trim:
        stored_queues.trim_consumed(connection, state.id, options)
