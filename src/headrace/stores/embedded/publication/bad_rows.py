"""Rows that a table of the embedded store refuses: values that its columns cannot have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import apsw
import pyarrow as pa

from headrace.model.tables.alterations import Alteration
from headrace.model.tables.bad_rows import KEY, SCHEMA, check_columns
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import TableSchema
from headrace.ports import BadRows, RetriedRows, Write
from headrace.rows import to_arrow
from headrace.stores.embedded.tables.table import EmbeddedTable
from headrace.stores.shared import bad_rows as shared
from headrace.stores.shared.bad_rows import POSITION, Refused
from headrace.stores.shared.staging import BatchKey
from headrace.support import failpoints


def apply(
    connection: apsw.Connection,
    table: EmbeddedTable,
    write: Write,
    parts: Sequence[pa.Table],
    batch: BatchKey,
    version: int,
    ts: int,
) -> int:
    """Apply a write to a table, and put the rows that it refuses into its table of bad rows; return their number.

    Args:
        parts: the staged rows.
        version, ts: the version and timestamp of the transaction.
    """
    assert write.bad_rows is not None
    bad, schema = EmbeddedTable(table.database, write.bad_rows.table), table.schema_in(connection)
    good, refused = shared.converted(parts, write.change, lambda rows: _typed(schema, rows, write.change))
    _forget(connection, bad, good, schema, version, ts)
    if good.num_rows:
        table.apply(connection, write.change, good.drop_columns([POSITION]), version, ts)
    if refused:
        refused = shared.not_superseded(refused, [good], schema, _same)
        former = _current(connection, table, shared.keys_of(refused, schema))
        found = shared.records(
            refused, shared.former_rows(former, schema, _same), schema, _same, write.bad_rows, batch.job, batch.batch
        )
        bad.apply(connection, RowChange.PUT, found, version, ts)
    return len(refused)


def alter(
    connection: apsw.Connection, table: EmbeddedTable, bad_rows: BadRows, alteration: Alteration, version: int, ts: int
) -> None:
    """Change the columns of a table, and its bad rows with them."""
    bad, before = EmbeddedTable(table.database, bad_rows.table), table.schema_in(connection)
    table.alter_in(connection, alteration, version, ts)
    stored = _stored(connection, bad, SCHEMA.names)
    if stored.num_rows:
        moved, now = shared.altered(stored, alteration, before, table.schema_in(connection))
        bad.apply(connection, RowChange.DELETE, moved, version, ts)
        bad.apply(connection, RowChange.PUT, now, version, ts)


def retry(connection: apsw.Connection, table: EmbeddedTable, bad: EmbeddedTable, version: int, ts: int) -> RetriedRows:
    """Write the bad rows of a table again; see `headrace.ports.Store.retry_bad_rows`."""
    schema = table.schema_in(connection)

    def write(puts: pa.Table, gone: pa.Table) -> list[Refused]:
        for rows, change in ((puts, RowChange.PUT), (gone, RowChange.DELETE)):
            if rows.num_rows:
                table.apply(connection, change, rows.drop_columns([POSITION]), version, ts)
        return []

    done = shared.retry(
        _stored(connection, bad, SCHEMA.names),
        schema,
        _same,
        partial(_typed, schema),
        partial(_current, connection, table),
        write,
    )
    if done.done.num_rows:
        bad.apply(connection, RowChange.DELETE, done.done, version, ts)
    if done.left.num_rows:
        bad.apply(connection, RowChange.PUT, done.left, version, ts)
    failpoints.reach("rows-written")
    return done.outcome


def _forget(
    connection: apsw.Connection, bad: EmbeddedTable, good: pa.Table, schema: TableSchema, version: int, ts: int
) -> None:
    """Remove the bad rows with the keys of rows that the table takes."""
    taken = shared.of_keys(_stored(connection, bad, [KEY, "row"]), [good], schema, _same)
    if taken.num_rows:
        bad.apply(connection, RowChange.DELETE, taken, version, ts)


def _stored(connection: apsw.Connection, bad: EmbeddedTable, columns: Sequence[str]) -> pa.Table:
    """Return all bad rows; raise `SchemaError` if their table has other columns."""
    check_columns(bad.name, bad.schema_in(connection))
    return bad.rows_in(connection, columns)


def _current(connection: apsw.Connection, table: EmbeddedTable, keys: pa.Table) -> pa.Table:
    """Return the rows of some keys that exist."""
    _, rows, exist = table.fetch(connection, keys)
    return pa.Table.from_batches([rows]).filter(pa.array(exist))


def _typed(schema: TableSchema, rows: pa.Table | Sequence[dict[str, Any]], change: RowChange) -> pa.Table:
    return to_arrow(rows, schema, columns="keys" if change is RowChange.DELETE else "all")


def _same(keys: pa.Table) -> pa.Table:
    """Return keys as they are: keys with other values are other keys."""
    return keys
