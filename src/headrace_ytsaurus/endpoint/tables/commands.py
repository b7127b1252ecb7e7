"""The commands on dynamic tables as a whole: mounting, resharding, altering, tablet information."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.stores.embedded.for_servers import EmbeddedTable, stored_queues
from headrace_ytsaurus.endpoint.clock import timestamp_of
from headrace_ytsaurus.endpoint.context import Answer, Context
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.cypress.node import Node
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.parameters import Parameters, number_of
from headrace_ytsaurus.endpoint.queues import consumer_rows, queue_columns, queue_partitions
from headrace_ytsaurus.endpoint.queues.trimming import update_trimming
from headrace_ytsaurus.endpoint.tables import state as table_state
from headrace_ytsaurus.endpoint.tables.nodes import (
    check_role,
    make_dynamic,
    refuse_in_transaction,
    set_schema,
)
from headrace_ytsaurus.endpoint.tables.objects import queue_schema
from headrace_ytsaurus.endpoint.tables.row_sources import source_of
from headrace_ytsaurus.endpoint.tables.state import (
    FROZEN,
    MOUNTED,
    UNMOUNTED,
    Schema,
    Table,
    TableKind,
    find_table,
    new_tablets,
)
from headrace_ytsaurus.endpoint.tables.tablets import STARTS, pivots_of, sortable, starts_of, uniform_pivots
from headrace_ytsaurus.wire.errors import Code, YtError

_MAX_TABLETS = 10_000


def _range(parameters: Parameters, table: Table) -> tuple[int, int]:
    """Return the first and the last tablet of a command."""
    last = len(table.tablets) - 1
    first_index = parameters.number("first_tablet_index", 0)
    last_index = parameters.number("last_tablet_index", last)
    if not 0 <= first_index <= last_index <= last:
        raise refused(
            "First or last tablet index is out of range",
            received=f"{first_index} to {last_index}",
            valid=f"0 to {last}",
        )
    return first_index, last_index


def _dynamic(cypress: Cypress, parameters: Parameters) -> Table:
    table = find_table(cypress, parameters.path(), parameters.text("transaction_id", None))
    table.require_dynamic()
    return table


def _set_states(context: Context, parameters: Parameters, state: str, valid: Sequence[str]) -> None:
    """Change the state of tablets; tablets that already have it are unchanged."""
    table = _dynamic(context.cypress, parameters)
    first, last = _range(parameters, table)
    tablets = list(table.tablets)
    for index in range(first, last + 1):
        if tablets[index].state not in (*valid, state):
            raise YtError(
                Code.INVALID_TABLET_STATE,
                f"Tablet {tablets[index].id} is in state {tablets[index].state!r}, not {' or '.join(valid)}",
                attributes={"tablet_id": tablets[index].id, "path": table.name},
            )
        tablets[index] = dataclasses.replace(tablets[index], state=state)
    with context.database.write() as connection:
        table_state.save(connection, dataclasses.replace(table, tablets=tuple(tablets)))
        if table.kind is TableKind.QUEUE:
            queue_id = stored_queues.load(connection, table.name).id
            queue_partitions.set_auto_trimmed(connection, queue_id, range(first, last + 1), trimmed=state == MOUNTED)
        if table.kind in (TableKind.QUEUE, TableKind.CONSUMER):
            update_trimming(context, table.name)


def mount_table(context: Context, parameters: Parameters, body: bytes) -> None:
    """Make tablets readable and writable; with ``freeze``, only readable."""
    _set_states(context, parameters, FROZEN if parameters.flag("freeze") else MOUNTED, [UNMOUNTED])


def unmount_table(context: Context, parameters: Parameters, body: bytes) -> None:
    """Make tablets neither readable nor writable."""
    _set_states(context, parameters, UNMOUNTED, [MOUNTED, FROZEN])


def freeze_table(context: Context, parameters: Parameters, body: bytes) -> None:
    """Make tablets read-only."""
    _set_states(context, parameters, FROZEN, [MOUNTED])


def unfreeze_table(context: Context, parameters: Parameters, body: bytes) -> None:
    """Make frozen tablets writable."""
    _set_states(context, parameters, MOUNTED, [FROZEN])


def remount_table(context: Context, parameters: Parameters, body: bytes) -> None:
    """Only check the parameters: changed attributes of a table take effect without a remount."""
    _range(parameters, _dynamic(context.cypress, parameters))


def reshard_table(context: Context, parameters: Parameters, body: bytes) -> None:
    """Replace a range of unmounted tablets by new ones."""
    table = _dynamic(context.cypress, parameters)
    first, last = _range(parameters, table)
    for tablet in table.tablets[first : last + 1]:
        if tablet.state != UNMOUNTED:
            raise YtError(
                Code.INVALID_TABLET_STATE,
                f"Cannot reshard table {table.name}: tablet {tablet.id} is in state {tablet.state!r}",
                remedy="unmount the table",
                attributes={"tablet_id": tablet.id},
            )
    if table.kind is TableKind.QUEUE:
        _reshard_queue(context, parameters, table, first, last)
    else:
        _reshard_sorted(context, parameters, table, first, last)


def _reshard_sorted(context: Context, parameters: Parameters, table: Table, first: int, last: int) -> None:
    given = parameters.sequence("pivot_keys", None)
    if given is None:
        count = parameters.number("tablet_count", least=1, most=_MAX_TABLETS)
        if parameters.flag("uniform"):
            if last - first + 1 != len(table.tablets):
                raise refused("Only all tablets together are resharded uniformly", received=f"{first} to {last}")
            given = uniform_pivots(table.schema, count)
        elif count == 1:
            given = [list(table.tablets[first].pivot)]
        else:
            given = _pivots_of_rows(context, table, first, last, count)
    pivots = pivots_of(given, table.schema)
    if pivots[0] != table.tablets[first].pivot:
        raise refused(
            "The first pivot key must match that of the first tablet that is resharded",
            received=repr(pivots[0]),
            valid=repr(table.tablets[first].pivot),
        )
    before, after = table.tablets[:first], table.tablets[last + 1 :]
    all_pivots = [*(list(tablet.pivot) for tablet in before), *map(list, pivots), *(list(t.pivot) for t in after)]
    pivots_of(all_pivots, table.schema)
    tablets = (*before, *new_tablets(len(pivots), pivots=pivots), *after)
    with context.database.write() as connection:
        table_state.save(connection, dataclasses.replace(table, tablets=tablets))


def _pivots_of_rows(context: Context, table: Table, first: int, last: int, count: int) -> list[list[Any]]:
    """Return the keys that split the rows of tablets into parts of about equal size.

    As on a cluster, there are fewer keys than ``count`` if there are not enough rows.
    """
    pivots = [list(tablet.pivot) for tablet in table.tablets]
    names = [column.name for column in table.schema.keys]
    with context.database.read():
        batches = list(source_of(context.database, table, context.cluster.name).scan(names, []))
    rows = pa.Table.from_batches(batches) if batches else None

    def key(number: int) -> list[Any]:
        assert rows is not None
        return [column[number].as_py() for column in rows.columns]

    def begin(tablet: int) -> int:
        size = 0 if rows is None else rows.num_rows
        if tablet >= len(pivots):
            return size
        return bisect.bisect_left(range(size), sortable(pivots[tablet]), key=lambda number: sortable(key(number)))

    low, high = begin(first), begin(last + 1)
    numbers = sorted({low + number * (high - low) // count for number in range(1, count)} - {low})
    if not numbers:
        return pivots[first : last + 1][:count]
    return [pivots[first], *map(key, numbers)]


def _reshard_queue(context: Context, parameters: Parameters, table: Table, first: int, last: int) -> None:
    count = parameters.number("tablet_count", least=1, most=_MAX_TABLETS)
    known = last - first + 1
    added = count - known
    rows, weights = (parameters.sequence(name, None) for name in STARTS)
    begins = starts_of(rows, weights, count, added)
    cluster = context.cluster.name
    with context.database.write() as connection:
        queue = stored_queues.load(connection, table.name)
        consumer_rows.release(connection, queue.id, table.name, cluster, last + 1)
        if added > 0:
            queue_partitions.insert(connection, queue.id, last, added)
        elif added < 0:
            consumer_rows.release(connection, queue.id, table.name, cluster, first + count)
            queue_partitions.remove_empty(connection, queue.id, first + count, -added)
        queue_partitions.set_starts(connection, queue.id, {first + number: start for number, start in begins.items()})
        consumer_rows.adopt(connection, queue.id, table.name, cluster)
        tablets = (
            *table.tablets[: first + min(known, count)],
            *new_tablets(max(added, 0)),
            *table.tablets[last + 1 :],
        )
        table_state.save(connection, dataclasses.replace(table, tablets=tablets))


def alter_table(context: Context, parameters: Parameters, body: bytes) -> None:
    """Change the schema of a table, as far as its rows allow it, or make a static table dynamic."""
    table = find_table(context.cypress, parameters.path(), parameters.text("transaction_id", None))
    given = parameters.value("schema", None)
    schema = table.schema if given is None else Schema.parse(given)
    if table.schema.binary_strings:
        schema = schema.of_bytes
    if table.kind is TableKind.STATIC:
        known, table = table.schema, dataclasses.replace(table, schema=schema)
        if parameters.flag("dynamic"):
            make_dynamic(context, table)
        elif given is not None:
            node = table.node
            context.cypress.locks.need(node.chain, node.id, node.path)
            _check_order_kept(context, node, known, schema)
            set_schema(context.cypress, table)
            context.cypress.touch(context.now, node)
        return
    refuse_in_transaction(table.node, "altered")
    if not parameters.flag("dynamic", True):
        raise refused("A dynamic table does not become a static one", received=table.name)
    if given is None:
        return
    if any(tablet.state != UNMOUNTED for tablet in table.tablets):
        raise refused(f"Cannot change schema of {table.name}: it is mounted", remedy="unmount the table")
    added = _added_columns(table, schema)
    with context.database.write() as connection:
        columns = (*table.schema.columns, *added)
        new = dataclasses.replace(table, schema=dataclasses.replace(table.schema, columns=columns, strict=True))
        if added and table.kind is TableKind.SORTED:
            wanted = {column.name: column.type for column in added}
            EmbeddedTable(context.database, table.name).add_columns(wanted)
        elif added and table.kind is TableKind.QUEUE:
            queue_columns.add(connection, table.name, queue_schema(new.schema))
        check_role(new)
        table_state.save(connection, new)


def _check_order_kept(context: Context, node: Node, former: Schema, schema: Schema) -> None:
    """Raise an error if a schema has a sort order or unique keys that the rows of a static table may not have."""
    sorted_so = former.key_names[: len(schema.key_names)] == schema.key_names
    unique = not schema.unique_keys or (former.unique_keys and schema.key_names == former.key_names)
    if not (sorted_so and unique) and context.cluster.contents.totals(node.chain, node.id)[1]:
        raise refused(
            f"Cannot change schema of {node.path}: its rows do not have this order, or their keys may not be unique",
            received=", ".join(schema.key_names),
            valid=", ".join(former.key_names) or "no key columns",
            remedy="write the rows into a table that has the schema",
        )


def _added_columns(table: Table, schema: Schema) -> tuple[Any, ...]:
    """Return the columns of a schema that a table does not have; the schema must have all of the table's columns."""
    known = {column.name: column for column in table.schema.columns}
    given = {column.name: column for column in schema.columns}
    for name, column in known.items():
        other = given.get(name)
        if other is None or (other.yt, other.sort_order, other.required) != (
            column.yt,
            column.sort_order,
            column.required,
        ):
            raise refused(
                f"Cannot change schema of {table.name}: column {name!r} would be removed or changed",
                valid="all columns as they are, and more that are not required",
            )
    added = tuple(column for name, column in given.items() if name not in known)
    for column in added:
        if column.required or column.sort_order is not None:
            raise refused(
                f"Cannot change schema of {table.name}: new column {column.name!r} is a key column, or required"
            )
    return added


