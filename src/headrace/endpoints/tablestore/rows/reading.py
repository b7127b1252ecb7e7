"""What reads give of rows: the columns, times and filters that a request names, and the rows on the wire."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.endpoints.tablestore.errors import invalid, refused
from headrace.endpoints.tablestore.rows.filters import (
    Filter,
    Pagination,
    column_names,
    mask,
    necessary,
    paginated,
    parse_filter,
)
from headrace.endpoints.tablestore.rows.layout import (
    ARROW_TYPES,
    TIMESTAMP,
    TIMESTAMPS,
    VERSIONS,
    CellType,
    Layout,
    Mask,
    Numbers,
    Placed,
    cell_timestamps,
    is_holdable,
)
from headrace.endpoints.tablestore.tables.settings import TableSettings
from headrace.tables.conditions import Predicate
from headrace.tables.schema import Column, TableSchema
from headrace.wire.plainbuffer.encoding import check_schema, encode_block, encode_puts
from headrace.wire.plainbuffer.rows import encode_row, encode_rows
from headrace.wire.plainbuffer.values import Cell, Row
from headrace.wire.tablestore import table_pb2 as pb
from headrace.wire.tablestore.limits import SERVED_COLUMNS_TO_GET, is_attribute_name

_END_OF_TIME = 1 << 62
# So few rows are encoded quicker one by one.
_FEW = 4


class ReadRequest(Protocol):
    """What GetRow, the tables of BatchGetRow and GetRange have in common."""

    @property
    def columns_to_get(self) -> Iterable[str]: ...
    @property
    def time_range(self) -> pb.TimeRange: ...
    @property
    def max_versions(self) -> int: ...
    @property
    def filter(self) -> bytes: ...
    @property
    def start_column(self) -> str: ...
    @property
    def end_column(self) -> str: ...

    def HasField(self, name: str) -> bool: ...


@dataclass(frozen=True)
class Selection:
    """Which cells of which rows a read gives.

    Attributes:
        columns: names of the columns to get; None for all.
        first, behind: names of the first column, and of the first one behind the last; None is open.
        oldest, newest: timestamps (ms) of the cells, from the first up to but without the second.
        expired_before: timestamp (ms) below which cells of the table have expired.
        filter: the condition on rows, or the page of columns.
        versions: how many versions of a cell are given at most.
        kept_versions: how many versions the table keeps.
    """

    columns: frozenset[str] | None = None
    first: str | None = None
    behind: str | None = None
    oldest: int = 0
    newest: int = _END_OF_TIME
    expired_before: int = 0
    filter: Filter | None = None
    versions: int = 1
    kept_versions: int = 1

    @classmethod
    def of(cls, request: ReadRequest, settings: TableSettings, known: Collection[str]) -> Selection:
        """Read the fields of a request.

        Args:
            settings: the table's.
            known: names of the table's columns, which may be other than Tablestore allows.

        Raises:
            ServiceError: OTSParameterInvalid.
        """
        filter = parse_filter(request.filter) if request.filter else None
        columns = frozenset(request.columns_to_get)
        for name in (*columns, *(() if filter is None else column_names(filter))):
            check_column_name(name, known)
        if len(columns) > SERVED_COLUMNS_TO_GET:
            raise refused(
                "The number of columns from the request exceeds the limit, "
                f"limit count: {SERVED_COLUMNS_TO_GET}, column count: {len(columns)}."
            )
        if request.HasField("max_versions") and request.max_versions < 1:
            raise invalid("max_versions must be at least 1", received=request.max_versions)
        if not request.HasField("max_versions") and not request.HasField("time_range"):
            in_batch = " while querying row" if isinstance(request, pb.TableInBatchGetRowRequest) else ""
            raise refused(f"No version condition is specified{in_batch}.")
        expired_before = settings.expired_before()
        selection = cls(
            versions=request.max_versions if request.HasField("max_versions") else settings.max_versions,
            kept_versions=settings.max_versions,
            columns=columns or None,
            first=request.start_column or None,
            behind=request.end_column or None,
            filter=filter,
        )
        if request.HasField("time_range"):
            selection = _with_times(selection, request.time_range)
        return replace(selection, oldest=max(selection.oldest, expired_before), expired_before=expired_before)

    @property
    def by_column(self) -> bool:
        """Whether only some columns are to be got."""
        return self.columns is not None or self.first is not None or self.behind is not None

    def several(self, layout: Layout) -> bool:
        """Whether older versions of cells may be among those that are given."""
        has_times = self.oldest > self.expired_before or self.newest < _END_OF_TIME
        return layout.versioned and self.kept_versions > 1 and (self.versions > 1 or has_times)

    def places(self, layout: Layout) -> list[Placed]:
        """Return the attributes to get, in the order of their names on the wire.

        Raises:
            UnsupportedError: all are asked for, and the table has one that cannot be sent.
        """
        if self.columns is None:
            layout.check_sendable()
        return [
            each
            for each in layout.placed
            if (self.columns is None or each.name in self.columns)
            and (self.first is None or each.name >= self.first)
            and (self.behind is None or each.name < self.behind)
        ]

    def needed(self, layout: Layout) -> list[str]:
        """Return the columns of the table that a read needs."""
        if self.several(layout):
            self.places(layout)
            attributes = [each.column for each in layout.placed]
            return [*layout.schema.primary_key, *attributes, TIMESTAMP, TIMESTAMPS, VERSIONS]
        hidden = [TIMESTAMP, TIMESTAMPS] if layout.timed else []
        return [*layout.schema.primary_key, *(each.column for each in self.places(layout)), *hidden]

    def predicates(self, layout: Layout) -> list[Predicate]:
        """Return conditions, which the store can check, that leave out only rows that `select` leaves out."""
        if self.several(layout):
            # The store knows the newest versions only.
            return []
        places = {each.name: each for each in self.places(layout)}

        def column_of(name: str, kind: CellType) -> str | None:
            if name in layout.schema.primary_key:
                is_exact = layout.schema.column(name).type == ARROW_TYPES[kind]
                return name if is_exact else None
            place = places.get(name)
            if place is None or len(layout.of_name[name]) > 1:
                return None
            return place.column if layout.schema.column(place.column).type == ARROW_TYPES[kind] else None

        return necessary(self.filter, column_of)


def _with_times(selection: Selection, times: pb.TimeRange) -> Selection:
    if times.HasField("specific_time"):
        oldest, newest = times.specific_time, times.specific_time + 1
    else:
        oldest = times.start_time if times.HasField("start_time") else 0
        newest = times.end_time if times.HasField("end_time") else _END_OF_TIME
    if oldest < 0 or oldest >= newest:
        raise invalid("a time range ends behind its start, which is not before 1970", received=f"{oldest} to {newest}")
    return replace(selection, oldest=oldest, newest=newest)


def check_column_name(name: str, known: Collection[str]) -> None:
    """Refuse a name that no column of a cell can have; ``known`` are those of the table's columns."""
    if name in known or is_holdable(name):
        return
    if is_attribute_name(name):
        raise invalid("this endpoint has no columns whose names contain a colon", received=repr(name))
    raise refused(f"Invalid column name: '{name}'.")


