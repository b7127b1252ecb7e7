"""The write path: rows go into a temporary table by COPY, and from there into the table by one statement.

An upsert sorts its rows by key: two that lock rows in one order do not deadlock each other. UPDATE and DELETE have no
order; `PostgresConnection` repeats a transaction that has lost a deadlock. Triggers, constraints and generated columns
of the table are in effect.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.rows.by_position import last_rows, repeats
from headrace.rows.key_years import check_years
from headrace.stores.postgres.connection import Bulk, value_of
from headrace.stores.postgres.schemas import PgColumn, TableLayout
from headrace.stores.postgres.session import CATALOG_PATH, path_statement
from headrace.stores.postgres.tables.attempts import Care, replaceable
from headrace.stores.postgres.tables.statements import (
    GONE,
    STAGE,
    STAGED,
    Given,
    changed_identities,
    columns_to_set,
    counted,
    deletion,
    removal,
    replacement,
    same_key,
    writes,
)
from headrace.stores.postgres.tables.taken import check_taken, is_staged, undeleted, unwritten

_GROUP = "headrace group"
_SEVERAL = 2
_UUID = r"\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z"
# The dates of PostgreSQL, in days since 1970, and its timestamps in µs. Arrow's last timestamp is before PostgreSQL's.
_DATES = (-2_440_588, 2_145_042_905)
_TIMES = (_DATES[0] * 86_400_000_000, 2**63 - 1)
_VERSION = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"


def check_values(rows: pa.Table, table: TableLayout) -> None:
    """Check that PostgreSQL keeps the values of converted rows as they are.

    Raises:
        SchemaError: a string has the character NUL, a time has more digits than its column, or PostgreSQL does not have
            the year.
        UnsupportedError: the primary key is not unique, because the rows of another table belong to the table.
    """
    if table.child is not None:
        raise UnsupportedError(
            f"table {table.name.text!r} has rows of a table that inherits from it, among which its key is not unique",
            received=f"child table {table.child}",
            remedy=f"ALTER TABLE {table.child} NO INHERIT {table.name.sql.as_string(None)}, or make it a partitioned "
            "table",
        )
    for name in rows.column_names:
        column, values = table.column(name), rows.column(name)
        if pa.types.is_list(values.type):
            values = pc.list_flatten(values)
        if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
            first, last = _DATES if pa.types.is_date(values.type) else _TIMES
            numbers = values.cast(pa.int32() if pa.types.is_date(values.type) else pa.int64())
            outside = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
            _refuse(outside, column, "dates and times of PostgreSQL are from 4714-11-24 BC on")
            if column.in_key:
                check_years(values)
        if values.type == pa.string():
            _refuse(pc.match_substring(values, "\0"), column, "PostgreSQL has no strings with the character NUL")
        elif column.time_digits is not None:
            unit = 10 ** (6 - column.time_digits)
            numbers = values.cast(pa.int64())
            whole = pc.multiply(pc.divide(numbers, unit), unit)
            problem = f"its type keeps {column.time_digits} digits of fractional seconds, and would round it"
            _refuse(pc.not_equal(whole, numbers), column, problem)


def without_nul(rows: pa.Table) -> pa.Table:
    """Return the rows whose strings do not have the character NUL: others are in no table."""
    for name in rows.column_names:
        if rows.schema.field(name).type == pa.string():
            rows = rows.filter(pc.invert(pc.match_substring(rows.column(name), "\0")))
    return rows


def _refuse(wrong: pa.ChunkedArray, column: PgColumn, problem: str) -> None:
    row = pc.index(wrong, True).as_py()
    if row >= 0:
        raise SchemaError(f"column {column.name!r} cannot hold the value in row {row}", received=problem)


def apply(
    bulk: Bulk,
    table: TableLayout,
    change: RowChange,
    rows: pa.Table,
    path: str,
    *,
    keep_nulls: bool = True,
    gone: pa.Table | None = None,
    care: Care = Care.ROW_BY_ROW,
    guarded: bool = False,
) -> None:
    """Apply rows to a table in the transaction of a connection, whose search path is then that of the user.

    Args:
        path: the search path of the table's triggers, see `_write`.
        change: PUT, UPDATE or DELETE.
        rows: the key columns and the columns to set, in the types of the table. Of several rows with one key, the
            last counts; without ``keep_nulls``, the last value of each cell.
        keep_nulls: whether an update sets cells to null.
        gone: keys of rows to delete, besides rows to put. The same statement deletes them: then a row can have a unique
            value of one of them, and a row that refers to one of them can be among the rows to put. A key that equals
            one to put, such as 1.0 and 1.00, is not deleted.
        guarded: the connection is one of `headrace.stores.postgres.guarded`, whose statements have no parameters.
    """
    deferred = care is not Care.ROW_BY_ROW
    columns = [table.column(name) for name in rows.column_names]
    if change is RowChange.DELETE:
        checks = [undeleted(table, is_staged(columns))]
        source, few = _source(bulk, table, rows, may_be_given=not guarded)
        statement = deletion(table, columns, source)
        _write(bulk, table, [statement], checks, path, rows=rows.num_rows, few=few, deferred=deferred)
        return
    whole = set(rows.column_names).issuperset(table.written.names)
    replaces = care is Care.REPLACED and (change is RowChange.UPDATE or whole) and replaceable(bulk, table)
    given, key = _grouped(bulk, table, rows)
    for number, part in enumerate(_rounds(given, key, merge=change is RowChange.UPDATE and not keep_nulls)):
        if number:
            set_path(bulk, CATALOG_PATH)
        may_be_given = not (guarded or replaces or any(each.always_identity for each in columns)) and gone is None
        source, few = _source(bulk, table, part.select(rows.column_names), may_be_given=may_be_given)
        removed, names = None, [STAGE]
        if gone is not None or (replaces and change is RowChange.PUT):
            keys = [] if gone is None else [gone.select(table.primary_key)]
            if replaces:
                keys.append(part.select(table.primary_key))
            stage(bulk, pa.concat_tables(keys), GONE)
            names.append(GONE)
            spared = not replaces and not (are_exact(rows, table) and are_exact(keys[0], table))
            removed = removal(table, columns, spared=spared)
        if replaces and change is RowChange.UPDATE:
            statements = [replacement(table, columns, keep_nulls=keep_nulls)]
        else:
            statements = writes(table, change, columns, removed, source=source, keep_nulls=keep_nulls)
        if not replaces:
            _check_fixed(bulk, table, columns)
        checks = [unwritten(table, columns, columns_to_set(columns, change), keep_nulls=keep_nulls)]
        if removed is not None:
            checks.append(undeleted(table, _is_gone(table, columns)))
        count = part.num_rows if removed is None else None
        _write(bulk, table, statements, checks, path, names, rows=count, few=few, deferred=deferred)


def _source(
    bulk: Bulk, table: TableLayout, rows: pa.Table, *, may_be_given: bool
) -> tuple[sql.Composable, Given | None]:
    """Return rows in a FROM clause, and, if they are parameters, these; otherwise stage them.

    Args:
        may_be_given: whether the statements can have parameters, and no other query needs the rows.
    """
    # A statement in WITH, which counts its rows, does not run by rules.
    few = Given.of(rows) if may_be_given and not table.rules else None
    if few is None:
        stage(bulk, rows)
    return STAGED if few is None else few.source, few


def delete(bulk: Bulk, table: TableLayout, gone: pa.Table, kept: pa.Table, path: str, care: Care) -> None:
    """Delete the rows of some keys, except those that equal one of other keys; see `apply`."""
    stage(bulk, kept.select(table.primary_key))
    stage(bulk, gone.select(table.primary_key), GONE)
    spared = not (are_exact(kept, table) and are_exact(gone, table))
    columns = [table.column(name) for name in table.primary_key]
    _write(
        bulk,
        table,
        [removal(table, columns, spared=spared)],
        [undeleted(table, _is_gone(table, columns))],
        path,
        [STAGE, GONE],
        deferred=care is not Care.ROW_BY_ROW,
    )


def replace_all(bulk: Bulk, table: TableLayout, rows: pa.Table, path: str, care: Care) -> None:
    """Delete all rows with other keys, insert new rows and update rows that differ, in the caller's transaction.

    Rows that do not differ are not written, so no log contains them.

    Args:
        rows: all columns that can be written, in the types of the table. Of several rows with one key, the last counts.
        path: the search path of the table's triggers, see `_write`.
    """
    names = rows.column_names
    columns = [table.column(name) for name in names]
    rows, key = _grouped(bulk, table, rows)
    stage(bulk, rows.take(pa.array(last_rows(rows, key))).select(names))
    others = sql.SQL("DELETE FROM {} t WHERE NOT EXISTS (SELECT FROM pg_temp.{} s WHERE {})").format(
        table.name.sql, sql.Identifier(STAGE), same_key(columns)
    )
    whole = set(names).issuperset(table.written.names)
    if care is Care.REPLACED and whole and replaceable(bulk, table):
        every = sql.SQL("DELETE FROM {} t").format(table.name.sql)
        statements = writes(table, RowChange.PUT, columns, every)
    else:
        statements = writes(table, RowChange.PUT, columns, others, only_differing=True)
        _check_fixed(bulk, table, columns)
    checks = [
        unwritten(table, columns, columns_to_set(columns, RowChange.PUT), keep_nulls=True),
        undeleted(table, sql.SQL("NOT {}").format(is_staged(columns))),
    ]
    _write(bulk, table, statements, checks, path, deferred=care is not Care.ROW_BY_ROW)


def _is_gone(table: TableLayout, columns: Sequence[PgColumn]) -> sql.Composable:
    """Return the condition that row ``t`` has a key of `GONE`, and not that of a staged row of some columns."""
    keys = [table.column(name) for name in table.primary_key]
    return sql.SQL("{} AND NOT {}").format(is_staged(keys, "g"), is_staged(columns))


def _write(
    bulk: Bulk,
    table: TableLayout,
    statements: Sequence[sql.Composable],
    checks: Sequence[sql.Composable],
    path: str,
    names: Sequence[str] = (STAGE,),
    *,
    rows: int | None = None,
    few: Given | None = None,
    deferred: bool = False,
) -> None:
    """Run statements that write staged rows into a user's table, and drop the staged rows.

    Args:
        path: the search path of the user: functions of triggers, defaults and constraints may name objects without a
            schema. It stays until the end of the transaction: deferred triggers run at the commit.
        checks: find a row that the table has not taken, see `headrace.stores.postgres.tables.taken`.
        names: the temporary tables of the staged rows.
        rows: the count of written rows that needs no check.
        few: the rows, if they are parameters of the statements. They are staged for the checks.
        deferred: whether deferrable constraints are checked at the commit.

    Raises:
        RowsNotWrittenError: a rule or a trigger of the table has dropped a row.
    """
    set_path(bulk, path)
    with bulk.cursor() as cursor:
        if deferred:
            cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        written = 0
        for statement in statements:
            if few is None:
                cursor.execute(statement.as_string(None))
                written += cursor.rowcount
            else:
                # The driver does not count the rows of a statement with parameters.
                cursor.execute(counted(statement).as_string(None), few.parameters)
                written += cursor.fetchone()[0]
        if written != rows:
            set_path(bulk, CATALOG_PATH)
            if few is not None:
                stage(bulk, few.rows)
            for check in checks:
                check_taken(cursor, table, check)
            set_path(bulk, path)
        elif few is not None:
            return
        for name in names:
            cursor.execute(f'DROP TABLE pg_temp."{name}"')


def _check_fixed(bulk: Bulk, table: TableLayout, columns: Sequence[PgColumn]) -> None:
    """Raise `ViolationError` if staged rows would change the value of an identity that the server generates."""
    statement = changed_identities(table, columns)
    if statement is not None:
        with bulk.cursor() as cursor:
            cursor.execute(statement.as_string(None))
            cursor.fetch_arrow_table()


def set_path(bulk: Bulk, path: str) -> None:
    """Set the search path until the end of the transaction."""
    value_of(bulk, path_statement(path))


def stage(bulk: Bulk, rows: pa.Table, name: str = STAGE) -> None:
    """Copy rows into a new temporary table, whose columns are ``c0``, ``c1`` and so on."""
    named = rows.rename_columns([f"c{index}" for index in range(rows.num_columns)])
    with bulk.cursor() as cursor:
        cursor.adbc_ingest(name, named, mode="create", temporary=True)


def committed_version(bulk: Bulk) -> int:
    """Return a position in the write-ahead log after all commits that have ended."""
    version = int(value_of(bulk, _VERSION))
    bulk.rollback()
    return version


def _grouped(bulk: Bulk, table: TableLayout, rows: pa.Table) -> tuple[pa.Table, Sequence[str]]:
    """Return rows, and the names of the columns that are equal in rows with equal keys.

    The server compares keys whose texts can differ although they are equal, such as 1.0 and 1.00.
    """
    if rows.num_rows < _SEVERAL or are_exact(rows, table):
        return rows, table.primary_key
    keys = [table.column(name) for name in table.primary_key]
    stage(bulk, rows.select(table.primary_key).append_column(_GROUP, pa.array(np.arange(rows.num_rows))))
    compared = [column.compared(sql.Identifier("s", f"c{index}")) for index, column in enumerate(keys)]
    statement = sql.SQL("SELECT dense_rank() OVER (ORDER BY {}) FROM pg_temp.{} s ORDER BY {}").format(
        sql.SQL(", ").join(compared), sql.Identifier(STAGE), sql.Identifier("s", f"c{len(keys)}")
    )
    with bulk.cursor() as cursor:
        cursor.execute(statement.as_string(None))
        groups = cursor.fetch_arrow_table().column(0)
        cursor.execute(f'DROP TABLE pg_temp."{STAGE}"')
    return rows.append_column(_GROUP, groups), [_GROUP]


def are_exact(rows: pa.Table, table: TableLayout) -> bool:
    """Return whether keys that differ are not equal in the types of the table."""
    return all(_is_exact(table.column(name), rows.column(name)) for name in table.primary_key)


def _is_exact(column: PgColumn, values: pa.ChunkedArray) -> bool:
    if column.base == "uuid" and not column.is_array:
        return pc.all(pc.match_substring_regex(values, _UUID)).as_py() is not False
    return column.is_exact


def _rounds(rows: pa.Table, key: Sequence[str], *, merge: bool) -> list[pa.Table]:
    """Return rows in parts without duplicate keys, whose writes one after the other have the result of all."""
    if not rows.num_rows:
        return []
    if not repeats(rows, key):
        return [rows]
    parts: list[pa.Table] = []
    rest = rows
    while rest.num_rows:
        last = last_rows(rest, key)
        parts.insert(0, rest.take(pa.array(last)))
        rest = rest.take(pa.array(np.setdiff1d(np.arange(rest.num_rows), last)))
        if not merge:
            break
    return parts
