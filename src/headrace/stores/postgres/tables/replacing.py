"""Replacement of a table's content by other rows. Rows that do not differ are not written, so no log contains them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from psycopg import sql

from headrace.rows.by_position import last_rows
from headrace.stores.postgres.connection import Bulk
from headrace.stores.postgres.schemas import PgColumn, TableLayout
from headrace.stores.postgres.tables.writing import STAGE, same_key, stage, upsert, write

# Numbers that are equal in SQL and differ in a bit: 0.0 and -0.0.
_BYTES_OF = {"float4": "float4send", "float8": "float8send"}


def replace_all(bulk: Bulk, table: TableLayout, rows: pa.Table, path: str) -> None:
    """Delete all rows with other keys, insert new rows and update rows that differ, in the caller's transaction.

    Args:
        rows: all columns that can be written, in the types of the table. Of several rows with one key, the last counts.
        path: the search path of the table's triggers, see `headrace.stores.postgres.tables.writing.write`.
    """
    stage(bulk, rows.take(pa.array(last_rows(rows, table.primary_key))))
    columns = [table.column(name) for name in rows.column_names]
    removed = sql.SQL("DELETE FROM {} t WHERE NOT EXISTS (SELECT FROM pg_temp.{} s WHERE {})").format(
        table.name.sql, sql.Identifier(STAGE), same_key(table, columns)
    )
    write(bulk, [removed, upsert(table, columns, where=_differs(columns))], path)


def _differs(columns: Sequence[PgColumn]) -> sql.Composable:
    """Return the condition that some cell of a row differs from the new cell."""
    compared = [column for column in columns if not column.in_key and not column.always_identity]
    if not compared:
        return sql.SQL("false")
    return sql.SQL("({}) IS DISTINCT FROM ({})").format(
        *(sql.SQL(", ").join(_comparable(alias, column) for column in compared) for alias in ("t", "excluded"))
    )


def _comparable(alias: str, column: PgColumn) -> sql.Composable:
    """Return a cell in a form that can be compared: types such as ``json`` have no equality.

    The server finds the equality by the types, so a domain, which anybody may give an operator, is its base type.
    """
    cell = sql.SQL("{}::{}").format(sql.Identifier(alias, column.name), sql.SQL(column.cast))
    if column.is_array or not column.is_native:
        return sql.SQL("{}::text").format(cell)
    if column.base in _BYTES_OF:
        return sql.SQL("pg_catalog.{}({})").format(sql.SQL(_BYTES_OF[column.base]), cell)
    return cell
