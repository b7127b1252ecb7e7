"""A table or queue of a store as a dataset of pyarrow, from which DuckDB reads.

For each scan, DuckDB calls `StoreDataset.scanner` with the columns that it needs and the comparisons that it can pass
on, and then pulls batches until it has enough rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.ports import Queue, Table
from headrace.querying.filters import columns_of, conditions
from headrace.querying.queue_rows import queue_rows, queue_schema
from headrace.tables.conditions import Predicate

# Small, because a query with a LIMIT may need only a few rows. DuckDB's threads read one batch each.
_BATCH_ROWS = 8192


class Watch(Protocol):
    """Observes the scans of a query."""

    def check(self) -> None:
        """End a scan by an exception; called before each batch is read."""

    def scan(self) -> contextlib.AbstractContextManager[None]:
        """Return a block that receives the error of a scan."""


class StoreDataset(ds.Dataset):  # type: ignore[misc]
    """A table or queue whose rows are read when DuckDB scans it.

    Args:
        source: the table or queue.
        limit: the number of rows after which no scan needs more; None if it is unknown.
        watch: observes the scans.
    """

    def __init__(self, source: Table | Queue, *, limit: int | None, watch: Watch) -> None:
        # Without the base's constructor, which refuses subclasses.
        self._source = source
        self._limit = limit
        self._watch = watch
        self._schema = source.schema.arrow if isinstance(source, Table) else queue_schema(source)

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
        with self._watch.scan(), self._reader(needed, conditions(expression), limit) as reader:
            while True:
                self._watch.check()
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
                rows = pa.Table.from_batches([batch])
                if expression is not None:
                    # A store may return more rows: it has no conditions on some types and operators.
                    rows = rows.filter(expression)
                for found in rows.select(schema.names).to_batches():
                    yield pa.RecordBatch.from_arrays(found.columns, schema=schema)

    def _reader(self, columns: Sequence[str], where: Sequence[Predicate], limit: int | None) -> pa.RecordBatchReader:
        if isinstance(self._source, Table):
            return self._source.scan(list(columns), list(where), limit=limit, batch_rows=_BATCH_ROWS, read_ahead=False)
        return queue_rows(self._source, where)


class StoreScanner:
    """The rows of one scan, with the methods of `pyarrow.dataset.Scanner` that DuckDB calls."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.projected_schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows; they can be read once."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches)