@dataclass(frozen=True)
class Selected:
    """Rows as they are to be sent.

    Attributes:
        key: the key columns.
        cells: attributes; those in which no row has a cell are left out.
        names: the name on the wire of each of them; one may stand twice, with different types.
        timestamps: of the cells of each of them, ms.
        kept: which of the rows that were given these are.
    """

    key: pa.RecordBatch
    cells: tuple[pa.Array, ...]
    names: tuple[str, ...]
    timestamps: tuple[Numbers, ...]
    kept: Mask

    @property
    def num_rows(self) -> int:
        return int(self.key.num_rows)

    def slice(self, length: int) -> Selected:
        """Return the first rows; ``kept`` stays as it is."""
        return Selected(
            self.key.slice(0, length),
            tuple(cells.slice(0, length) for cells in self.cells),
            self.names,
            tuple(timestamps[:length] for timestamps in self.timestamps),
            self.kept,
        )

    def block(self) -> bytes:
        """Return the rows back to back, as GetRange gives them."""
        if not self.num_rows:
            return b""
        if len(set(self.names)) < len(self.names):
            return encode_rows(self._one_by_one())
        rows, schema, timestamps = self._typed()
        return encode_block(rows, schema, timestamps=timestamps)

    def each(self) -> list[bytes]:
        """Return every row as a message of its own."""
        if not self.num_rows:
            return []
        if len(set(self.names)) < len(self.names):
            return [encode_row(row) for row in self._one_by_one()]
        rows, schema, timestamps = self._typed()
        if self.num_rows < _FEW:
            check_schema(schema)
            return [encode_row(row) for row in self._one_by_one()]
        return encode_puts(rows, schema, timestamps=timestamps)

    def _typed(self) -> tuple[pa.RecordBatch, TableSchema, Mapping[str, Numbers]]:
        names = [*self.key.schema.names, *self.names]
        arrays = [*self.key.columns, *self.cells]
        schema = _schema(tuple(names), tuple(array.type for array in arrays), self.key.num_columns)
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)
        return rows, schema, dict(zip(self.names, self.timestamps, strict=True))

    def _one_by_one(self) -> Iterable[Row]:
        # For few rows, and for those in which one column has cells of several types.
        key_names = self.key.schema.names
        keys = [tuple(zip(key_names, key.values(), strict=True)) for key in self.key.to_pylist()]
        columns = [cells.to_pylist() for cells in self.cells]
        for row, key in enumerate(keys):
            cells = tuple(
                Cell(name, column[row], timestamp=int(timestamps[row]))
                for name, column, timestamps in zip(self.names, columns, self.timestamps, strict=True)
                if column[row] is not None
            )
            yield Row(key, cells)


