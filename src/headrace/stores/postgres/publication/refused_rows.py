"""Finds the rows of a write that the server refuses, on the server: attempts need no round trip and no copy of rows.

The rows are staged once. Views with the names of staged rows show a range of them to the statements of a write, so that
these are the statements of `headrace.stores.postgres.tables.writing`. A block runs them, and divides a range that is
refused. Its attempts are those of `headrace.stores.postgres.tables.attempts`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from psycopg import sql

from headrace.errors import HeadraceError
from headrace.model.tables.changes import RowChange
from headrace.stores.postgres.connection import Bulk, value_of
from headrace.stores.postgres.failures import REFUSALS
from headrace.stores.postgres.guarded import CAUGHT, DIAGNOSED, OUTCOME, error_of
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.session import CATALOG_PATH, path_statement
from headrace.stores.postgres.tables.attempts import replaceable
from headrace.stores.postgres.tables.statements import (
    GONE,
    STAGE,
    changed_identities,
    deletion,
    removal,
    writes,
)
from headrace.stores.postgres.tables.writing import are_exact, stage

MOST_ROWS = 1 << 17
"""The maximum number of rows for one block: a server can have a limit for the duration of a statement."""
_ALL = "headrace_all"
_PLACE = "headrace place"
_BEGIN, _END = "headrace.begin", "headrace.end"
# A larger range whose refused row is one in any order is divided into 16 parts, which costs fewer writes.
_HALVED_ROWS = 1024
# With a rule or a trigger of a user, a statement can leave out rows without an error.
_PLAIN = """
SELECT NOT EXISTS (SELECT FROM pg_rewrite WHERE ev_class = $1) AND NOT EXISTS (
    SELECT FROM pg_trigger
    WHERE NOT tgisinternal AND tgrelid IN (SELECT $1 UNION SELECT relid FROM pg_partition_tree($1))
)
"""
# A range is attempted with the care 0, 1 and 2 of `Care`, as far as it can help: the violations are those of `_PASSES`.
# Statements are chosen under the search path of the catalog, and set the path of the user themselves.
_BLOCK = """
DECLARE
    begins int8[] := ARRAY[0]; ends int8[] := ARRAY[{rows}]; refused text[] := ARRAY[]::text[];
    program text[]; statement text; low int8; high int8; step int8; care int; needed int; top int;
    a text; b text; c text; d text; e text; f text; g text;
BEGIN
    WHILE cardinality(begins) > 0 AND cardinality(refused) <= {most} LOOP
        top := cardinality(begins);
        low := begins[top];
        high := ends[top];
        begins := begins[:top - 1];
        ends := ends[:top - 1];
        PERFORM set_config({begin}, low::text, true), set_config({end}, high::text, true);
        care := 0;
        LOOP
            a := NULL;
            program := CASE care WHEN 0 THEN {plain} WHEN 1 THEN {together} ELSE {replaced} END;
            BEGIN
                FOREACH statement IN ARRAY program LOOP
                    EXECUTE statement;
                END LOOP;
            EXCEPTION WHEN {caught} THEN
                GET STACKED DIAGNOSTICS {diagnosed};
            END;
            EXIT WHEN a IS NULL;
            needed := CASE WHEN a IN ('23505', '23P01') THEN 2 WHEN a = '23503' THEN 1 ELSE 0 END;
            IF high - low = 1 THEN
                refused := refused || json_build_array(low, a, b, c, d, e, f, g)::text;
                EXIT;
            END IF;
            IF needed <= care THEN
                step := CASE WHEN needed = 0 AND high - low > {halved} THEN (high - low + 15) / 16
                    ELSE (high - low + 1) / 2 END;
                FOR part IN REVERSE (high - low - 1) / step .. 0 LOOP
                    begins := begins || low + part * step;
                    ends := ends || least(low + (part + 1) * step, high);
                END LOOP;
                EXIT;
            END IF;
            care := needed;
        END LOOP;
    END LOOP;
    PERFORM set_config({setting}, '[' || array_to_string(refused, ',') || ']', true);
