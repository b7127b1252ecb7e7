"""The write path: rows go into a temporary table by COPY, and from there into the table by one statement.

An upsert sorts its rows by key: two that lock rows in one order do not deadlock each other. UPDATE and DELETE have no
order; `Connection` repeats a transaction that has lost a deadlock. Triggers, constraints and generated columns of the
table are in effect.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from headrace.errors import SchemaError
from headrace.rows.by_position import last_rows, repeats
from headrace.stores.postgres.connection import Bulk
from headrace.stores.postgres.schemas import PgColumn, TableLayout
from headrace.stores.postgres.session import CATALOG_PATH, path_statement
from headrace.tables.changes import RowChange

STAGE = "headrace_rows"
# The dates of PostgreSQL, in days since 1970, and its timestamps in µs. Arrow's last timestamp is before PostgreSQL's.
_DATES = (-2_440_588, 2_145_042_905)
_TIMES = (_DATES[0] * 86_400_000_000, 2**63 - 1)
_VERSION = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"


def check_values(rows: pa.Table, table: TableLayout) -> None:
    """Check that PostgreSQL keeps the values of converted rows as they are.

    Raises:
        SchemaError: a string has the character NUL, a time has more digits than its column, or PostgreSQL does not have
            the year.
    """
    for name in rows.column_names:
        column, values = table.column(name), rows.column(name)
        if pa.types.is_list(values.type):
            values = pc.list_flatten(values)
        if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
            first, last = _DATES if pa.types.is_date(values.type) else _TIMES
            numbers = values.cast(pa.int32() if pa.types.is_date(values.type) else pa.int64())
            outside = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
            _refuse(outside, column, "dates and times of PostgreSQL are from 4714-11-24 BC on")
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
    bulk: Bulk, table: TableLayout, change: RowChange, rows: pa.Table, path: str, *, keep_nulls: bool = True
) -> None:
    """Apply rows to a table in the transaction of a connection.

    Args:
        path: the search path of the table's triggers, see `write`.
        change: PUT, UPDATE or DELETE.
        rows: the key columns and the columns to set, in the types of the table. Of several rows with one key, the
            last counts; without ``keep_nulls``, the last value of each cell.
        keep_nulls: whether an update sets cells to null.
    """
    for part in _rounds(rows, table.primary_key, merge=change is RowChange.UPDATE and not keep_nulls):
        stage(bulk, part)
        columns = [table.column(name) for name in part.column_names]
        write(bulk, _statements(table, change, columns, keep_nulls=keep_nulls), path)


def write(bulk: Bulk, statements: Sequence[sql.Composable], path: str) -> None:
    """Run statements that write the staged rows into a user's table, and drop the staged rows.

    Args:
        path: the search path of the user: functions of triggers, defaults and constraints may name objects without a
            schema. The statements name the schemas of all operators and functions, see
            `headrace.stores.postgres.session`.
    """
    with bulk.cursor() as cursor:
        cursor.execute(path_statement(path))
        for statement in statements:
            cursor.execute(statement.as_string(None))
        cursor.execute(path_statement(CATALOG_PATH))
        cursor.execute(f'DROP TABLE pg_temp."{STAGE}"')


def stage(bulk: Bulk, rows: pa.Table) -> None:
    """Copy rows into a new temporary table, whose columns are ``c0``, ``c1`` and so on."""
    named = rows.rename_columns([f"c{index}" for index in range(rows.num_columns)])
    with bulk.cursor() as cursor:
        cursor.adbc_ingest(STAGE, named, mode="create", temporary=True)


def committed_version(bulk: Bulk) -> int:
    """Return a position in the write-ahead log after all commits that have ended."""
    with bulk.cursor() as cursor:
        cursor.execute(_VERSION)
        version: int = cursor.fetchone()[0]
    bulk.rollback()
    return version


def staged(columns: Sequence[PgColumn]) -> list[sql.Composable]:
    """Return the staged value of each column, in the column's type."""
    return [column.written(sql.Identifier("s", f"c{index}")) for index, column in enumerate(columns)]


