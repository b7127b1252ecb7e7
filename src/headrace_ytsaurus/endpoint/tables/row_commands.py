"""The commands that write, look up, lock and trim rows of dynamic tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.queues.columns import CUMULATIVE_DATA_WEIGHT, TABLET_INDEX, TIMESTAMP
from headrace.model.tables.changes import RowChange
from headrace.stores.embedded.for_servers import Database, EmbeddedQueue, EmbeddedTable
from headrace_ytsaurus.endpoint.context import Answer, Context
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.formats import Format, read_rows, write_items, write_rows
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.queues.consumer_rows import ConsumerRow
from headrace_ytsaurus.endpoint.queues.producer_sessions import session_rows
from headrace_ytsaurus.endpoint.tables.layout import require_values
from headrace_ytsaurus.endpoint.tables.row_changes import (
    Change,
    ConsumerChange,
    QueueChange,
    RowLock,
    SessionChange,
    TableChange,
)
from headrace_ytsaurus.endpoint.tables.row_sources import check_timestamp, reading, small_table_rows
from headrace_ytsaurus.endpoint.tables.state import Table, TableKind, find_table
from headrace_ytsaurus.endpoint.tables.tablet_transactions import TabletTransactions
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson.rows_decoding import Decoded

_TABLET_INDEX = YtColumn.of(TABLET_INDEX, "int64", required=False)


def table_to_change(cypress: Cypress, parameters: Parameters) -> Table:
    """Return the dynamic table that a command writes to."""
    table = find_table(cypress, parameters.path())
    table.require_dynamic()
    if table.kind is TableKind.REGISTRATIONS:
        raise refused(f"{table.name} is written by register_queue_consumer and unregister_queue_consumer only")
    return table


def written_columns(table: Table) -> tuple[YtColumn, ...]:
    """Return the columns that clients can write."""
    if table.kind is not TableKind.QUEUE:
        return table.schema.columns
    from_store = (TIMESTAMP, CUMULATIVE_DATA_WEIGHT)
    own = tuple(column for column in table.schema.columns if column.name not in from_store)
    return (*own, _TABLET_INDEX)


def _must_be_sorted(table: Table) -> None:
    if not table.sorted:
        raise YtError(Code.TABLE_MUST_BE_SORTED, f"Table {table.name} is not sorted", attributes={"path": table.name})


def insert_rows(context: Context, parameters: Parameters, body: bytes) -> None:
    """Write rows: replace existing ones or, with ``update``, set only the given columns."""
    table = table_to_change(context.cypress, parameters)
    decoded = read_rows(body, context.input_format, written_columns(table), table.name)
    if table.kind in (TableKind.CONSUMER, TableKind.PRODUCER):
        _insert_offsets_or_sessions(context, parameters, table, decoded)
        return
    changes = list(_changes(context.database, parameters, table, decoded))
    _write(context.tablet_transactions, parameters, table, changes if decoded.rows.num_rows else [])


def _write(transactions: TabletTransactions, parameters: Parameters, table: Table, changes: Sequence[Change]) -> None:
    """Write changes of a table; without any, only check that it can be written."""
    if changes:
        transactions.write(parameters, changes)
    else:
        table.require_mounted()


def _changes(database: Database, parameters: Parameters, table: Table, decoded: Decoded) -> Iterator[Change]:
    """Yield the changes that insert rows into a sorted table or a queue."""
    if table.kind is TableKind.QUEUE:
        yield QueueChange.of(database, table, decoded.rows)
    elif parameters.flag("update"):
        yield from _updates(database, table, decoded, aggregate=parameters.flag("aggregate"))
    else:
        aggregate = parameters.flag("aggregate")
        yield TableChange.of(database, table, RowChange.PUT, decoded.rows, aggregate=aggregate)


def _updates(database: Database, table: Table, decoded: Decoded, *, aggregate: bool) -> Iterator[Change]:
    """Yield one change for rows with the same set of columns. Rows with the same key keep their order."""
    keys = {column.name for column in table.schema.keys}
    optional = [name for name in decoded.written if name not in keys]
    if not decoded.rows.num_rows:
        return
    written = np.zeros((decoded.rows.num_rows, len(optional)), dtype=np.uint8)
    for place, name in enumerate(optional):
        written[:, place] = decoded.written[name].to_numpy(zero_copy_only=False)
    patterns, which = np.unique(written, axis=0, return_inverse=True)
    which = which.reshape(-1)
    hashes = table.schema.layout.hashes(table.schema.layout.to_stored(decoded.rows.select(sorted(keys))))
    if len(np.unique(hashes)) == len(hashes):
        groups = [np.flatnonzero(which == number) for number in range(len(patterns))]
    else:
        groups = np.split(np.arange(len(which)), np.flatnonzero(np.diff(which)) + 1)
    for group in groups:
        left_out = {name for place, name in enumerate(optional) if not patterns[which[group[0]], place]}
        names = [name for name in decoded.rows.schema.names if name not in left_out]
        rows = decoded.rows.select(names).take(pa.array(group))
        only_keys = len(names) == len(keys)
        if only_keys:
            # A row with only a key exists after the update; a new row has nulls.
            rest = next(column for column in table.schema.columns if column.name not in keys)
            rows = rows.append_column(rest.name, pa.nulls(rows.num_rows, rest.type))
        yield TableChange.of(database, table, RowChange.UPDATE, rows, keep_nulls=not only_keys, aggregate=aggregate)


def _insert_offsets_or_sessions(context: Context, parameters: Parameters, table: Table, decoded: Decoded) -> None:
    """Write rows of a consumer or producer."""
    rows = decoded.rows
    with context.database.write():
        if parameters.flag("update") and decoded.written:
            with reading(context, parameters) as database:
                keys = rows.select([column.name for column in table.schema.keys])
                stored, _ = _look_up(context.cluster.name, database, table, keys)
            arrays = [
                pc.if_else(decoded.written[name], values, stored.column(name)) if name in decoded.written else values
                for name, values in zip(rows.schema.names, rows.columns, strict=True)
            ]
            rows = pa.RecordBatch.from_arrays(arrays, schema=rows.schema)
        changes = _offset_or_session_changes(context.cluster.name, table, rows)
        _write(context.tablet_transactions, parameters, table, changes)


def _offset_or_session_changes(
    cluster: str, table: Table, rows: pa.RecordBatch, *, delete: bool = False
) -> list[Change]:
    """Return the changes for rows of a consumer or producer. With ``delete``, the rows are keys."""
    require_values(table.schema.columns, rows)
    if table.kind is TableKind.PRODUCER:
        return [SessionChange.of(table, row, delete=delete) for row in session_rows(rows, cluster)]
    return [ConsumerChange.of(table, _consumer_rows(rows), delete=delete)] if rows.num_rows else []


def _consumer_rows(rows: pa.RecordBatch) -> list[ConsumerRow]:
    """Return rows of a consumer; rows with only a key get the offset 0."""
    values = rows.to_pydict()
    count = rows.num_rows
    return [
        ConsumerRow(cluster, path, int(number), int(offset), meta)
        for cluster, path, number, offset, meta in zip(
            values["queue_cluster"],
            values["queue_path"],
            values["partition_index"],
            values.get("offset", [0] * count),
            values.get("meta", [None] * count),
            strict=True,
        )
    ]


def delete_rows(context: Context, parameters: Parameters, body: bytes) -> None:
    """Delete rows by their keys."""
    table = table_to_change(context.cypress, parameters)
    _must_be_sorted(table)
    keys = read_rows(body, context.input_format, table.schema.keys, table.name).rows
    if table.kind is not TableKind.SORTED:
        changes = _offset_or_session_changes(context.cluster.name, table, keys, delete=True)
    else:
        changes = [TableChange.of(context.database, table, RowChange.DELETE, keys)] if keys.num_rows else []
    _write(context.tablet_transactions, parameters, table, changes)


def lock_rows(context: Context, parameters: Parameters, body: bytes) -> None:
    """Lock rows in a tablet transaction. Its commit fails if another transaction has changed them."""
    table = table_to_change(context.cypress, parameters)
    _must_be_sorted(table)
    if table.kind is not TableKind.SORTED:
        raise refused("Rows of queue consumers and producers cannot be locked", received=table.name)
    kind = parameters.text(
        "lock_type", "shared_weak", valid=("none", "shared_weak", "shared_strong", "shared_write", "exclusive")
    )
    if parameters.text("transaction_id", None) is None:
        raise refused("Rows are locked in a tablet transaction only", remedy="start one")
    keys = read_rows(body, context.input_format, table.schema.keys, table.name).rows
    if kind != "none" and keys.num_rows:
        context.tablet_transactions.write(parameters, [RowLock.of(table, keys, exclusive=kind == "exclusive")])


def lookup_rows(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the rows with the given keys, in the order of the keys."""
    table = find_table(context.cypress, parameters.path())
    table.require_dynamic()
    _must_be_sorted(table)
    table.require_mounted(reading=True)
    check_timestamp(parameters)
    if parameters.flag("versioned"):
        raise refused("This endpoint keeps one version of a row", received="versioned=%true")
    keys = read_rows(body, context.input_format, table.schema.keys, table.name).rows
    columns = _wanted_columns(parameters, table)
    with reading(context, parameters) as database:
        rows, present = _look_up(context.cluster.name, database, table, keys)
    rows = rows.select([column.name for column in columns])
    if not parameters.flag("keep_missing_rows"):
        return Answer.rows([rows.filter(pa.array(present))], columns)
    return Answer.raw(_with_gaps(context.output_format, rows, present, columns))