END
"""


def refused_rows(
    bulk: Bulk, url: str, table: TableLayout, change: RowChange, rows: pa.Table, path: str, most: int
) -> list[tuple[int, HeadraceError]] | None:
    """Write the rows that the server takes, and return the indexes of the others with their errors.

    Args:
        url: the database, for messages.
        change: PUT or DELETE.
        rows: whole rows or keys in the types of the table, each key once.
        path: the search path of the user, for functions of the table.
        most: the number of refused rows after which the rest is left out.

    Returns:
        None if the attempts of this table need more than statements: nothing was written.
    """
    columns = [table.column(name) for name in rows.column_names]
    if not are_exact(rows, table) or (change is RowChange.PUT and changed_identities(table, columns) is not None):
        return None
    if not value_of(bulk, _PLAIN, table.oid):
        return None
    plain = [deletion(table, columns)] if change is RowChange.DELETE else writes(table, change, columns)
    replaced = plain
    whole = set(rows.column_names).issuperset(table.written.names)
    if change is RowChange.PUT and whole and replaceable(bulk, table):
        replaced = writes(table, change, columns, removal(table, columns, spared=False))
    block = sql.SQL(_BLOCK).format(
        rows=sql.Literal(rows.num_rows),
        most=sql.Literal(most),
        begin=sql.Literal(_BEGIN),
        end=sql.Literal(_END),
        plain=_program(plain, path, deferred=False),
        together=_program(plain, path, deferred=True),
        replaced=_program(replaced, path, deferred=True),
        caught=sql.SQL(CAUGHT),
        diagnosed=sql.SQL(DIAGNOSED),
        halved=sql.Literal(_HALVED_ROWS),
        setting=sql.Literal(OUTCOME),
    )
    stage(bulk, rows.append_column(_PLACE, pa.array(np.arange(rows.num_rows))), _ALL)
    key = [rows.column_names.index(name) for name in table.primary_key]
    statements = [
        f'CREATE INDEX ON pg_temp."{_ALL}" (c{rows.num_columns})',
        _view(STAGE, range(rows.num_columns), rows.num_columns),
        _view(GONE, key, rows.num_columns),
        sql.SQL("DO {}").format(sql.Literal(block.as_string(None))).as_string(None),
        f'DROP TABLE pg_temp."{_ALL}" CASCADE',
        f"SELECT current_setting('{OUTCOME}')",
    ]
    with bulk.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            result = cursor.fetch_arrow_table()
        outcome = json.loads(result.column(0)[0].as_py())
    refused = [(index, error_of(failure, url)) for index, *failure in outcome]
    for _, error in refused:
        if not isinstance(error, REFUSALS):
            raise error
    return refused


def _program(statements: Sequence[sql.Composable], path: str, *, deferred: bool) -> sql.Composable:
    """Return the statements of an attempt as an array of texts."""
    texts = [
        path_statement(path),
        *(["SET CONSTRAINTS ALL DEFERRED"] if deferred else []),
        *(statement.as_string(None) for statement in statements),
        # A constraint that is checked at the commit would refuse the batch there.
        "SET CONSTRAINTS ALL IMMEDIATE",
        path_statement(CATALOG_PATH),
    ]
    return sql.SQL("ARRAY[{}]::text[]").format(sql.SQL(", ").join(map(sql.Literal, texts)))


def _view(name: str, columns: Sequence[int], place: int) -> str:
    """Return the statement for a view of the rows of a range, with the column names of `stage`."""
    listed = ", ".join(f"c{column} AS c{number}" for number, column in enumerate(columns))
    return (
        f'CREATE TEMPORARY VIEW "{name}" AS SELECT {listed} FROM pg_temp."{_ALL}"'
        f" WHERE c{place} >= current_setting('{_BEGIN}')::int8 AND c{place} < current_setting('{_END}')::int8"
    )
