"""Reads of rows: the columns, times and filters of a request, and the selected rows on the wire."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.conditions import Predicate
from headrace.model.tables.schema import TableSchema
from headrace_tablestore.endpoint.errors import invalid, refused
from headrace_tablestore.endpoint.rows.filters import (
    Filter,
    Pagination,
    column_names,
    mask,
    necessary,
    paginated,
    parse_filter,
)
from headrace_tablestore.endpoint.rows.layout import (
    ARROW_TYPES,
    TIMESTAMP,
    TIMESTAMPS,
    VERSIONS,
    CellColumn,
    CellType,
    Layout,
    Mask,
    Numbers,
    any_valid,
    cell_timestamps,
    is_valid,
    is_valid_cell_name,
    wire_schema,
)
from headrace_tablestore.endpoint.tables.settings import TableSettings
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.limits import SERVED_COLUMNS_TO_GET, is_attribute_name
from headrace_tablestore.wire.plainbuffer.encoding import check_schema, encode_block, encode_puts
from headrace_tablestore.wire.plainbuffer.rows import encode_row, encode_rows
from headrace_tablestore.wire.plainbuffer.values import Cell, Row

_END_OF_TIME = 1 << 62
# Fewer rows than this are encoded faster one by one.
_FEW = 4


class ReadRequest(Protocol):
    """The common fields of GetRow, GetRange, and a table of BatchGetRow."""

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
    """The rows and cells that a read returns.

    Attributes:
        columns: the names of the columns; None for all.
        first, end: the range of column names, without ``end``; None for no bound.
        oldest, newest: the range of timestamps (ms), without ``newest``.
        expired_before: the timestamp (ms) below which cells of the table have expired.
        filter: the condition on rows, or the page of columns.
        versions: the maximum number of versions of a cell in the response.
        kept_versions: the number of versions that the table keeps.
    """

    columns: frozenset[str] | None = None
    first: str | None = None
    end: str | None = None
    oldest: int = 0
    newest: int = _END_OF_TIME
    expired_before: int = 0
    filter: Filter | None = None
    versions: int = 1
    kept_versions: int = 1

    @classmethod
    def of(cls, request: ReadRequest, settings: TableSettings, known: Collection[str]) -> Selection:
        """Parse the fields of a request.

        Args:
            settings: the settings of the table.
            known: the names of the table's columns, which may be invalid in Tablestore.

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
            end=request.end_column or None,
            filter=filter,
        )
        if request.HasField("time_range"):
            selection = _with_times(selection, request.time_range)
        return replace(selection, oldest=max(selection.oldest, expired_before), expired_before=expired_before)

    @property
    def by_column(self) -> bool:
        """Whether the read names columns."""
        return self.columns is not None or self.first is not None or self.end is not None

    def several(self, layout: Layout) -> bool:
        """Whether the read may return older versions of cells."""
        has_times = self.oldest > self.expired_before or self.newest < _END_OF_TIME
        return layout.versioned and self.kept_versions > 1 and (self.versions > 1 or has_times)

    def cell_columns(self, layout: Layout) -> list[CellColumn]:
        """Return the columns of the attributes to read, in the order of their wire names.

        Raises:
            UnsupportedError: the read names no columns, and the table has a column without a wire type.
        """
        if self.columns is None:
            layout.check_wire_types()
        return [
            each
            for each in layout.cell_columns
            if (self.columns is None or each.name in self.columns)
            and (self.first is None or each.name >= self.first)
            and (self.end is None or each.name < self.end)
        ]

    def needed(self, layout: Layout) -> list[str]:
        """Return the columns of the table that a read needs."""
        if self.several(layout):
            self.cell_columns(layout)
            attributes = [each.column for each in layout.cell_columns]
            return [*layout.schema.primary_key, *attributes, TIMESTAMP, TIMESTAMPS, VERSIONS]
        hidden = [TIMESTAMP, TIMESTAMPS] if layout.timed else []
        return [*layout.schema.primary_key, *(each.column for each in self.cell_columns(layout)), *hidden]

    def predicates(self, layout: Layout) -> list[Predicate]:
        """Return conditions that the store can check. `select` omits all rows that do not satisfy them."""
        if self.several(layout):
            # The store's columns have only the newest versions.
            return []
        by_name = {each.name: each for each in self.cell_columns(layout)}

        def column_of(name: str, kind: CellType) -> str | None:
            if name in layout.schema.primary_key:
                is_exact = layout.schema.column(name).type == ARROW_TYPES[kind]
                return name if is_exact else None
            cells = by_name.get(name)
            if cells is None or len(layout.of_name[name]) > 1:
                return None
            return cells.column if layout.schema.column(cells.column).type == ARROW_TYPES[kind] else None

        return necessary(self.filter, column_of)


