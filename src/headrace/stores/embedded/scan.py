"""Scanning a table: pages of rows from one state of it, however long the reader takes.

The scan has a connection of its own with one read transaction. Since a long read transaction keeps the write-ahead log
from shrinking, pages are read ahead before the first is handed out: a scan that ends within `READ_AHEAD_BYTES`
has given its transaction back before its caller sees a row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import apsw
import pyarrow as pa

from headrace.errors import OptionError
from headrace.model import KeyRange, Predicate
from headrace.stores.embedded.database import Database
from headrace.stores.embedded.physical import PAGE_BYTES, PhysicalTable
from headrace.stores.embedded.predicates import typed_range

READ_AHEAD_BYTES = 64 << 20
# Nothing is known yet about the size of rows when the first page is read.
_FIRST_PAGE_ROWS = 4096


def scan(
    database: Database,
    load: Callable[[apsw.Connection], PhysicalTable],
    columns: Sequence[str] | None,
    predicates: Sequence[Predicate],
    keys: KeyRange | None,
    batch_rows: int,
) -> pa.RecordBatchReader:
    """Scan a table, see `headrace.ports.Table.scan`; ``load`` returns the table as it is in a transaction."""
    if batch_rows < 1:
        raise OptionError("batch_rows must be at least 1", received=batch_rows)
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(database.snapshot())
        table = load(connection)
        names = list(table.schema.names if columns is None else columns)
        schema = pa.schema([table.schema.arrow.field(table.schema.column(name).name) for name in names])
        key_range = typed_range(table.schema, keys or KeyRange())
        if names:
            pages = _pages(connection, table, names, key_range, predicates, batch_rows)
        else:
            pages = _counted(table.count(connection, key_range, predicates), batch_rows)
        ahead: list[pa.RecordBatch] = []
        size = 0
        for page in pages:
            ahead.append(page)
            size += page.nbytes
            if size >= READ_AHEAD_BYTES:
                return pa.RecordBatchReader.from_batches(schema, _handed_out(ahead, pages, stack.pop_all()))
    return pa.RecordBatchReader.from_batches(schema, ahead)


def _handed_out(
    ahead: list[pa.RecordBatch], pages: Iterator[pa.RecordBatch], transaction: contextlib.ExitStack
) -> Iterator[pa.RecordBatch]:
    with transaction:
        ahead.reverse()
        while ahead:
            yield ahead.pop()
        yield from pages


def _pages(
    connection: apsw.Connection,
    table: PhysicalTable,
    columns: Sequence[str],
    keys: KeyRange,
    predicates: Sequence[Predicate],
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:
    limit = min(batch_rows, _FIRST_PAGE_ROWS)
    after = None
    while True:
        page = table.read(connection, columns, keys, predicates, after, limit)
        if page.rows.num_rows:
            yield page.rows
            average = max(table.codec.row_width, page.rows.nbytes // page.rows.num_rows)
            limit = max(1, min(batch_rows, PAGE_BYTES // average))
        if page.ended:
            return
        after = page.last


def _counted(rows: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Return batches without columns that only have a number of rows."""
    batch = pa.RecordBatch.from_arrays([pa.nulls(min(rows, batch_rows))], names=["nothing"]).select([])
    for start in range(0, rows, batch_rows):
        yield batch.slice(0, min(batch_rows, rows - start))
