"""Replacement of a table's content by other rows. Rows that do not differ are not written, so no log contains them."""

from __future__ import annotations

import pyarrow as pa
from psycopg import sql

from headrace.model.tables.changes import RowChange
from headrace.rows.by_position import last_rows
from headrace.stores.postgres.connection import Bulk
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tables.attempts import Care, replaceable
from headrace.stores.postgres.tables.statements import STAGE, columns_to_set, same_key, writes
from headrace.stores.postgres.tables.taken import is_staged, undeleted, unwritten
from headrace.stores.postgres.tables.writing import check_fixed, grouped, stage, write


def replace_all(bulk: Bulk, table: TableLayout, rows: pa.Table, path: str, care: Care) -> None:
    """Delete all rows with other keys, insert new rows and update rows that differ, in the caller's transaction.

    Args:
        rows: all columns that can be written, in the types of the table. Of several rows with one key, the last counts.
        path: the search path of the table's triggers, see `headrace.stores.postgres.tables.writing.write`.
    """
    names = rows.column_names
    columns = [table.column(name) for name in names]
    given, key = grouped(bulk, table, rows)
    stage(bulk, given.take(pa.array(last_rows(given, key))).select(names))
    others = sql.SQL("DELETE FROM {} t WHERE NOT EXISTS (SELECT FROM pg_temp.{} s WHERE {})").format(
        table.name.sql, sql.Identifier(STAGE), same_key(columns)
    )
    whole = set(names).issuperset(table.written.names)
    if care is Care.REPLACED and whole and replaceable(bulk, table):
        every = sql.SQL("DELETE FROM {} t").format(table.name.sql)
        statements = writes(table, RowChange.PUT, columns, every)
    else:
        statements = writes(table, RowChange.PUT, columns, others, only_differing=True)
        check_fixed(bulk, table, columns)
    checks = [
        unwritten(table, columns, columns_to_set(columns, RowChange.PUT), keep_nulls=True),
        undeleted(table, sql.SQL("NOT {}").format(is_staged(columns))),
    ]
    write(bulk, table, statements, checks, path, deferred=care is not Care.ROW_BY_ROW)
