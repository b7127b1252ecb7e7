"""Statements whose refusal of a row leaves the transaction of ADBC usable.

ADBC executes nothing in a transaction in which a statement has failed, not even ROLLBACK TO SAVEPOINT. So the server
runs the statement in a block that catches what a row can cause, and keeps the error in a setting of the transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
from psycopg import sql

from headrace.errors import HeadraceError
from headrace.stores.postgres.connection import Bulk, execute
from headrace.stores.postgres.failures import REFUSALS, Failure, headrace_error, table_text

Result = TypeVar("Result")

OUTCOME = "headrace.outcome"
"""The setting with which a block tells what it has done."""
CAUGHT = (
    "data_exception OR integrity_constraint_violation OR cardinality_violation OR program_limit_exceeded"
    " OR raise_exception"
)
"""The conditions that a row can cause."""
DIAGNOSED = (
    "a = RETURNED_SQLSTATE, b = MESSAGE_TEXT, c = PG_EXCEPTION_DETAIL, d = PG_EXCEPTION_HINT, e = CONSTRAINT_NAME,"
    " f = SCHEMA_NAME, g = TABLE_NAME"
)
"""What a block keeps of an error, for `error_of`."""
_SAVEPOINT = "headrace_rows"
# They do not depend on rows, and need no block. The row of the second is fetched.
_HARMLESS, _FETCHED = "DROP TABLE pg_temp.", "SELECT pg_catalog.set_config('search_path'"
_BLOCK = """
DECLARE
    n pg_catalog.int8; a pg_catalog.text; b pg_catalog.text; c pg_catalog.text; d pg_catalog.text; e pg_catalog.text;
    f pg_catalog.text; g pg_catalog.text;
BEGIN
    EXECUTE {statement};
    GET DIAGNOSTICS n = ROW_COUNT;
    PERFORM pg_catalog.set_config({setting}, n::pg_catalog.text, true);
EXCEPTION WHEN {caught} THEN
    GET STACKED DIAGNOSTICS {diagnosed};
    PERFORM pg_catalog.set_config({setting}, pg_catalog.json_build_array(a, b, c, d, e, f, g)::pg_catalog.text, true);
END
"""


def undone(bulk: Bulk, url: str, work: Callable[[Bulk], Result]) -> Result:
    """Call a function whose statements have no effect if one of `REFUSALS` is raised, and leave the transaction usable.

    Args:
        url: the database, for messages.
        work: takes the connection. It executes a statement twice if it fetches rows.
    """
    execute(bulk, f"SAVEPOINT {_SAVEPOINT}")
    try:
        result = work(cast(Bulk, _GuardedConnection(bulk, url)))
    except REFUSALS:
        execute(bulk, f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
        execute(bulk, f"RELEASE SAVEPOINT {_SAVEPOINT}")
        raise
    execute(bulk, f"RELEASE SAVEPOINT {_SAVEPOINT}")
    return result


class _GuardedConnection:
    """The part of a connection of ADBC that writes need."""

    def __init__(self, bulk: Bulk, url: str) -> None:
        self._bulk = bulk
        self._url = url

    def cursor(self) -> _GuardedCursor:
        return _GuardedCursor(self._bulk.cursor(), self._url)


class _GuardedCursor:
    def __init__(self, cursor: adbc.Cursor, url: str) -> None:
        self._cursor = cursor
        self._url = url
        self._executed: tuple[Any, ...] = ()
        self.rowcount = -1

    def __enter__(self) -> _GuardedCursor:
        return self

    def __exit__(self, *error: object) -> None:
        self._cursor.close()

    def adbc_ingest(self, *arguments: Any, **options: Any) -> None:
        self._cursor.adbc_ingest(*arguments, **options)

    def execute(self, statement: str, parameters: Any = None) -> None:
        self._executed = (statement, parameters)
        if parameters is not None or statement.startswith(_FETCHED):
            # A block takes no parameters. These statements read the catalog, when their rows are fetched.
            return
        if statement.startswith(_HARMLESS):
            self._cursor.execute(statement)
            return
        block = sql.SQL(_BLOCK).format(
            statement=sql.Literal(statement),
            setting=sql.Literal(OUTCOME),
            caught=sql.SQL(CAUGHT),
            diagnosed=sql.SQL(DIAGNOSED),
        )
        self._cursor.execute(sql.SQL("DO {}").format(sql.Literal(block.as_string(None))).as_string(None))
        self._cursor.execute(f"SELECT current_setting('{OUTCOME}')")
        outcome = json.loads(self._cursor.fetchone()[0])
        if isinstance(outcome, int):
            self.rowcount = outcome
            return
        raise error_of(outcome, self._url)

    def fetchone(self) -> Any:
        self._cursor.execute(*self._executed)
        return self._cursor.fetchone()

    def fetch_arrow_table(self) -> pa.Table:
        self._cursor.execute(*self._executed)
        return self._cursor.fetch_arrow_table()


def error_of(diagnosed: Sequence[str], url: str) -> HeadraceError:
    """Return the error of a block from `DIAGNOSED`."""
    state, message, detail, hint, constraint, schema, table = diagnosed
    return headrace_error(Failure(state, message, detail, hint, constraint, table_text(schema, table)), url)