def _wanted_columns(parameters: Parameters, table: Table) -> tuple[YtColumn, ...]:
    wanted = parameters.sequence("column_names", None)
    if wanted is None:
        return table.schema.columns
    by_name = {column.name: column for column in table.schema.columns}
    for name in wanted:
        if str(name) not in by_name:
            raise YtError(
                Code.COLUMN_NOT_FOUND,
                f"No such column {str(name)!r}",
                valid=", ".join(by_name),
                attributes={"path": table.name},
            )
    return tuple(by_name[str(name)] for name in wanted)


def _look_up(
    cluster: str, database: Database, table: Table, keys: pa.RecordBatch
) -> tuple[pa.RecordBatch, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return one row for each key, and a mask of the rows that exist. The content of other rows is undefined."""
    layout = table.schema.layout
    names = [column.name for column in table.schema.columns]
    if table.kind is TableKind.SORTED:
        stored = layout.to_stored(keys)
        with database.read() as connection:
            _, rows, exist = EmbeddedTable(database, table.name).fetch(connection, stored)
        return layout.from_stored(rows, names), exist
    rows = small_table_rows(database, table, cluster)
    key_names = [column.name for column in table.schema.keys]
    place_of = {tuple(row[name] for name in key_names): place for place, row in enumerate(rows.to_pylist())}
    places = [place_of.get(tuple(key[name] for name in key_names)) for key in keys.to_pylist()]
    present = np.array([place is not None for place in places], dtype=np.bool_)
    return rows.take(pa.array(places, pa.int64())), present


def _with_gaps(
    form: Format, rows: pa.RecordBatch, present: np.ndarray[Any, np.dtype[np.bool_]], columns: Sequence[YtColumn]
) -> bytes:
    """Return rows in the output format, with null for missing ones."""
    edges = [0, *(np.flatnonzero(np.diff(present.astype(np.int8))) + 1).tolist(), len(present)]
    pieces = []
    for start, end in pairwise(edges):
        if start < end and present[start]:
            pieces.append(write_rows([rows.slice(start, end - start)], columns, form))
        else:
            pieces.append(write_items([None] * (end - start), form))
    return b"".join(pieces)


def trim_rows(context: Context, parameters: Parameters, body: bytes) -> None:
    """Delete the first rows of a tablet of an ordered table."""
    table = find_table(context.cypress, parameters.path())
    table.require_dynamic()
    if table.kind is not TableKind.QUEUE:
        raise refused(f"Table {table.name} is sorted, and cannot be trimmed")
    index = parameters.number("tablet_index")
    count = parameters.number("trimmed_row_count", least=0)
    table.tablet(index)
    table.require_mounted(index)
    queue = EmbeddedQueue(context.database, table.name)
    with context.database.write():
        upper = queue.bounds()[index].upper
        if count > upper:
            raise refused(
                f"Cannot trim tablet {index} of table {table.name} after its end",
                received=f"{count}",
                valid=f"0 to {upper}",
            )
        queue.trim(index, count)
