"""Writes of a table: concurrent BatchWriteRow requests that keep the order of changes of each row.

Rows of one call with the same key are written one after the other; other rows are written in any order. Rows with a
temporary error are repeated alone. Rejected rows are reported with their keys.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import NotFoundError, OptionError, RowsNotWrittenError, StoreError
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import Key, TableSchema
from headrace.rows.by_position import last_rows, sort_indices
from headrace.support import failpoints
from headrace.support.retries import Retries
from headrace_tablestore.store.connection import TablestoreConnection
from headrace_tablestore.store.failures import failure_of
from headrace_tablestore.store.tables.write_options import WriteOptions
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.limits import MAX_BATCH_WRITE_BYTES
from headrace_tablestore.wire.plainbuffer.encoding import encode_deletes, encode_puts, encode_updates

ROWS_AT_ONCE = 20_000
"""Rows that are encoded and sent at once."""
_CONDITION_FAILED = "OTSConditionCheckFail"
# In a request each row also has its type, its condition and two lengths.
_ROW_OVERHEAD = 20
_MOST_ROW_BYTES = MAX_BATCH_WRITE_BYTES - _ROW_OVERHEAD
_TOO_LARGE = "too large"
_FIRST_PAUSE = 0.05
_SHOWN = 5
_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class Failure:
    """A row that was not written: its index among the given rows, and the reason."""

    row: int
    code: str
    message: str

    @property
    def may_pass(self) -> bool:
        """Return whether a retry may help. All writes are idempotent."""
        return ServiceError(self.code, self.message).may_pass(repeatable=True)


@dataclass(frozen=True)
class _Encoded:
    """Encoded rows of one kind of change, with one condition."""

    kind: pb.OperationType
    condition: pb.RowExistenceExpectation
    data: Sequence[bytes]
    rows: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """The bytes of each row."""
        return np.fromiter(map(len, self.data), np.int64, len(self.data))

    def take(self, places: Sequence[int] | np.ndarray) -> _Encoded:
        return replace(self, data=[self.data[place] for place in places], rows=self.rows[places])


class Writer:
    """Writes rows into tables of an instance.

    Args:
        connection: the connection to the service.
        options: options of writes.
    """

    def __init__(self, connection: TablestoreConnection, options: WriteOptions) -> None:
        self._connection = connection
        self._options = options

    def write(
        self, table: str, schema: TableSchema, change: RowChange, rows: pa.Table, *, keep_nulls: bool = False
    ) -> None:
        """Write rows in the table's types.

        Args:
            change: PUT, UPDATE or DELETE. Of several rows with one key the last counts; for UPDATE, the cells of all.
            keep_nulls: for UPDATE, whether a null removes the cell; otherwise the cell is not changed.

        Raises:
            RowsNotWrittenError: rows are too large, or the service rejected them. Others may have been written.
        """
        failures: list[Failure] = []
        for start in range(0, rows.num_rows, ROWS_AT_ONCE):
            (part,) = rows.slice(start, ROWS_AT_ONCE).combine_chunks().to_batches()
            failed = self._write(table, schema, change, part, keep_nulls)
            failures += [replace(failure, row=failure.row + start) for failure in failed]
        if failures:
            self._report(table, schema, rows, failures)

    def _write(
        self, table: str, schema: TableSchema, change: RowChange, rows: pa.RecordBatch, keep_nulls: bool
    ) -> list[Failure]:
        failures = list({failure.row: failure for failure in too_large(rows, schema, self._options)}.values())
        kept = np.ones(rows.num_rows, np.bool_)
        kept[[failure.row for failure in failures]] = False
        if failures and not self._options.ignore_failed_rows:
            return failures
        for places in turns(rows, schema, change, np.flatnonzero(kept)):
            for encoded in _encoded(rows.take(pa.array(places)), places, schema, change, keep_nulls):
                failures += self._send(table, encoded)
        return failures

    def _send(self, table: str, encoded: _Encoded) -> list[Failure]:
        """Write rows of different keys; return the rows that were not written."""
        retries = Retries(
            self._options.retry_seconds,
            first_pause=_FIRST_PAUSE,
            longest_pause=self._options.retry_pause,
            count=self._options.retry_count,
        )
        failures, encoded = _fitting(encoded)
        while True:
            failed = self._send_once(table, encoded)
            again = [place for place, failure in failed if failure.may_pass]
            if not again or not retries.wait(f"Tablestore: {len(again)} rows of {table} were not written"):
                return failures + [failure for _, failure in failed]
            failures += [failure for _, failure in failed if not failure.may_pass]
            encoded = encoded.take(again)

    def _send_once(self, table: str, encoded: _Encoded) -> list[tuple[int, Failure]]:
        """Send rows in several requests; return the indexes of the failed rows, with the reasons."""
        parts = requests(encoded.sizes, self._options.rows_per_request, self._options.bytes_per_request)
        if not parts:
            return []
        with ThreadPoolExecutor(min(len(parts), self._options.requests_in_flight), "headrace-write") as pool:
            found = pool.map(lambda part: self._request(table, encoded, range(part.start, part.stop)), parts)
            return [failed for each in found for failed in each]

    def _request(self, table: str, encoded: _Encoded, places: Sequence[int]) -> list[tuple[int, Failure]]:
        request = pb.BatchWriteRowRequest()
        rows = request.tables.add(table_name=table).rows
        condition = pb.Condition(row_existence=encoded.condition)
        for place in places:
            rows.add(type=encoded.kind, row_change=encoded.data[place], condition=condition)
        failpoints.reach("uncommitted")
        answer = self._connection.call("BatchWriteRow", request, pb.BatchWriteRowResponse, repeatable=True)
        failpoints.reach("committed")
        answered = [row for answered in answer.tables for row in answered.rows]
        if len(answered) != len(rows):
            raise StoreError(
                "Tablestore did not answer for every row", received=f"{len(answered)} rows", valid=f"{len(rows)} rows"
            )
        return [
            (place, Failure(int(encoded.rows[place]), row.error.code, row.error.message))
            for place, row in zip(places, answered, strict=True)
            if not row.is_ok and not (encoded.condition == pb.EXPECT_NOT_EXIST and row.error.code == _CONDITION_FAILED)
        ]

    def _report(self, table: str, schema: TableSchema, rows: pa.Table, failures: Sequence[Failure]) -> None:
        shown = sorted(failures, key=lambda failure: failure.row)[:_SHOWN]
        first = failure_of(ServiceError(shown[0].code, shown[0].message), "/BatchWriteRow")
        if isinstance(first, NotFoundError | OptionError):
            # The cause is the table or the access key, not the rows.
            raise first
        keys = rows.select(schema.primary_key).take([failure.row for failure in shown]).to_pylist()
        reasons = [
            f"{_shown(tuple(key.values()))}: {failure.code}: {failure.message.rstrip('.')}"
            for key, failure in zip(keys, shown, strict=True)
        ]
        more = len(failures) - len(shown)
        error = RowsNotWrittenError(
            f"{len(failures)} of {rows.num_rows} rows were not written to table {table!r}",
            received="; ".join(reasons) + (f"; and {more} more" if more else ""),
            remedy="write these rows again, corrected if necessary; rows that were written may be written twice",
        )
        if not self._options.ignore_failed_rows:
            raise error
        _log.warning("%s", error)


def _fitting(encoded: _Encoded) -> tuple[list[Failure], _Encoded]:
    """Return failures for the rows that are too large for a request, and the other rows."""
    sizes = encoded.sizes
    failures = [
        Failure(int(encoded.rows[place]), _TOO_LARGE, f"{sizes[place]} bytes; at most {_MOST_ROW_BYTES}")
        for place in np.flatnonzero(sizes > _MOST_ROW_BYTES).tolist()
    ]
    return failures, encoded.take(np.flatnonzero(sizes <= _MOST_ROW_BYTES)) if failures else encoded


def _shown(key: Key) -> str:
    text = ascii(key)
    return text if len(text) <= 120 else text[:117] + "..."


# -- which rows, in which requests; pure ----------------------------------------------------------------


def turns(rows: pa.RecordBatch, schema: TableSchema, change: RowChange, places: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the indexes of rows in groups that are written one after the other; no group has a key twice.

    Args:
        places: the indexes of the rows to write, in increasing order.
    """
    if not len(places):
        return
    keys = rows.select(list(schema.primary_key)).take(pa.array(places))
    last = last_rows(keys, schema.primary_key)
    if len(last) == len(places):
        yield places
        return
    if change is not RowChange.UPDATE:
        # The last row of a key is the result of all.
        yield places[last]
        return
    order = sort_indices(keys, schema.primary_key).to_numpy()
    ordered = keys.take(pa.array(order))
    same = np.ones(len(order) - 1, np.bool_)
    for name in ordered.column_names:
        values = ordered.column(name)
        same &= pc.equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False)
    first = np.concatenate([[True], ~same])
    starts = np.flatnonzero(first)
    turn = np.arange(len(order)) - starts[np.cumsum(first) - 1]
    for number in range(int(turn.max()) + 1):
        yield np.sort(places[order[turn == number]])


