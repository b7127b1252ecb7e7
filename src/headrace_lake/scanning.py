"""Reading rows from data files, in key order.

Files of headrace are in key order, so they are merged: of each open file one piece is in memory, and a file is opened
when its first key can come next. Files of other programs are sorted first, each as a whole.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.schema import Column, Key, TableSchema
from headrace.rows.by_position import sort_indices
from headrace.rows.conditions import operands
from headrace.rows.satisfied import satisfied
from headrace_lake import data_files
from headrace_lake.data_files import RowNumbers
from headrace_lake.places import Place


@dataclass(frozen=True)
class Selection:
    """The rows and columns of a scan.

    Attributes:
        names: the columns of the result.
        keys: the range of the keys, in the types of the key columns.
    """

    names: Sequence[str]
    keys: KeyRange
    conditions: Sequence[Predicate]

    def fields(self, schema: TableSchema, *, wanted: bool = False) -> pa.Schema:
        """Return the columns to read; with ``wanted`` those to keep: of the result and of the key."""
        names = [*schema.primary_key, *self.names]
        if not wanted:
            names += [condition.column for condition in self.conditions]
        return schema.nullable(list(dict.fromkeys(names)))


class Source(NamedTuple):
    """Rows in key order, such as those of a file.

    Attributes:
        bounds: bounds of the first key column; None if they are not known.
        rows: yields the selected rows, with the key.
    """

    bounds: tuple[Any, Any] | None
    rows: Callable[[], Iterator[pa.RecordBatch]]


def scan(sources: Sequence[Source], schema: TableSchema, selection: Selection) -> Iterator[pa.RecordBatch]:
    """Yield the rows of sources in key order; of a table without a key in no order."""
    sources = [source for source in sources if _can_have(source.bounds, selection.keys)]
    if not schema.primary_key:
        for source in sources:
            yield from (part.select(list(selection.names)) for part in source.rows())
        return
    for rows in _merged([(each.bounds and each.bounds[0], each.rows) for each in sources], schema.primary_key):
        yield rows.select(list(selection.names))


def _can_have(bounds: tuple[Any, Any] | None, keys: KeyRange) -> bool:
    """Return whether keys between bounds of the first column can be in a range."""
    if bounds is None:
        return True
    below = keys.low is not None and bounds[1] < keys.low[0]
    above = keys.high is not None and bounds[0] > keys.high[0]
    return not below and not above


def file_rows(
    path: Place,
    schema: TableSchema,
    selection: Selection,
    table: str,
    constants: Mapping[str, pa.Scalar] | None = None,
    deleted: RowNumbers | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the selected rows of a file, with the key, in key order.

    Args:
        table: the identity of the table, for `data_files.is_sorted`.
        constants: the values of columns that the file does not have.
        deleted: the rows of the file that are left out.
    """
    key = schema.primary_key
    if not _can_satisfy(constants or {}, schema, selection.conditions):
        return
    with data_files.opened(path) as opened:
        groups = list(range(opened.num_row_groups))
        if key and data_files.has_bounds(schema.column(key[0]).type):
            groups = [
                number
                for number, bounds in enumerate(data_files.group_bounds(opened, key[0]))
                if _can_have(bounds, selection.keys)
            ]
        in_order = not key or data_files.is_sorted(opened, table, key)
        for part in [[group] for group in groups] if in_order else [groups]:
            rows = data_files.read(opened, selection.fields(schema), part, constants, deleted)
            if not in_order:
                rows = rows.take(sort_indices(rows, key))
            yield from selected(rows, schema, selection)


def _can_satisfy(constants: Mapping[str, pa.Scalar], schema: TableSchema, conditions: Sequence[Predicate]) -> bool:
    """Return whether rows that have the same values in some columns can satisfy conditions."""
    certain = [condition for condition in conditions if condition.column in constants]
    if not certain:
        return True
    row = pa.RecordBatch.from_pydict({each.column: pa.repeat(constants[each.column], 1) for each in certain})
    return bool(satisfied(row, [schema.column(each.column) for each in certain], certain).num_rows)


class Bounds(NamedTuple):
    """The values of a column in a file.

    Attributes:
        values: bounds of the values that are not null; None if all are null.
        nulls: whether some can be null.
    """

    values: tuple[Any, Any] | None
    nulls: bool


def can_satisfy(bounds: Mapping[str, Bounds], schema: TableSchema, conditions: Sequence[Predicate]) -> bool:
    """Return whether rows with values between bounds can satisfy conditions.

    Args:
        bounds: the bounds of some columns of integers, texts, dates or times.
    """
    return all(
        _is_possible(bounds[each.column], schema.column(each.column), each)
        for each in conditions
        if each.column in bounds
    )


def _is_possible(bounds: Bounds, column: Column, condition: Predicate) -> bool:
    if condition.operator == "is null":
        return bounds.nulls
    if bounds.values is None or condition.operator in ("is not null", "!="):
        return bounds.values is not None
    try:
        values = operands(column, condition).to_pylist()
    except OverflowError:
        # A year that Python does not have.
        return True
    return any(_is_between(*bounds.values, condition.operator, each) for each in values)


