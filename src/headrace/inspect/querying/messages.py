"""What the process of a query and the process that has the store say to each other.

There are two connections. On one, the process with the store asks for the rows of a query. On the other, the process of
the query asks for rows of tables, from any of DuckDB's threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import QueryLimitError
from headrace.inspect.querying.names import Name
from headrace.model.tables.conditions import Predicate

THREADS = 2
"""The threads of DuckDB."""
NEXT, CLOSE = "next", "close"
"""Requests for the next rows of a query, and to end it."""


class Query(NamedTuple):
    """Begins a query; the answer is the schema of its result.

    Attributes:
        cpu_seconds: the processor time after which the operating system ends the process; None for no limit.
        memory_bytes: the memory of DuckDB.
        expected_rows: the number of rows after which no more are read; None for all rows.
    """

    sql: str
    cpu_seconds: int | None
    memory_bytes: int
    expected_rows: int | None


class Find(NamedTuple):
    """Asks for the schema of a table or queue; the answer to a wrong name is an error."""

    name: Name


class Scan(NamedTuple):
    """Begins a scan of a table or queue, which the process with the store counts from 0 in the order of `Find`.

    The answer is the number of the scan.
    """

    source: int
    columns: Sequence[str]
    where: Sequence[Predicate]
    limit: int | None


class NextRows(NamedTuple):
    """Asks for the next rows of a scan; the answer is a record batch without its schema, or None at the end."""

    scan: int


class EndScan(NamedTuple):
    """Ends a scan before its last row."""

    scan: int


def packed(batch: pa.RecordBatch) -> bytes:
    """Return a record batch with its schema, and with the dictionaries of its columns."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpacked(data: bytes) -> pa.RecordBatch:
    """Return the record batch of `packed`."""
    return pa.ipc.open_stream(data).read_next_batch()


def memory_error(memory_bytes: int) -> QueryLimitError:
    """Return the error of a query that needs more memory."""
    return QueryLimitError(
        "the query needs more memory than it may use",
        received=f"{memory_bytes >> 20} MiB",
        remedy="read fewer rows or columns: add a WHERE, or group by fewer columns",
    )
