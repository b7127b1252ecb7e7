"""Reads of a table: one statement, whose rows ADBC receives as Arrow from PostgreSQL's binary COPY.

A statement has one snapshot, so a scan shows one state of the table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg
import pyarrow as pa
from psycopg import sql

from headrace.errors import OptionError
from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.schema import Key
from headrace.rows.conditions import check_scan_sizes
from headrace.rows.key_years import with_years_of_keys
from headrace.stores.postgres.connection import Bulk, PostgresConnection
from headrace.stores.postgres.schemas import VIEW, PgColumn, TableLayout, from_text
from headrace.stores.postgres.session import path_statement
from headrace.stores.postgres.tables.conditions import where
from headrace.stores.postgres.unrepresentable import ShownAsNull

# A larger table is sampled.
_PAGE_BYTES = 8192
_MOST_EXACT_PAGES = 1000


def selected(table: TableLayout, columns: Sequence[str]) -> sql.Composable:
    """Return the select list of columns, in their order, and then of conditions of values that are shown as null."""
    if not columns:
        # A COPY of no columns has no rows in Arrow.
        return sql.SQL("true")
    stored = [table.column(name) for name in columns]
    values = [*(column.read() for column in stored), *(each for _, each in _nulled(stored))]
    return sql.SQL(", ").join(
        sql.SQL("{} AS {}").format(value, sql.Identifier(f"c{index}")) for index, value in enumerate(values)
    )


def _nulled(columns: Sequence[PgColumn]) -> list[tuple[ShownAsNull, sql.Composable]]:
    """Return what counts the values that are shown as null, and their condition, of columns that may have some."""
    return [
        (column.shown_as_null, condition)
        for column in columns
        if column.shown_as_null is not None and (condition := column.is_nulled()) is not None
    ]


def key_order(table: TableLayout) -> sql.Composable:
    """Return the list of key columns in the order of headrace's keys."""
    return sql.SQL(", ").join(table.column(name).sorted() for name in table.primary_key)


def scan(
    connection: PostgresConnection,
    table: TableLayout,
    columns: Sequence[str],
    predicates: Sequence[Predicate],
    keys: KeyRange,
    limit: int | None,
    batch_rows: int,
) -> pa.RecordBatchReader:
    """Read rows, in key order if they have a key, see `headrace.ports.Table.scan`.

    The statement runs when the first batch is read.
    """
    check_scan_sizes(limit, batch_rows)
    schema = pa.schema([table.schema.arrow.field(name) for name in columns])
    statement = sql.SQL("SELECT {} FROM {} t WHERE {}").format(
        selected(table, columns), table.name.sql, where(table, keys, predicates)
    )
    if table.primary_key:
        statement = sql.SQL("{} ORDER BY {}").format(statement, key_order(table))
    if limit is not None:
        statement = sql.SQL("{} LIMIT {}").format(statement, sql.Literal(limit))
    stored = [table.column(name) for name in columns]
    text = statement.as_string(None)
    # The functions of a view find names as the user does.
    path = connection.server.writing_path if table.kind == VIEW else None
    return pa.RecordBatchReader.from_batches(schema, _batches(connection, text, path, stored, schema, batch_rows))


def fetch(
    bulk: Bulk,
    statement: sql.Composable,
    columns: Sequence[PgColumn],
    wanted: pa.Schema,
    parameters: pa.RecordBatch | None = None,
) -> pa.Table:
    """Return all rows of a statement whose select list is that of `selected`."""
    with bulk.cursor() as cursor:
        cursor.execute(statement.as_string(None), parameters)
        rows = cursor.fetch_arrow_table()
    with _counting(columns) as typed:
        return pa.Table.from_batches([typed(batch, wanted) for batch in rows.to_batches()], wanted)


