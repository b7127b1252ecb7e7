"""The rows of data files that have some keys."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.schema import TableSchema
from headrace.rows.by_position import contained, sort_indices
from headrace_lake import data_files
from headrace_lake.data_files import RowNumbers
from headrace_lake.places import Place


class Found(NamedTuple):
    """The rows of a file with some keys.

    Attributes:
        numbers: their numbers in the file.
        rows: the rows themselves.
        keys: the keys of all rows of the file; None if they were not all read.
    """

    numbers: RowNumbers
    rows: pa.Table
    keys: pa.Table | None


class Keys:
    """Different keys.

    Args:
        rows: the key columns, each key once.
    """

    def __init__(self, schema: TableSchema, rows: pa.Table) -> None:
        self._schema = schema
        self._fields = pa.schema([schema.arrow.field(name) for name in schema.primary_key])
        self._names = schema.primary_key
        self._rows = rows.select(list(schema.primary_key)).combine_chunks()
        self._bounded = data_files.has_bounds(self._fields.field(0).type)
        if self._bounded:
            self._rows = self._rows.take(sort_indices(self._rows, self._names[:1])).combine_chunks()

    def can_be_between(self, bounds: tuple[Any, Any] | None) -> bool:
        """Return whether a key can be between two values of the first key column."""
        return bool(self._between(bounds).num_rows)

    def _between(self, bounds: tuple[Any, Any] | None) -> pa.Table:
        """Return the keys between two values of the first key column."""
        if bounds is None or not self._bounded:
            return self._rows
        low, high = bounds
        first, numbers = self._rows.column(0), range(self._rows.num_rows)
        start = bisect.bisect_left(numbers, low, key=lambda number: first[number].as_py())
        end = bisect.bisect_right(numbers, high, start, key=lambda number: first[number].as_py())
        return self._rows.slice(start, end - start)

    def rows_of(
        self,
        path: Place,
        columns: Sequence[str] = (),
        constants: Mapping[str, pa.Scalar] | None = None,
        deleted: RowNumbers | None = None,
    ) -> Found | None:
        """Return the rows of a file with these keys; None if there are none.

        Args:
            columns: further columns of the result.
            constants: the values of columns that the file does not have.
            deleted: the rows of the file that are left out.
        """
        with data_files.opened(path) as opened:
            bounds = enumerate(data_files.group_bounds(opened, self._names[0]))
            groups = {number: wanted for number, each in bounds if (wanted := self._between(each)).num_rows}
            if not groups:
                return None
            starts = data_files.group_starts(opened)
            numbers: list[RowNumbers] = []
            found: list[pa.Table] = []
            names = [*self._names, *(name for name in columns if name not in self._names)]
            fields = pa.schema([self._schema.arrow.field(name) for name in names])
            read: list[pa.Table] = []
            for group, wanted in groups.items():
                keys = data_files.read(opened, self._fields, [group], constants)
                read.append(keys)
                places = self._matches(keys, wanted)
                if deleted is not None:
                    places = places[~_has(deleted, starts[group] + places)]
                if not len(places):
                    continue
                numbers.append((starts[group] + places).astype(np.uint64))
                if columns:
                    found.append(data_files.read(opened, fields, [group], constants).take(pa.array(places)))
        if not numbers:
            return None
        rows = pa.concat_tables(found) if found else fields.empty_table()
        return Found(np.concatenate(numbers), rows, pa.concat_tables(read) if len(read) == len(starts) - 1 else None)

    def _matches(self, keys: pa.Table, wanted: pa.Table) -> npt.NDArray[np.int64]:
        """Return the places of the wanted keys in ``keys``, ascending."""
        places = np.arange(keys.num_rows)
        # Numbers are compared faster than texts, and each column leaves fewer rows to the next one.
        for name in sorted(self._names, key=lambda each: not pa.types.is_primitive(keys.schema.field(each).type)):
            column = keys.column(name)
            left = column if len(places) == len(column) else column.take(pa.array(places))
            same = pc.is_in(left, value_set=wanted.column(name).combine_chunks())
            places = places[np.asarray(same)]
        if len(self._names) == 1 or not len(places):
            return places
        candidates = keys.take(pa.array(places))
        first = candidates.column(0).combine_chunks()
        rest = wanted.filter(pc.is_in(wanted.column(0), value_set=first))
        return places[contained(candidates, rest, self._names)]


def _has(numbers: RowNumbers, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which rows are among some numbers."""
    wanted = rows.astype(np.uint64)
    places = np.searchsorted(numbers, wanted)
    found = np.zeros(len(rows), np.bool_)
    inside = places < len(numbers)
    found[inside] = numbers[places[inside]] == wanted[inside]
    return found