def requests(sizes: np.ndarray, most_rows: int, most_bytes: int) -> list[slice]:
    """Cut rows with these sizes in bytes into requests. A row that is too large has its own request."""
    ends = np.cumsum(sizes + _ROW_OVERHEAD)
    parts: list[slice] = []
    start, before = 0, 0
    while start < len(sizes):
        stop = int(np.searchsorted(ends, before + most_bytes, side="right"))
        stop = max(start + 1, min(stop, start + most_rows))
        parts.append(slice(start, stop))
        start, before = stop, int(ends[stop - 1])
    return parts


def too_large(rows: pa.RecordBatch, schema: TableSchema, options: WriteOptions) -> Iterator[Failure]:
    """Yield failures for the rows for which the service would reject the whole request."""
    cells = np.zeros(rows.num_rows, np.int64)
    for name in rows.schema.names:
        values = rows.column(name)
        is_key = name in schema.primary_key
        if not is_key:
            cells += values.is_valid().to_numpy(zero_copy_only=False)
        if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
            continue
        most = options.max_key_bytes if is_key else options.max_cell_bytes
        sizes = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(sizes > most):
            yield Failure(int(row), _TOO_LARGE, f"column {name!r} has {sizes[row]} bytes; at most {most} are possible")
    for row in np.flatnonzero(cells > options.max_columns):
        yield Failure(int(row), "too many columns", f"{cells[row]}; at most {options.max_columns} are possible")


