"""Reads of a table: ranges with GetRange, single keys with BatchGetRow, and splits of a table into ranges.

A page is requested while the previous one is decoded. The service returns at most 5000 rows or 4 MB, and the next key;
a page may be empty without being the last. Unlike a scan of the embedded store, each page shows the state at its read.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import OptionError
from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.schema import Key, TableSchema
from headrace.rows.conditions import check_scan_sizes
from headrace_tablestore.store.connection import Patience, TablestoreConnection
from headrace_tablestore.store.failures import failure_of
from headrace_tablestore.store.tables import conditions
from headrace_tablestore.store.tables.key_ranges import MatchingKeys, Span, WireKey, matching_keys
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.limits import MAX_BATCH_GET_ROWS, MAX_COLUMNS_TO_GET
from headrace_tablestore.wire.plainbuffer.decoding import Decoded, decode_block, decode_records
from headrace_tablestore.wire.plainbuffer.rows import decode_row, encode_row
from headrace_tablestore.wire.plainbuffer.values import CellKind, Marker, Row, values_of_key

_MEBIBYTE = 1 << 20
# The service splits by size and does not report the size of a table, so the largest size is tried first.
_SPLIT_SIZES = (256, 16, 1)
_PARALLEL_GETS = 8
_NO_LIMIT, _INT32 = 1 << 62, (1 << 31) - 1
# For rows of a BatchGetRow with a temporary error.
PATIENCE = Patience()
_log = logging.getLogger("headrace")


@dataclass
class Reader:
    """Reads some columns of the rows that satisfy conditions.

    Attributes:
        connection: the connection to the service.
        table: the table's name.
        schema: the table's columns.
        columns: the requested columns, in the order of the result.
        predicates: conditions on any columns.
    """

    connection: TablestoreConnection
    table: str
    schema: TableSchema
    columns: Sequence[str]
    predicates: Sequence[Predicate] = ()
    _read: TableSchema = field(init=False, repr=False)
    _warned: set[str] = field(init=False, repr=False, default_factory=set)

    def __post_init__(self) -> None:
        conditions.check(self.schema, self.predicates)
        for name in self.columns:
            self.schema.column(name)
        named = {*self.columns, *(predicate.column for predicate in self.predicates), *self.schema.primary_key}
        self._read = TableSchema(
            tuple(column for column in self.schema.columns if column.name in named), self.schema.primary_key
        )

    def scan(
        self, keys: KeyRange, limit: int | None, batch_rows: int, *, read_ahead: bool = True
    ) -> pa.RecordBatchReader:
        """Read the rows of a range of keys, in key order. Without columns, batches only have a number of rows.

        With ``read_ahead``, the next page is requested while the caller has the rows of the last one.

        Raises:
            OptionError: ``limit`` is less than 0, or ``batch_rows`` less than 1.
        """
        check_scan_sizes(limit, batch_rows)
        wanted = pa.schema([self.schema.arrow.field(name) for name in self.columns])
        place = matching_keys(self.schema, keys, self.predicates)
        batches = self._batches(place, wanted, limit, read_ahead=read_ahead and limit is None)
        return pa.RecordBatchReader.from_batches(wanted, _cut(batches, batch_rows, limit))

    def scan_with_others(self) -> tuple[pa.Table, pa.ChunkedArray]:
        """Return all rows, and for each whether it has other cells.

        Other cells have a name that is not a column, or a value that does not fit its column.
        """
        batches: list[pa.RecordBatch] = []
        others: list[pa.BooleanArray] = []
        with ThreadPoolExecutor(1, "headrace-read") as pool:
            for span in matching_keys(self.schema, KeyRange(), ()).spans:
                for block in self._pages(pool, span, whole=True):
                    decoded = decode_block(block, self._read)
                    batches.append(self._matching(decoded))
                    others.append(decoded.others)
                    for kinds in decoded.kinds.values():
                        others[-1] = pc.or_(others[-1], pc.equal(kinds, int(CellKind.MISFIT)))
        return pa.Table.from_batches(batches, self._read.changes), pa.chunked_array(others, pa.bool_())

    def get(self, keys: Sequence[Key]) -> pa.RecordBatch:
        """Return the existing rows of at most 100 keys, in the order of the keys."""
        records = [row for row in self._records(keys) if row]
        return self._matching(decode_records(records, self._read))

    def get_all(self, keys: pa.Table) -> pa.Table:
        """Return the existing rows of any number of keys, with their key columns, by several requests at a time."""
        given = list(zip(*(keys.column(name).to_pylist() for name in self.schema.primary_key), strict=True))
        parts = [given[start : start + MAX_BATCH_GET_ROWS] for start in range(0, len(given), MAX_BATCH_GET_ROWS)]
        with ThreadPoolExecutor(_PARALLEL_GETS, "headrace-get") as pool:
            return pa.Table.from_batches(pool.map(self.get, parts), self._read.changes).combine_chunks()

    def _records(self, keys: Sequence[Key]) -> list[bytes]:
        """Return the row of each key, empty if it does not exist. Rows with a temporary error are retried."""
        records = [b""] * len(keys)
        retries = PATIENCE.retries()
        missing = list(range(len(keys)))
        while True:
            request = pb.BatchGetRowRequest()
            request.tables.add(
                table_name=self.table,
                primary_key=[
                    encode_row(Row(tuple(zip(self.schema.primary_key, values_of_key(keys[place]), strict=True))))
                    for place in missing
                ],
                columns_to_get=self._columns_to_get(),
                max_versions=1,
                filter=conditions.filter_of(self.schema, self.predicates),
            )
            answer = self.connection.call("BatchGetRow", request, pb.BatchGetRowResponse)
            failed: dict[int, ServiceError] = {}
            for place, row in zip(missing, answer.tables[0].rows, strict=True):
                if row.is_ok:
                    records[place] = row.row
                else:
                    failed[place] = ServiceError(row.error.code, row.error.message)
            missing = list(failed)
            if not missing:
                return records
            for error in failed.values():
                if not error.may_pass(repeatable=True):
                    raise failure_of(error, "/BatchGetRow", retried=False)
            first = failed[missing[0]]
            if not retries.wait(f"Tablestore: /BatchGetRow: {first}", first_pause=PATIENCE.first_busy_pause):
                raise failure_of(first, "/BatchGetRow", retried=True)

    def _batches(
        self, place: MatchingKeys, wanted: pa.Schema, limit: int | None, *, read_ahead: bool
    ) -> Iterator[pa.RecordBatch]:
        if place.keys is not None:
            for start in range(0, len(place.keys), MAX_BATCH_GET_ROWS):
                yield _selected(self.get(place.keys[start : start + MAX_BATCH_GET_ROWS]), wanted)
            return
        with ThreadPoolExecutor(1, "headrace-read") as pool:
            for span in place.spans:
                for block in self._pages(pool, span, limit=limit, read_ahead=read_ahead):
                    yield _selected(self._matching(decode_block(block, self._read)), wanted)

    def _pages(
        self,
        pool: ThreadPoolExecutor,
        span: Span,
        *,
        whole: bool = False,
        limit: int | None = None,
        read_ahead: bool = True,
    ) -> Iterator[bytes]:
        """Yield the encoded pages of a range. With ``read_ahead``, the next page is requested before one is yielded."""
        request = pb.GetRangeRequest(
            table_name=self.table,
            direction=pb.FORWARD,
            columns_to_get=[] if whole else self._columns_to_get(),
            max_versions=1,
            filter=conditions.filter_of(self.schema, self.predicates),
            inclusive_start_primary_key=_encoded(span.start(self.schema)),
            exclusive_end_primary_key=_encoded(span.end(self.schema)),
        )
        # A filter may drop all rows of a short page.
        if limit is not None and not self.predicates:
            request.limit = max(1, min(limit, _INT32))

        def requested() -> Future[pb.GetRangeResponse]:
            return pool.submit(self.connection.call, "GetRange", request, pb.GetRangeResponse)

        coming: Future[pb.GetRangeResponse] | None = requested()
        while coming is not None:
            page, coming = coming.result(), None
            more = bool(page.next_start_primary_key)
            if more:
                request.inclusive_start_primary_key = page.next_start_primary_key
                coming = requested() if read_ahead else None
            if page.rows:
                yield page.rows
            if more and coming is None:
                coming = requested()

    def _columns_to_get(self) -> list[str]:
        """Return the columns of a request.

        They contain the key columns: the service omits rows without a cell in any requested column.
        """
        names = [*self._read.primary_key, *(column.name for column in self._read.attributes)]
        # Without names, the service returns whole rows.
        return names if len(names) <= MAX_COLUMNS_TO_GET else []

    def _matching(self, decoded: Decoded) -> pa.RecordBatch:
        for name, kinds in decoded.kinds.items():
            if name not in self._warned and pc.any(pc.equal(kinds, int(CellKind.MISFIT))).as_py():
                self._warned.add(name)
                _log.warning(
                    "table %s: column %s has values of another type than %s; they are given as null",
                    self.table,
                    name,
                    self._read.column(name).type,
                )
        return conditions.matching(decoded.rows, self._read, self.predicates)


def _selected(rows: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    if not wanted.names:
        return rows.select([])
    return pa.RecordBatch.from_arrays([rows.column(name) for name in wanted.names], schema=wanted)


def _cut(batches: Iterable[pa.RecordBatch], most: int, limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most ``most`` rows, and at most ``limit`` rows together."""
    missing = _NO_LIMIT if limit is None else limit
    # Without this, the first page would be read for a limit of 0.
    if not missing:
        return
    for batch in batches:
        rows = batch.slice(0, missing)
        for start in range(0, rows.num_rows, most):
            yield rows.slice(start, most)
        missing -= rows.num_rows
        if not missing:
            return


