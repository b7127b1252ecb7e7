"""Scans of a table: pages of rows from one state, for any time that the reader takes.

A scan has one read transaction on a separate connection. A long read transaction keeps the write-ahead log from
shrinking. So `READ_AHEAD_BYTES` are read before the first row is returned, and a smaller scan ends its transaction
before that; unless the caller wants no row to be read before it is requested. A scan of a whole table below this size
is read by two threads, each with one half: SQLite works without the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import apsw
import pyarrow as pa

from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.rows.conditions import check_scan_sizes, typed_range
from headrace.stores.embedded.connection import Database
from headrace.stores.embedded.tables.physical import PAGE_BYTES, PhysicalTable
from headrace.support.sqlite.forks import no_fork

READ_AHEAD_BYTES = 64 << 20
# For fewer rows, finding the middle costs more than a second thread gains.
_SHARED_ROWS = 100_000
# The size of rows is not known before the first page.
_FIRST_PAGE_ROWS = 4096
_NO_LIMIT = 1 << 62


def scan(
    database: Database,
    load: Callable[[apsw.Connection], PhysicalTable],
    columns: Sequence[str] | None,
    predicates: Sequence[Predicate],
    keys: KeyRange | None,
    limit: int | None,
    batch_rows: int,
    read_ahead: bool = True,
) -> pa.RecordBatchReader:
    """Scan a table, see `headrace.ports.Table.scan`; ``load`` returns the table as it is in a transaction."""
    check_scan_sizes(limit, batch_rows)
    with no_fork, contextlib.ExitStack() as stack:
        connection = stack.enter_context(database.snapshot())
        table = load(connection)
        names = list(table.schema.names if columns is None else columns)
        schema = pa.schema([table.schema.arrow.field(table.schema.column(name).name) for name in names])
        key_range = typed_range(table.schema, keys or KeyRange())
        if names:
            if read_ahead and keys is None and limit is None and not predicates:
                halves = _two_halves(database, connection, table, names, batch_rows)
                if halves is not None:
                    return pa.RecordBatchReader.from_batches(schema, halves)
            pages = _pages(connection, table, names, key_range, predicates, batch_rows, limit)
        else:
            rows = table.count(connection, key_range, predicates)
            pages = _counted(rows if limit is None else min(rows, limit), batch_rows)
        if not read_ahead:
            return pa.RecordBatchReader.from_batches(schema, _handed_out([], pages, stack.pop_all()))
        ahead: list[pa.RecordBatch] = []
        size = 0
        for page in pages:
            ahead.append(page)
            size += page.nbytes
            if size >= READ_AHEAD_BYTES:
                return pa.RecordBatchReader.from_batches(schema, _handed_out(ahead, pages, stack.pop_all()))
    return pa.RecordBatchReader.from_batches(schema, ahead)


def _two_halves(
    database: Database, connection: apsw.Connection, table: PhysicalTable, columns: Sequence[str], batch_rows: int
) -> list[pa.RecordBatch] | None:
    """Return all rows, read by two threads; None if one thread is as fast, or the rows may not fit into memory."""
    ((rows,),) = connection.execute(
        "SELECT ifnull(sum(rows), 0) FROM partition WHERE object = ? AND open", (table.object_id,)
    )
    if rows < _SHARED_ROWS or rows * table.codec.row_width > READ_AHEAD_BYTES or (os.cpu_count() or 1) < 2:
        return None
    middle = table.key_at(connection, KeyRange(), rows // 2)
    # `no_fork` of this thread covers both threads. If the other one used it, it could wait for a fork, and the fork for
    # this thread.
    with database.snapshot() as second, ThreadPoolExecutor(1) as pool:
        if middle is None or _state(connection, table) != _state(second, table):
            # A commit between the beginnings of the two transactions: they see different states.
            return None
        rest = pool.submit(_gathered, _pages(second, table, columns, KeyRange(middle, None), (), batch_rows))
        lower = _gathered(_pages(connection, table, columns, KeyRange(None, middle), (), batch_rows))
        upper = rest.result()
    return None if lower is None or upper is None else lower + upper


def _gathered(pages: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch] | None:
    """Return all pages; None if they are larger than half of `READ_AHEAD_BYTES`."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for page in pages:
        gathered.append(page)
        size += page.nbytes
        if size > READ_AHEAD_BYTES // 2:
            return None
    return gathered


def _state(connection: apsw.Connection, table: PhysicalTable) -> tuple[int, bool]:
    """Return the version of the last commit of rows, and whether the table exists: a drop has no version."""
    ((version, exists),) = connection.execute(
        "SELECT version, EXISTS (SELECT 1 FROM object WHERE id = ?) FROM clock", (table.object_id,)
    )
    return int(version), bool(exists)


def _handed_out(
    ahead: list[pa.RecordBatch], pages: Iterator[pa.RecordBatch], transaction: contextlib.ExitStack
) -> Iterator[pa.RecordBatch]:
    with transaction:
        ahead.reverse()
        while ahead:
            yield ahead.pop()
        while True:
            # The code of the reader runs between pages and may fork.
            with no_fork:
                page = next(pages, None)
            if page is None:
                return
            yield page


def _pages(
    connection: apsw.Connection,
    table: PhysicalTable,
    columns: Sequence[str],
    keys: KeyRange,
    predicates: Sequence[Predicate],
    batch_rows: int,
    limit: int | None = None,
) -> Iterator[pa.RecordBatch]:
    page_rows = min(batch_rows, _FIRST_PAGE_ROWS)
    missing = _NO_LIMIT if limit is None else limit
    after = None
    while missing:
        page = table.read(connection, columns, keys, predicates, after, min(page_rows, missing))
        if page.rows.num_rows:
            yield page.rows
            missing -= page.rows.num_rows
            average = max(table.codec.row_width, page.rows.nbytes // page.rows.num_rows)
            page_rows = max(1, min(batch_rows, PAGE_BYTES // average))
        if page.ended:
            return
        after = page.last


def _counted(rows: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Return batches without columns, with a number of rows."""
    batch = pa.RecordBatch.from_arrays([pa.nulls(min(rows, batch_rows))], names=["nothing"]).select([])
    for start in range(0, rows, batch_rows):
        yield batch.slice(0, min(batch_rows, rows - start))