@functools.lru_cache(maxsize=256)
def _schema(names: tuple[str, ...], types: tuple[pa.DataType, ...], key_columns: int) -> TableSchema:
    columns = tuple(Column(name, data_type) for name, data_type in zip(names, types, strict=True))
    return TableSchema(columns, names[:key_columns])


def select(
    rows: pa.RecordBatch, layout: Layout, selection: Selection, now: int, present: Mask | None = None
) -> Selected:
    """Return what a selection gives of rows.

    A row that has none of the columns to get is left out, unless a key column is among them. One that has no cell of
    the times to get is its key alone, as long as it has not expired.

    Args:
        rows: with the columns of `Selection.needed`.
        now: the timestamp (ms) of cells that have none.
        present: which of the rows are there; all if None.
    """
    count = rows.num_rows
    places = selection.places(layout)
    every = cell_timestamps(rows, layout, now)
    timestamps = {each.column: every[each.column] for each in places}
    columns = {each.column: rows.column(each.column) for each in places}
    has_times = selection.oldest > 0 or selection.newest < _END_OF_TIME
    if has_times:
        columns = {name: _in_time(array, timestamps[name], selection) for name, array in columns.items()}
    if selection.by_column and (selection.columns is None or selection.columns.isdisjoint(layout.schema.primary_key)):
        kept = _any_valid(columns.values(), count)
    else:
        kept = _unexpired(rows, timestamps, layout, selection.expired_before, now)
    if present is not None:
        kept &= present
    if isinstance(selection.filter, Pagination):
        columns = paginated(selection.filter, columns, count)
    elif selection.filter is not None:
        by_name: dict[str, list[pa.Array]] = {name: [rows.column(name)] for name in layout.schema.primary_key}
        for each in places:
            by_name.setdefault(each.name, []).append(columns[each.column])
        kept &= mask(selection.filter, by_name, count)
    key = rows.select(list(layout.schema.primary_key))
    used = [each for each in places if columns[each.column].null_count < count]
    if kept.all():
        cells = tuple(columns[each.column] for each in used)
        times = tuple(timestamps[each.column] for each in used)
    else:
        chosen = pa.array(kept)
        key = key.filter(chosen)
        cells = tuple(columns[each.column].filter(chosen) for each in used)
        times = tuple(timestamps[each.column][kept] for each in used)
    return Selected(key, cells, tuple(each.name for each in used), times, kept)


def _in_time(array: pa.Array, timestamps: Numbers, selection: Selection) -> pa.Array:
    inside = (timestamps >= selection.oldest) & (timestamps < selection.newest)
    if inside.all():
        return array
    return pc.if_else(pa.array(inside), array, pa.scalar(None, array.type))


def _unexpired(
    rows: pa.RecordBatch, timestamps: Mapping[str, Numbers], layout: Layout, expired_before: int, now: int
) -> Mask:
    """Tell which rows have a cell that has not expired, or no cells and were written late enough."""
    count = rows.num_rows
    if not expired_before or not layout.timed:
        return np.ones(count, np.bool_)
    unexpired, has_cells = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    for name, times in timestamps.items():
        there = rows.column(name).is_valid().to_numpy(zero_copy_only=False)
        has_cells |= there
        unexpired |= there & (times >= expired_before)
    written: Numbers = rows.column(TIMESTAMP).fill_null(now).to_numpy()
    return unexpired | (~has_cells & (written >= expired_before))


def _any_valid(columns: Iterable[pa.Array], count: int) -> Mask:
    result = np.zeros(count, np.bool_)
    for array in columns:
        result |= array.is_valid().to_numpy(zero_copy_only=False)
    return result