def get_table_pivot_keys(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the pivot keys of a sorted table."""
    table = _dynamic(context.cypress, parameters)
    return Answer.structured([list(tablet.pivot) for tablet in table.tablets])


def get_tablet_infos(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the numbers of all and of trimmed rows of tablets."""
    table = _dynamic(context.cypress, parameters)
    indexes = parameters.sequence("tablet_indexes")
    now = timestamp_of(context.now)
    with context.database.read() as connection:
        bounds = []
        if table.kind is TableKind.QUEUE:
            bounds = stored_queues.partitions(connection, stored_queues.load(connection, table.name))
    infos = []
    for index in (number_of(each, "parameter /tablet_indexes") for each in indexes):
        table.tablet(index)
        table.require_mounted(index, reading=True)
        partition = bounds[index] if bounds else None
        written = 0 if partition is None or not partition.last_commit else round(partition.last_commit * 1e6)
        infos.append(
            {
                "total_row_count": 0 if partition is None else partition.bounds.upper,
                "trimmed_row_count": 0 if partition is None else partition.bounds.lower,
                "delayed_lockless_row_count": 0,
                "barrier_timestamp": now,
                "last_write_timestamp": timestamp_of(written) if written else 0,
                "tablet_errors": [],
            }
        )
    return Answer.structured({"tablets": infos})


def get_tablet_errors(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return no errors: tablets of the endpoint have none."""
    _dynamic(context.cypress, parameters)
    return Answer.structured({"tablet_errors": {}, "replication_errors": {}})
