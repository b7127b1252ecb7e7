"""The value that PostgreSQL refuses: the server's error names neither its column nor its row.

The rows are written once more, column by column, into a temporary table of the same types, and the rows of the first
column that fails are halved until one remains.
"""

from __future__ import annotations

import pyarrow as pa
from psycopg import sql

from headrace.errors import HeadraceError, SchemaError, shown
from headrace.stores.postgres.connection import Bulk, PostgresConnection
from headrace.stores.postgres.failures import RefusedValueError
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tables.statements import STAGE, staged
from headrace.stores.postgres.tables.writing import set_path, stage

_PROBE = "headrace_probe"
_TYPE = """
SELECT format_type(a.atttypid, a.atttypmod) || coalesce(' ' || (
    SELECT string_agg(pg_get_constraintdef(c.oid), ' ' ORDER BY c.conname) FROM pg_constraint c
    WHERE c.contypid = a.atttypid
), '') FROM pg_attribute a WHERE a.attrelid = %s AND a.attname = %s
"""


def refusal(connection: PostgresConnection, table: TableLayout, rows: pa.Table) -> SchemaError | None:
    """Return the error for the first value that a table refuses: with its column and the key of its row.

    Args:
        rows: the rows of a write that PostgreSQL has refused.

    Returns:
        None if no column refuses a value by itself.
    """
    try:
        for name in rows.column_names:
            error = _refused(connection, table, name, rows)
            if error is not None:
                return _first(connection, table, name, rows, error)
    except HeadraceError:
        # The error of the write itself is more important.
        return None
    return None


def _first(
    connection: PostgresConnection, table: TableLayout, name: str, rows: pa.Table, error: RefusedValueError
) -> SchemaError:
    while rows.num_rows > 1:
        half = rows.slice(0, rows.num_rows // 2)
        of_half = _refused(connection, table, name, half)
        rows, error = (rows.slice(half.num_rows), error) if of_half is None else (half, of_half)
    # The server shows the last values of a column that it has looked at.
    error = _refused(connection, table, name, rows) or error
    kind = connection.ask(lambda session: session.execute(_TYPE, (table.oid, name)).fetchone())
    (row,) = rows.to_pylist()
    key = ", ".join(f"{each} = {shown(row[each])}" for each in table.primary_key)
    return SchemaError(
        f"column {name!r} of table {table.name.text!r} cannot hold the value of the row with key {key}: "
        f"{error.message}",
        received=shown(row[name]),
        valid=None if kind is None else f"PostgreSQL's type {kind[0]}",
        remedy=error.remedy or "correct the value, or change the type of the column in PostgreSQL",
    )


def _refused(connection: PostgresConnection, table: TableLayout, name: str, rows: pa.Table) -> RefusedValueError | None:
    """Return the error of writing one column of some rows."""
    column = table.column(name)
    (value,) = staged([column])
    create = sql.SQL("CREATE TEMPORARY TABLE {} AS SELECT {} FROM {} WITH NO DATA").format(
        sql.Identifier(_PROBE), sql.Identifier(name), table.name.sql
    )
    insert = sql.SQL("INSERT INTO pg_temp.{} SELECT {} FROM pg_temp.{} s").format(
        sql.Identifier(_PROBE), value, sql.Identifier(STAGE)
    )
    path = connection.server.writing_path

    def write(bulk: Bulk) -> None:
        stage(bulk, rows.select([name]))
        # A domain may call functions of the user.
        set_path(bulk, path)
        with bulk.cursor() as cursor:
            for statement in (create, insert):
                cursor.execute(statement.as_string(None))
        bulk.rollback()

    try:
        connection.run_bulk(write)
    except RefusedValueError as error:
        return error
    return None