def _encoded(key: WireKey) -> bytes:
    return encode_row(Row(key))


# -- ranges to share out ------------------------------------------------------------------------------------


def splits(connection: TablestoreConnection, table: str, count: int, size: int | None = None) -> list[KeyRange]:
    """Return at most ``count`` key ranges that cover a table, from the service's split points.

    Args:
        size: approximate bytes of a range; None chooses a size for ``count`` ranges.

    Raises:
        OptionError: ``count`` is less than 1.
    """
    if count < 1:
        raise OptionError("a table is split into at least one range", received=count)
    sizes = _SPLIT_SIZES if size is None else (max(1, size // _MEBIBYTE),)
    points: list[Key] = []
    for megabytes in sizes if count > 1 else ():
        request = pb.ComputeSplitPointsBySizeRequest(
            table_name=table, split_size=megabytes, split_size_unit_in_byte=_MEBIBYTE
        )
        found = connection.call("ComputeSplitPointsBySize", request, pb.ComputeSplitPointsBySizeResponse)
        points = [_split_key(point) for point in found.split_points]
        if len(points) >= count - 1:
            break
    if len(points) >= count:
        points = [points[len(points) * number // count] for number in range(1, count)]
    bounds = [None, *points, None]
    return [KeyRange(low, high) for low, high in itertools.pairwise(bounds)]


def _split_key(point: bytes) -> Key:
    """Return a split point as a bound: the values before the first marker."""
    values = []
    for _, value in decode_row(point).key:
        if value is None or isinstance(value, Marker | float | bool):
            break
        values.append(value)
    return tuple(values)
