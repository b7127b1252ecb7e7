"""The rows of data files that have some keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.schema import TableSchema
from headrace.rows.by_position import compared
from headrace_lake import data_files
from headrace_lake.data_files import RowNumbers
from headrace_lake.places import Place


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
        self._low: Any = None
        self._high: Any = None
        if self._bounded and self._rows.num_rows:
            bounds = pc.min_max(self._rows.column(0))
            self._low, self._high = bounds["min"].as_py(), bounds["max"].as_py()

    def can_be_between(self, bounds: tuple[Any, Any] | None) -> bool:
        """Return whether a key can be between two values of the first key column."""
        if not self._rows.num_rows:
            return False
        if bounds is None or not self._bounded:
            return True
        low, high = bounds
        if high < self._low or self._high < low:
            return False
        first = self._rows.column(0)
        kind = first.type
        inside = pc.and_(pc.greater_equal(first, pa.scalar(low, kind)), pc.less_equal(first, pa.scalar(high, kind)))
        return bool(pc.any(inside).as_py())

    def rows_of(
        self,
        path: Place,
        columns: Sequence[str] = (),
        constants: Mapping[str, pa.Scalar] | None = None,
        deleted: RowNumbers | None = None,
    ) -> tuple[RowNumbers, pa.Table] | None:
        """Return the rows of a file with these keys.

        Args:
            columns: further columns of the result.
            constants: the values of columns that the file does not have.
            deleted: the rows of the file that are left out.

        Returns:
            The numbers of the rows in the file, and the rows themselves; None if there are none.
        """
        with data_files.opened(path) as opened:
            groups = [
                number
                for number, bounds in enumerate(data_files.group_bounds(opened, self._names[0]))
                if self.can_be_between(bounds if self._bounded else None)
            ]
            if not groups:
                return None
            starts = data_files.group_starts(opened)
            numbers: list[RowNumbers] = []
            found: list[pa.Table] = []
            names = [*self._names, *(name for name in columns if name not in self._names)]
            fields = pa.schema([self._schema.arrow.field(name) for name in names])
            for group in groups:
                keys = data_files.read(opened, self._fields, [group], constants)
                places = self._matches(keys)
                if deleted is not None:
                    places = places[~_has(deleted, starts[group] + places)]
                if not len(places):
                    continue
                numbers.append((starts[group] + places).astype(np.uint64))
                if columns:
                    found.append(data_files.read(opened, fields, [group], constants).take(pa.array(places)))
        if not numbers:
            return None
        return np.concatenate(numbers), pa.concat_tables(found) if found else fields.empty_table()

    def _matches(self, keys: pa.Table) -> npt.NDArray[np.int64]:
        """Return the places of the keys in ``keys``, ascending."""
        places = np.arange(keys.num_rows)
        # Numbers are compared faster than texts, and each column leaves fewer rows to the next one.
        for name in sorted(self._names, key=lambda each: not pa.types.is_primitive(keys.schema.field(each).type)):
            column = keys.column(name)
            left = column if len(places) == len(column) else column.take(pa.array(places))
            same = pc.is_in(left, value_set=self._rows.column(name).combine_chunks())
            places = places[np.asarray(same)]
        if len(self._names) == 1 or not len(places):
            return places
        candidates = keys.take(pa.array(places))
        first = candidates.column(0).combine_chunks()
        wanted = self._rows.filter(pc.is_in(self._rows.column(0), value_set=first))
        return np.sort(places[compared(candidates, wanted, self._names).left.to_numpy()])


def _has(numbers: RowNumbers, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which rows are among some numbers."""
    wanted = rows.astype(np.uint64)
    places = np.searchsorted(numbers, wanted)
    found = np.zeros(len(rows), np.bool_)
    inside = places < len(numbers)
    found[inside] = numbers[places[inside]] == wanted[inside]
    return found
