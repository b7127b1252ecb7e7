"""Rows that a table of PostgreSQL refuses: values that its columns do not have, and rows that violate a constraint.

Nothing is looked for until a publication fails. Then the batch is published once more: each write of its rows has a
savepoint, and what fails is divided until the refused rows are alone, on the server if the table permits it. Rows that
satisfy a unique or foreign key together with others are written again together with all others of this kind that were
refused, as long as fewer remain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from headrace.errors import HeadraceError, UnsupportedError
from headrace.model.tables.bad_rows import KEY, SCHEMA, check_columns
from headrace.model.tables.changes import RowChange
from headrace.ports import BadRows, RetriedRows
from headrace.rows import to_arrow
from headrace.rows.by_position import compared
from headrace.rows.json_objects import MOST_REFUSED, sift
from headrace.stores.postgres.connection import Bulk, PostgresConnection, execute
from headrace.stores.postgres.failures import REFUSALS, Passes, ViolationError
from headrace.stores.postgres.guarded import undone
from headrace.stores.postgres.publication.refused_rows import MOST_ROWS, refused_rows
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.session import CATALOG_PATH
from headrace.stores.postgres.tables.alterations import AlteredTable
from headrace.stores.postgres.tables.attempts import Care, attempts
from headrace.stores.postgres.tables.reading import fetch, selected
from headrace.stores.postgres.tables.table import rows_of_keys
from headrace.stores.postgres.tables.writing import apply, check_values, set_path, without_nul
from headrace.stores.shared import bad_rows as shared
from headrace.stores.shared.bad_rows import POSITION, Refused
from headrace.stores.shared.staging import BatchKey
from headrace.support import failpoints

_UUID = "uuid"


def check_keys(table: TableLayout) -> None:
    """Raise `UnsupportedError` if equal keys can have several texts: the bad row of a key would not be found."""
    for column in (table.column(name) for name in table.primary_key):
        if not column.is_exact and (column.base != _UUID or column.is_array):
            raise UnsupportedError(
                f"equal keys of table {table.name.text!r} can have several forms, such as 1.0 and 1.00, so that the "
                "bad row of a key would not be found",
                received=f"badRows=table, and key column {column.name!r} of type {column.base}",
                valid="keys of numbers with a fixed scale, booleans, dates, timestamps, bytea, uuid, and texts with a "
                "deterministic collation",
            )


def forget(bulk: Bulk, table: TableLayout, bad: TableLayout, keys: Callable[[], Sequence[pa.Table]], path: str) -> None:
    """Remove the bad rows of some keys, before rows with these keys are written.

    Args:
        keys: returns the keys, in the types of the table; called only if there are bad rows.
    """
    stored = _stored(bulk, bad, [KEY, "row"])
    if stored.num_rows:
        taken = shared.of_keys(stored, keys(), table.schema, partial(_canonical, table))
        _apply(bulk, bad, RowChange.DELETE, taken, path)


def alter(bulk: Bulk, change: AlteredTable, table: TableLayout, bad: TableLayout, path: str) -> None:
    """Change the bad rows of a table whose columns have changed in the transaction.

    Args:
        table: the table after the change.
    """
    stored = _stored(bulk, bad, SCHEMA.names, locked=True)
    if stored.num_rows:
        moved, now = shared.altered(stored, change.alteration, change.before.schema, table.schema)
        _apply(bulk, bad, RowChange.DELETE, moved, path)
        _apply(bulk, bad, RowChange.PUT, now, path)


def apply_apart(
    bulk: Bulk,
    connection: PostgresConnection,
    table: TableLayout,
    bad: TableLayout,
    changes: Sequence[tuple[RowChange, Sequence[pa.Table]]],
    convert: Callable[[pa.Table, RowChange], pa.Table],
    bad_rows: BadRows,
    batch: BatchKey,
) -> int:
    """Apply changes of a batch, and put the rows that the table refuses into its table of bad rows.

    Args:
        changes: PUT or DELETE, or PUT and then DELETE, each with its staged rows.
        convert: returns rows of a change in the types of the table.

    Returns:
        The number of refused rows.
    """
    schema, canonical = table.schema, partial(_canonical, table)
    good: dict[RowChange, pa.Table] = {}
    refused: list[Refused] = []
    first = 0
    for change, parts in changes:
        rows, of_change = shared.converted(parts, change, lambda part, change=change: convert(part, change), first)  # type: ignore[misc]
        refused += of_change
        first += sum(part.num_rows for part in parts)
        if rows.num_rows:
            good[change] = shared.last_of_keys(rows, table.primary_key)
    refused = shared.not_superseded(refused, good.values(), schema, canonical)
    path = connection.server.writing_path
    forget(bulk, table, bad, lambda: list(good.values()), path)
    puts, gone = good.get(RowChange.PUT), good.get(RowChange.DELETE)
    refused += _write_apart(_Rows(bulk, connection, table), puts, gone)
    if refused:
        keys = shared.keys_of(refused, schema)
        former = shared.former_rows(_current(bulk, connection, table, keys), schema, canonical)
        found = shared.records(refused, former, schema, canonical, bad_rows, batch.job, batch.batch)
        _apply(bulk, bad, RowChange.PUT, found, path)
    return len(refused)


def retry(bulk: Bulk, connection: PostgresConnection, table: TableLayout, bad: TableLayout) -> RetriedRows:
    """Write the bad rows of a table again; see `headrace.ports.Store.retry_bad_rows`.

    Bad rows are locked before rows of the table, as in a publication.
    """

    def convert(rows: Sequence[dict[str, Any]], change: RowChange) -> pa.Table:
        generated = {column.name for column in table.columns if column.generated}
        stored = [{name: value for name, value in row.items() if name not in generated} for row in rows]
        typed = to_arrow(stored, table.written, columns="keys" if change is RowChange.DELETE else "all")
        check_values(typed, table)
        return typed

    rows = _Rows(bulk, connection, table)
    done = shared.retry(
        _stored(bulk, bad, SCHEMA.names, locked=True),
        table.schema,
        partial(_canonical, table),
        convert,
        partial(_current, bulk, connection, table),
        lambda puts, gone: _write_apart(rows, puts, gone, most=puts.num_rows + gone.num_rows),
    )
    path = connection.server.writing_path
    _apply(bulk, bad, RowChange.DELETE, done.done, path)
    _apply(bulk, bad, RowChange.PUT, done.left, path)
    failpoints.reach("rows-written")
    return done.outcome


def _write_apart(
    rows: _Rows, puts: pa.Table | None, gone: pa.Table | None, *, most: int = MOST_REFUSED
) -> list[Refused]:
    """Write rows, and return the rows that the server refuses.

    Args:
        puts: rows to put, with their `POSITION`, each key once.
        gone: keys to delete, with their `POSITION`. One that is also put is not deleted.
        most: the maximum number of refused rows.
    """
    key = rows.table.primary_key
    if puts is not None and gone is not None:
        deleted, put = (_canonical(rows.table, each.select(key)) for each in (gone, puts))
        gone = gone.take(compared(deleted, put, key).only_left)
    refused: list[Refused] = []
    while True:
        found = _sifted(rows, puts, gone, most)
        final = [each for each in found if not _may_pass(each)]
        refused += final
        again = [each for each in found if _may_pass(each)]
        if not again or len(again) == _count(puts) + _count(gone):
            return [each._replace(row=each.row.drop_columns([POSITION])) for each in refused + again]
        puts, gone = (
            pa.concat_tables(tables) if (tables := [each.row for each in again if each.change is change]) else None
            for change in (RowChange.PUT, RowChange.DELETE)
        )


def _sifted(rows: _Rows, puts: pa.Table | None, gone: pa.Table | None, most: int) -> list[Refused]:
    deletes = _count(gone)

    def attempt(begin: int, end: int) -> None:
        first = None if gone is None or begin >= deletes else gone.slice(begin, min(end, deletes) - begin)
        second = (
            None if puts is None or end <= deletes else puts.slice(max(begin - deletes, 0), end - max(begin, deletes))
        )
        attempts(lambda care: rows.attempt(second, first, care), end - begin)

    def apart(begin: int, end: int) -> list[tuple[int, HeadraceError]] | None:
        if end <= deletes and gone is not None:
            found = rows.refused(RowChange.DELETE, gone.slice(begin, end - begin), most)
        elif begin >= deletes and puts is not None:
            found = rows.refused(RowChange.PUT, puts.slice(begin - deletes, end - begin), most)
        else:
            return None
        return None if found is None else [(begin + index, error) for index, error in found]

    refused = []
    for index, error in sift(deletes + _count(puts), attempt, REFUSALS, most=most, apart=apart)[1]:
        changes, place = (gone, index) if index < deletes else (puts, index - deletes)
        assert changes is not None
        change = RowChange.DELETE if index < deletes else RowChange.PUT
        row = changes.slice(place, 1)
        refused.append(Refused(row.column(POSITION)[0].as_py(), change, row, error))
    return refused


@dataclass(frozen=True)
class _Rows:
    """Writes rows into a table, in the transaction of a connection. All rows have their `POSITION`."""

    bulk: Bulk
    connection: PostgresConnection
    table: TableLayout

    def attempt(self, puts: pa.Table | None, gone: pa.Table | None, care: Care) -> None:
        """Write rows to put and keys to delete; or raise an error of `REFUSALS`, without an effect."""
        path = self.connection.server.writing_path

        def write(bulk: Bulk) -> None:
            if puts is not None:
                keys, rows = None if gone is None else gone.drop_columns([POSITION]), puts.drop_columns([POSITION])
                apply(bulk, self.table, RowChange.PUT, rows, path, gone=keys, care=care, guarded=True)
            elif gone is not None:
                keys = gone.drop_columns([POSITION])
                apply(bulk, self.table, RowChange.DELETE, keys, path, care=care, guarded=True)
            # A constraint that is checked at the commit would refuse the batch there.
            execute(bulk, "SET CONSTRAINTS ALL IMMEDIATE")
            set_path(bulk, CATALOG_PATH)

        undone(self.bulk, self.connection.address.url, write)

    def refused(self, change: RowChange, rows: pa.Table, most: int) -> list[tuple[int, HeadraceError]] | None:
        """Write the rows that the server takes, and return the others, see `refused_rows`."""
        if rows.num_rows > MOST_ROWS:
            return None
        path = self.connection.server.writing_path
        url = self.connection.address.url
        return refused_rows(self.bulk, url, self.table, change, rows.drop_columns([POSITION]), path, most)


def _may_pass(refused: Refused) -> bool:
    error: HeadraceError = refused.error
    return isinstance(error, ViolationError) and error.passes is not Passes.NEVER


def _count(rows: pa.Table | None) -> int:
    return 0 if rows is None else int(rows.num_rows)


def _stored(bulk: Bulk, bad: TableLayout, columns: Sequence[str], *, locked: bool = False) -> pa.Table:
    """Return all bad rows; raise `SchemaError` if their table has other columns."""
    check_columns(bad.name.text, bad.schema)
    statement = sql.SQL("SELECT {} FROM {} t{}").format(
        selected(bad, columns), bad.name.sql, sql.SQL(" FOR UPDATE" if locked else "")
    )
    wanted = pa.schema([bad.schema.arrow.field(name) for name in columns])
    return fetch(bulk, statement, [bad.column(name) for name in columns], wanted)


def _current(bulk: Bulk, connection: PostgresConnection, table: TableLayout, keys: pa.Table) -> pa.Table:
    """Return the rows of some keys, and lock them until the end of the transaction."""
    wanted = table.schema.arrow
    keys = without_nul(keys)

    def found(begin: int, end: int) -> pa.Table:
        some = keys.slice(begin, end - begin)
        return undone(
            bulk, connection.address.url, lambda guarded: rows_of_keys(guarded, table, some, wanted, locked=True)
        )

    # The server can refuse a key.
    return pa.concat_tables([wanted.empty_table(), *sift(keys.num_rows, found, REFUSALS, most=keys.num_rows)[0]])


def _apply(bulk: Bulk, table: TableLayout, change: RowChange, rows: pa.Table, path: str) -> None:
    if rows.num_rows:
        apply(bulk, table, change, rows, path)
        set_path(bulk, CATALOG_PATH)


def _canonical(table: TableLayout, keys: pa.Table) -> pa.Table:
    """Return keys in the one form that equal keys have: a UUID has several forms."""
    for index, name in enumerate(keys.column_names):
        if table.column(name).base == _UUID:
            plain = pc.replace_substring_regex(pc.utf8_lower(keys.column(name)), "[-{}]", "")
            keys = keys.set_column(index, name, plain)
    return keys
