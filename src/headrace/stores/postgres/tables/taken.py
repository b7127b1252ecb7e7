"""Whether a table has taken the rows of a write: rules and triggers can drop rows without an error.

A rule replaces the whole statement, and a trigger that runs before a row and returns NULL leaves the row out. Only
tables with such rules and triggers are looked at. A row that a trigger leaves out because it would not change is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from adbc_driver_postgresql.dbapi import Cursor
from psycopg import sql

from headrace.errors import RowsNotWrittenError
from headrace.stores.postgres.schemas import PgColumn, TableLayout
from headrace.stores.postgres.tables.statements import GONE, STAGE, differing, same_key, staged

# The bits 1 and 2 of a trigger's type: it runs for each row, and before it.
_FIRST = """
WITH r AS MATERIALIZED (
    SELECT string_agg(found, ', ' ORDER BY found) AS found FROM (
        SELECT DISTINCT 'trigger ' || quote_ident(tgname) AS found FROM pg_trigger
        WHERE NOT tgisinternal AND tgtype & 3 = 3 AND tgenabled NOT IN ('D', 'R')
            AND tgrelid IN (SELECT {oid}::oid UNION SELECT relid FROM pg_partition_tree({oid}))
        UNION ALL
        SELECT 'rule ' || quote_ident(rulename) FROM pg_rewrite WHERE ev_class = {oid} AND ev_enabled NOT IN ('D', 'R')
    ) AS every
)
SELECT (SELECT found FROM r), concat_ws(', ', {key}) FROM {rows} AND (SELECT found FROM r) IS NOT NULL LIMIT 1
"""
# A row that is visible and in progress is of this transaction, or of one of its savepoints.
_OURS = (
    "pg_xact_status(greatest(3, pg_current_xact_id()::text::int8 + age(xid(pg_current_xact_id())) - age(t.xmin))"
    "::text::xid8) IS NOT DISTINCT FROM 'in progress'"
)
_REMEDY = (
    "nothing of the write was applied: let the trigger return the row, or disable it (ALTER TABLE {table} DISABLE "
    "TRIGGER …), and drop rules (DROP RULE … ON {table})"
)


def unwritten(
    table: TableLayout, columns: Sequence[PgColumn], set_columns: Sequence[PgColumn], *, keep_nulls: bool
) -> sql.Composable:
    """Return the query for a staged row that is not in the table, or has its former values there, after a write.

    Args:
        columns: the columns of the staged rows.
        set_columns: those that were set in existing rows.
        keep_nulls: whether null was set, too.
    """
    rows = sql.SQL("pg_temp.{} s LEFT JOIN {} t ON {} WHERE (t.tableoid IS NULL OR NOT {} AND {})").format(
        sql.Identifier(STAGE),
        table.name.sql,
        same_key(columns),
        sql.SQL(_OURS),
        differing(columns, set_columns, kept=not keep_nulls),
    )
    return _query(table, dict(zip((column.name for column in columns), staged(columns), strict=True)), rows)


def undeleted(table: TableLayout, condition: sql.Composable) -> sql.Composable:
    """Return the query for a row ``t`` for which a condition holds, after a write that deletes such rows."""
    keys = {name: sql.Identifier("t", name) for name in table.primary_key}
    return _query(table, keys, sql.SQL("{} t WHERE {}").format(table.name.sql, condition))


def is_staged(columns: Sequence[PgColumn], alias: str = "s") -> sql.Composable:
    """Return the condition that row ``t`` has the key of a staged row, or of a row of `GONE` if the alias is ``g``."""
    return sql.SQL("EXISTS (SELECT FROM pg_temp.{} {} WHERE {})").format(
        sql.Identifier(GONE if alias == "g" else STAGE), sql.Identifier(alias), same_key(columns, alias)
    )


def check_taken(cursor: Cursor, table: TableLayout, query: sql.Composable) -> None:
    """Raise `RowsNotWrittenError` if a query of this module, which needs the search path of the catalog, has a row."""
    cursor.execute(query.as_string(None))
    row = cursor.fetchone()
    if row is not None:
        raise RowsNotWrittenError(
            f"table {table.name.text!r} has not taken a row of the write: a rule or a trigger has dropped it",
            received=f"{row[1]}; {row[0]}",
            remedy=_REMEDY.format(table=table.name.sql.as_string(None)),
        )


def _query(table: TableLayout, values: Mapping[str, sql.Composable], rows: sql.Composable) -> sql.Composable:
    return sql.SQL(_FIRST).format(
        oid=sql.Literal(table.oid),
        key=sql.SQL(", ").join(
            sql.SQL("concat({}::text, {})").format(sql.Literal(f"{name} = "), values[name])
            for name in table.primary_key
        ),
        rows=rows,
    )