def _encoded(
    rows: pa.RecordBatch, places: np.ndarray, schema: TableSchema, change: RowChange, keep_nulls: bool
) -> Iterator[_Encoded]:
    """Yield encoded rows, one value for each kind of change."""
    if change is RowChange.DELETE:
        keys = rows.select(list(schema.primary_key))
        yield _Encoded(pb.DELETE, pb.IGNORE, encode_deletes(keys, schema), places)
        return
    if change is RowChange.PUT:
        yield _Encoded(pb.PUT, pb.IGNORE, encode_puts(rows, schema), places)
        return
    empty = _without_cells(rows, schema)
    if empty.any():
        # The service takes no update without a cell, and one that only removes cells makes no row. The row has to be
        # there afterwards.
        some = np.flatnonzero(empty)
        yield _Encoded(pb.PUT, pb.EXPECT_NOT_EXIST, encode_puts(rows.take(pa.array(some)), schema), places[some])
    some = np.arange(rows.num_rows) if keep_nulls else np.flatnonzero(~empty)
    if len(some):
        data = encode_updates(rows.take(pa.array(some)), schema, None, deletes_nulls=keep_nulls)
        yield _Encoded(pb.UPDATE, pb.IGNORE, data, places[some])


def _without_cells(rows: pa.RecordBatch, schema: TableSchema) -> np.ndarray:
    empty = np.ones(rows.num_rows, np.bool_)
    for name in rows.schema.names:
        if name not in schema.primary_key:
            empty &= rows.column(name).is_null().to_numpy(zero_copy_only=False)
    return empty
