"""The rows of data files that have some keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.schema import TableSchema
from headrace.rows.by_position import compared
from headrace_lake.delta import data_files
from headrace_lake.delta.log import DataFile
from headrace_lake.delta.snapshot import Snapshot

Mask = npt.NDArray[np.bool_]


class Keys:
    """Different keys.

    Args:
        rows: the key columns, each key once.
    """

    def __init__(self, schema: TableSchema, rows: pa.Table) -> None:
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

    def rows_of(self, snapshot: Snapshot, file: DataFile, columns: Sequence[str] = ()) -> tuple[Mask, pa.Table] | None:
        """Return the rows of a file with these keys.

        Args:
            columns: further columns of the result.

        Returns:
            Which rows of the file they are, and the rows themselves; None if there are none.
        """
        if not self.can_be_between(file.bounds):
            return None
        with data_files.opened(snapshot.directory / file.path) as opened:
            groups = [
                number
                for number, bounds in enumerate(data_files.group_bounds(opened, self._names[0]))
                if self.can_be_between(bounds if self._bounded else None)
            ]
            if not groups:
                return None
            mask = np.zeros(opened.metadata.num_rows, np.bool_)
            starts = np.cumsum([0] + [opened.metadata.row_group(n).num_rows for n in range(opened.num_row_groups)])
            found: list[pa.Table] = []
            names = [*self._names, *(name for name in columns if name not in self._names)]
            fields = pa.schema([snapshot.schema.arrow.field(name) for name in names])
            constants = snapshot.constants(file)
            for group in groups:
                keys = data_files.read(opened, self._fields, [group], constants)
                places = self._matches(keys)
                if not len(places):
                    continue
                mask[starts[group] + places] = True
                if columns:
                    found.append(data_files.read(opened, fields, [group], constants).take(pa.array(places)))
        if not mask.any():
            return None
        return mask, pa.concat_tables(found) if found else fields.empty_table()

    def _matches(self, keys: pa.Table) -> npt.NDArray[np.int64]:
        """Return the places of the keys in ``keys``, ascending."""
        mask = None
        for name in self._names:
            same = pc.is_in(keys.column(name), value_set=self._rows.column(name).combine_chunks())
            mask = same if mask is None else pc.and_(mask, same)
        places = np.flatnonzero(np.asarray(mask))
        if len(self._names) == 1 or not len(places):
            return places
        candidates = keys.take(pa.array(places))
        first = candidates.column(0).combine_chunks()
        wanted = self._rows.filter(pc.is_in(self._rows.column(0), value_set=first))
        return np.sort(places[compared(candidates, wanted, self._names).left.to_numpy()])