def _with_times(selection: Selection, times: pb.TimeRange) -> Selection:
    if times.HasField("specific_time"):
        oldest, newest = times.specific_time, times.specific_time + 1
    else:
        oldest = times.start_time if times.HasField("start_time") else 0
        newest = times.end_time if times.HasField("end_time") else _END_OF_TIME
    if oldest < 0 or oldest >= newest:
        raise invalid(
            "a time range must end after its start, and not begin before 1970", received=f"{oldest} to {newest}"
        )
    return replace(selection, oldest=oldest, newest=newest)


def check_column_name(name: str, known: Collection[str]) -> None:
    """Raise `ServiceError` for an invalid column name that is not one of the ``known`` columns of the table."""
    if name in known or is_valid_cell_name(name):
        return
    if is_attribute_name(name):
        raise invalid("the endpoint does not support a colon in a column name", received=repr(name))
    raise refused(f"Invalid column name: '{name}'.")


@dataclass(frozen=True)
class Selected:
    """Selected rows.

    Attributes:
        key: the key columns.
        cells: the attributes of which some row has a cell.
        names: the wire names of the attributes. A name may occur several times, with different types.
        timestamps: the timestamps of the cells of each attribute, ms.
        kept: which of the input rows are selected.
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
        """Return the first rows, with the same ``kept``."""
        return Selected(
            self.key.slice(0, length),
            tuple(cells.slice(0, length) for cells in self.cells),
            self.names,
            tuple(timestamps[:length] for timestamps in self.timestamps),
            self.kept,
        )

    def block(self) -> bytes:
        """Return the concatenated rows, for GetRange."""
        if not self.num_rows:
            return b""
        if len(set(self.names)) < len(self.names):
            return encode_rows(self._one_by_one())
        rows, schema, timestamps = self._typed()
        return encode_block(rows, schema, timestamps=timestamps)

    def each(self) -> list[bytes]:
        """Return each row as a message."""
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
        schema = wire_schema(tuple(names), tuple(array.type for array in arrays), self.key.num_columns)
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)
        return rows, schema, dict(zip(self.names, self.timestamps, strict=True))

    def _one_by_one(self) -> Iterable[Row]:
        # Only for few rows, or if a name has several types.
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


def select(
    rows: pa.RecordBatch, layout: Layout, selection: Selection, now: int, present: Mask | None = None
) -> Selected:
    """Select rows and cells.

    A row without any of the named columns is omitted, unless a key column is named. A row without a cell in the time
    range is only its key, if it has not expired.

    Args:
        rows: rows with the columns of `Selection.needed`.
        now: the timestamp (ms) of cells without one.
        present: which rows exist; None for all.
    """
    count = rows.num_rows
    wanted = selection.cell_columns(layout)
    every = cell_timestamps(rows, layout, now)
    timestamps = {each.column: every[each.column] for each in wanted}
    columns = {each.column: rows.column(each.column) for each in wanted}
    has_times = selection.oldest > 0 or selection.newest < _END_OF_TIME
    if has_times:
        columns = {name: _in_time(array, timestamps[name], selection) for name, array in columns.items()}
    if selection.by_column and (selection.columns is None or selection.columns.isdisjoint(layout.schema.primary_key)):
        kept = any_valid(columns.values(), count)
    else:
        kept = _unexpired(rows, timestamps, layout, selection.expired_before, now)
    if present is not None:
        kept &= present
    if isinstance(selection.filter, Pagination):
        columns = paginated(selection.filter, columns, count)
    elif selection.filter is not None:
        by_name: dict[str, list[pa.Array]] = {name: [rows.column(name)] for name in layout.schema.primary_key}
        for each in wanted:
            by_name.setdefault(each.name, []).append(columns[each.column])
        kept &= mask(selection.filter, by_name, count)
    key = rows.select(list(layout.schema.primary_key))
    used = [each for each in wanted if columns[each.column].null_count < count]
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
    """Return which rows have a cell that has not expired, or have no cells and were written recently."""
    count = rows.num_rows
    if not expired_before or not layout.timed:
        return np.ones(count, np.bool_)
    unexpired, has_cells = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    for name, times in timestamps.items():
        has_value = is_valid(rows.column(name))
        has_cells |= has_value
        unexpired |= has_value & (times >= expired_before)
    written: Numbers = rows.column(TIMESTAMP).fill_null(now).to_numpy()
    return unexpired | (~has_cells & (written >= expired_before))