def same_key(table: TableLayout, columns: Sequence[PgColumn]) -> sql.Composable:
    """Return the condition that a row of alias ``t`` has the key of a staged row of alias ``s``."""
    equal = [column.equals(value) for column, value in zip(columns, staged(columns), strict=True) if column.in_key]
    return sql.SQL(" AND ").join(equal)


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


def _statements(
    table: TableLayout, change: RowChange, columns: Sequence[PgColumn], *, keep_nulls: bool
) -> list[sql.Composable]:
    if change is RowChange.DELETE:
        return [
            sql.SQL("DELETE FROM {} t USING pg_temp.{} s WHERE {}").format(
                table.name.sql, sql.Identifier(STAGE), same_key(table, columns)
            )
        ]
    kept = change is RowChange.UPDATE and not keep_nulls
    insert = upsert(table, columns, kept=kept)
    given = {column.name for column in columns}
    required = [column.name for column in table.columns if column.not_null and not column.in_key and not column.filled]
    if change is RowChange.UPDATE and (kept or not given.issuperset(required)) and required:
        # An INSERT checks NOT NULL before it looks for a conflict, so existing rows are updated first.
        return [_update(table, columns, kept=kept), upsert(table, columns, kept=kept, only_new=True)]
    return [insert]


def _update(table: TableLayout, columns: Sequence[PgColumn], *, kept: bool) -> sql.Composable:
    pairs = [
        (column, value)
        for column, value in zip(columns, staged(columns), strict=True)
        if not column.in_key and not column.always_identity
    ]
    cells = [
        sql.SQL("{} = {}").format(
            sql.Identifier(column.name),
            sql.SQL("COALESCE({}, t.{})").format(value, sql.Identifier(column.name)) if kept else value,
        )
        for column, value in pairs
    ]
    return sql.SQL("UPDATE {} t SET {} FROM pg_temp.{} s WHERE {}").format(
        table.name.sql, sql.SQL(", ").join(cells), sql.Identifier(STAGE), same_key(table, columns)
    )


def upsert(
    table: TableLayout,
    columns: Sequence[PgColumn],
    *,
    kept: bool = False,
    only_new: bool = False,
    where: sql.Composable | None = None,
) -> sql.Composable:
    """Return the statement that inserts staged rows, and updates the rows that exist.

    Args:
        kept: a null keeps the cell of an existing row.
        only_new: leave out rows that exist.
        where: only update existing rows (alias ``t``) under this condition.
    """
    cells = [
        sql.SQL("{name} = COALESCE(EXCLUDED.{name}, t.{name})" if kept else "{name} = EXCLUDED.{name}").format(
            name=sql.Identifier(column.name)
        )
        for column in columns
        if not column.in_key and not column.always_identity
    ]
    action: sql.Composable = sql.SQL("NOTHING")
    if cells:
        action = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(cells))
        if where is not None:
            action += sql.SQL(" WHERE {}").format(where)
    values = staged(columns)
    order = [value for column, value in zip(columns, values, strict=True) if column.in_key]
    new: sql.Composable = sql.SQL("")
    if only_new:
        new = sql.SQL("WHERE NOT EXISTS (SELECT FROM {} t WHERE {})").format(table.name.sql, same_key(table, columns))
    return sql.SQL(
        "INSERT INTO {table} AS t ({names}) OVERRIDING SYSTEM VALUE SELECT {values} FROM pg_temp.{stage} s {new} "
        "ORDER BY {order} ON CONFLICT ({key}) DO {action}"
    ).format(
        table=table.name.sql,
        names=sql.SQL(", ").join(sql.Identifier(column.name) for column in columns),
        values=sql.SQL(", ").join(values),
        stage=sql.Identifier(STAGE),
        new=new,
        order=sql.SQL(", ").join(order),
        key=sql.SQL(", ").join(map(sql.Identifier, table.primary_key)),
        action=action,
    )