def _is_between(low: Any, high: Any, operator: str, value: Any) -> bool:
    match operator:
        case "<":
            return bool(low < value)
        case "<=":
            return bool(low <= value)
        case ">":
            return bool(high > value)
        case ">=":
            return bool(high >= value)
        case "starts with":
            return bool(low[: len(value)] <= value <= high)
        case _:
            return bool(low <= value <= high)


def selected(rows: pa.Table, schema: TableSchema, selection: Selection) -> Iterator[pa.RecordBatch]:
    """Yield the selected rows of a table of the columns `Selection.fields`, in their order."""
    columns = [schema.column(condition.column) for condition in selection.conditions]
    wanted = selection.fields(schema, wanted=True).names
    for batch in rows.combine_chunks().to_batches(max_chunksize=data_files.ROW_GROUP_ROWS):
        found = satisfied(_in_range(batch, schema.primary_key, selection.keys), columns, selection.conditions)
        if found.num_rows:
            yield found.select(wanted)


def _in_range(rows: pa.RecordBatch, key: Sequence[str], keys: KeyRange) -> pa.RecordBatch:
    for bound, below in ((keys.low, False), (keys.high, True)):
        if bound is not None and rows.num_rows:
            rows = rows.filter(_less(rows, key, bound) if below else pc.invert(_less(rows, key, bound)))
    return rows


def _less(rows: pa.RecordBatch, key: Sequence[str], bound: Key) -> pa.Array:
    """Return which keys are less than a bound, of which a prefix may be given."""
    less = pa.repeat(False, rows.num_rows)
    for name, value in reversed(list(zip(key, bound, strict=False))):
        column = rows.column(name)
        scalar = pa.scalar(value, column.type)
        less = pc.or_(pc.less(column, scalar), pc.and_(pc.equal(column, scalar), less))
    return less


# -- merging ------------------------------------------------------------------------------------------------------


class _Reading:
    """The rows of a file that are not yielded: the first piece, and the rest."""

    def __init__(self, rows: Iterator[pa.RecordBatch], key: Sequence[str]) -> None:
        self._rest = rows
        self._key = key
        self._piece = next(rows, None)

    @property
    def is_empty(self) -> bool:
        return self._piece is None

    @property
    def last(self) -> tuple[Any, ...]:
        """The last key of the piece."""
        assert self._piece is not None
        return self._at(self._piece.num_rows - 1)

    def take(self, bound: tuple[Any, ...]) -> pa.RecordBatch:
        """Return the rows of the piece up to a key, and remove them."""
        assert self._piece is not None
        piece = self._piece
        count = bisect.bisect_right(range(piece.num_rows), bound, key=self._at)
        self._piece = piece.slice(count) if count < piece.num_rows else next(self._rest, None)
        return piece.slice(0, count)

    def _at(self, row: int) -> tuple[Any, ...]:
        assert self._piece is not None
        return tuple(_comparable(self._piece.column(name)[row]) for name in self._key)


def _comparable(value: pa.Scalar) -> Any:
    return value.value if pa.types.is_timestamp(value.type) else value.as_py()


def _merged(
    sources: Sequence[tuple[Any, Callable[[], Iterator[pa.RecordBatch]]]], key: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Merge sources of rows in key order; each has a lower bound of its first key column, or None."""
    waiting = sorted(sources, key=lambda each: (each[0] is not None, each[0]))
    reading: list[_Reading] = []
    while waiting or reading:
        bound = min((source.last for source in reading), default=None)
        while waiting and (bound is None or waiting[0][0] is None or waiting[0][0] <= bound[0]):
            source = _Reading(waiting.pop(0)[1](), key)
            if not source.is_empty:
                reading.append(source)
                bound = source.last if bound is None else min(bound, source.last)
        if bound is None:
            return
        parts = [part for part in (source.take(bound) for source in reading) if part.num_rows]
        reading = [source for source in reading if not source.is_empty]
        if len(parts) == 1:
            yield parts[0]
            continue
        rows = pa.Table.from_batches(parts)
        yield from rows.take(sort_indices(rows, key)).combine_chunks().to_batches()


# -- ranges -------------------------------------------------------------------------------------------------------


def ranges(files: Iterable[tuple[Place, tuple[Any, Any] | None]], schema: TableSchema, count: int) -> list[KeyRange]:
    """Return at most ``count`` ranges of keys of about equal size, by the bounds of row groups.

    Args:
        files: files, with bounds of the first key column, which they need not have; None if these are not known.
    """
    key = schema.primary_key
    if count < 2 or not key or not data_files.has_bounds(schema.column(key[0]).type):
        return [KeyRange()]
    groups: list[tuple[Any, int]] = []
    for path, of_file in files:
        with data_files.opened(path) as opened:
            for number, of_group in enumerate(data_files.group_bounds(opened, key[0])):
                bounds = of_group or of_file
                if bounds is not None:
                    groups.append((bounds[0], opened.metadata.row_group(number).num_rows))
    groups.sort()
    total = sum(rows for _, rows in groups)
    cuts: list[Any] = []
    passed = 0
    for low, rows in groups:
        if passed * count >= total * (len(cuts) + 1) and low > (cuts[-1] if cuts else groups[0][0]):
            cuts.append(low)
        passed += rows
    bounds_of = [None, *((cut,) for cut in cuts), None]
    return [KeyRange(low, high) for low, high in pairwise(bounds_of)]