def _batches(
    connection: PostgresConnection,
    statement: str,
    path: str | None,
    columns: Sequence[PgColumn],
    wanted: pa.Schema,
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:
    # A reader that is dropped before its end closes the connection, which cancels the statement.
    with connection.reading() as bulk, bulk.cursor() as cursor, _counting(columns) as typed:
        if path is not None:
            cursor.execute(path_statement(path))
            # Before that, the driver would begin a transaction again.
            cursor.fetch_arrow_table()
        cursor.execute(statement)
        for batch in cursor.fetch_record_batch():
            rows = typed(batch, wanted)
            for start in range(0, rows.num_rows, batch_rows):
                yield rows.slice(start, batch_rows)


@contextmanager
def _counting(columns: Sequence[PgColumn]) -> Iterator[Callable[[pa.RecordBatch, pa.Schema], pa.RecordBatch]]:
    """Yield a function that returns a batch of ADBC with the columns and types of a table, see `selected`.

    In the end, the values that are shown as null are reported.
    """
    reports = [report for report, _ in _nulled(columns)]
    counts = [0] * len(reports)

    def typed(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
        if not columns:
            return batch.select([])
        for place, flags in enumerate(batch.columns[len(columns) :]):
            counts[place] += flags.true_count
        arrays = [_array(values, column) for values, column in zip(batch.columns, columns, strict=False)]
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)

    try:
        yield typed
    finally:
        for report, count in zip(reports, counts, strict=True):
            if count:
                report(count)


def _array(values: pa.Array, column: PgColumn) -> pa.Array:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    return values if values.type == column.type else from_text(values, column)


def splits(connection: PostgresConnection, table: TableLayout, count: int, size: int | None = None) -> list[KeyRange]:
    """Return at most ``count`` key ranges of about equal numbers of rows, from a sample of the keys of a large table.

    Args:
        size: the bytes of a range on disk; None for as many ranges as ``count``.

    Raises:
        OptionError: ``count`` is less than 1.
    """
    if count < 1:
        raise OptionError("a table is split into at least one range", received=count)
    bounds: list[Key] = []
    if count > 1 and table.primary_key:
        pages = connection.run(lambda session: _pages(session, table), repeatable=True)
        most = count if size is None else min(count, 1 + pages * _PAGE_BYTES // size)
        bounds = _bounds(connection, table, most, pages) if most > 1 else []
    return [KeyRange(low, high) for low, high in itertools.pairwise([None, *bounds, None])]


def _bounds(connection: PostgresConnection, table: TableLayout, count: int, pages: int) -> list[Key]:
    sample = sql.SQL("")
    if pages > _MOST_EXACT_PAGES:
        sample = sql.SQL(f"TABLESAMPLE SYSTEM ({100 * _MOST_EXACT_PAGES / pages})")
    columns = [table.column(name) for name in table.primary_key]
    names = sql.SQL(", ").join(sql.Identifier(f"c{index}") for index in range(len(columns)))
    # The n-th row begins a range if the number of its range differs from that of the row before.
    statement = sql.SQL(
        "SELECT {names} FROM (SELECT {keys}, row_number() OVER (ORDER BY {order}) - 1 AS place, "
        "count(*) OVER () AS rows FROM {table} t {sample}) AS numbered "
        "WHERE place > 0 AND place * {count} / rows <> (place - 1) * {count} / rows ORDER BY place"
    ).format(
        names=names,
        keys=selected(table, table.primary_key),
        order=key_order(table),
        table=table.name.sql,
        sample=sample,
        count=sql.Literal(count),
    )
    key_schema = table.schema.nullable(table.primary_key)
    found = connection.run_bulk(lambda bulk: fetch(bulk, statement, columns, key_schema), repeatable=True)
    rows = with_years_of_keys(found)
    return list(zip(*(rows.column(name).to_pylist() for name in table.primary_key), strict=True))


def _pages(session: psycopg.Connection, table: TableLayout) -> int:
    """Return the number of pages of a table and its partitions."""
    statement = "SELECT pg_relation_size(%s)"
    if table.partitioned:
        statement = "SELECT coalesce(sum(pg_relation_size(relid)), 0)::bigint FROM pg_partition_tree(%s) WHERE isleaf"
    row = session.execute(statement, [table.oid]).fetchone()
    assert row is not None
    return int(row[0]) // _PAGE_BYTES
