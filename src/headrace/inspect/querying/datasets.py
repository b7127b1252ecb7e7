"""A table or queue of a store as a dataset of pyarrow, from which DuckDB reads, in the process of a query.

For each scan, DuckDB calls `StoreDataset.scanner` with the columns that it needs and the comparisons that it can pass
on, and then pulls batches until it has enough rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.inspect.querying.filters import columns_of, conditions
from headrace.inspect.querying.messages import EndScan, Find, NextRows, Scan


class Scans:
    """The scans of one query, on the connection to the process that has the store. DuckDB's threads share it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """End the scans: from now on, each has no further rows.

        DuckDB's threads can scan on after their query has ended, and the other process would take their requests for
        those of the next query.
        """
        with self._lock:
            self._closed = True

    def ask(self, request: Find | Scan | NextRows | EndScan) -> Any:
        """Return the answer to a request, or raise the error that is the answer. After `close`, return None."""
        with self._lock:
            if self._closed:
                return None
            self._connection.send(request)
            answer = self._connection.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


class StoreDataset(ds.Dataset):  # type: ignore[misc]
    """A table or queue whose rows are read when DuckDB scans it.

    Args:
        scans: the connection to the store.
        source: the number of the table or queue.
        schema: its columns.
        limit: the number of rows after which no scan needs more; None if it is unknown.
    """

    def __init__(self, scans: Scans, source: int, schema: pa.Schema, *, limit: int | None) -> None:
        # Without the base's constructor, which refuses subclasses.
        self._scans = scans
        self._source = source
        self._schema = schema
        self._limit = limit

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None, **_: Any
    ) -> StoreScanner:
        """Return the rows of one scan; see `pyarrow.dataset.Dataset.scanner`."""
        names = self._schema.names if columns is None else list(columns)
        schema = pa.schema([self._schema.field(name) for name in names])
        return StoreScanner(schema, self._batches(schema, filter))

    def _batches(self, schema: pa.Schema, expression: ds.Expression | None) -> Iterator[pa.RecordBatch]:
        """Yield batches of the rows that satisfy an expression, with the columns of a schema."""
        needed = list(dict.fromkeys([*schema.names, *sorted(columns_of(expression))]))
        limit = None if expression is not None else self._limit
        read = pa.schema([self._schema.field(name) for name in needed])
        scan = self._scans.ask(Scan(self._source, needed, conditions(expression), limit))
        try:
            while (data := self._scans.ask(NextRows(scan))) is not None:
                rows = pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(data), read)])
                if expression is not None:
                    # A store may return more rows: it has no conditions on some types and operators.
                    rows = rows.filter(expression)
                for found in rows.select(schema.names).to_batches():
                    yield pa.RecordBatch.from_arrays(found.columns, schema=schema)
        finally:
            self._scans.ask(EndScan(scan))


class StoreScanner:
    """The rows of one scan, with the methods of `pyarrow.dataset.Scanner` that DuckDB calls."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.projected_schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows; they can be read once."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches)
