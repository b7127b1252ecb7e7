"""Several versions of a cell, row by row. Reads that want the newest versions alone are in `reading`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.endpoints.tablestore.rows.filters import Pagination, matches
from headrace.endpoints.tablestore.rows.layout import Held, Layout, Mask, RowState, states_of
from headrace.endpoints.tablestore.rows.reading import Selected, Selection, select
from headrace.wire.plainbuffer.rows import encode_row, encode_rows
from headrace.wire.plainbuffer.values import Cell, Row, Value


@dataclass(frozen=True)
class SelectedVersions:
    """Rows as they are to be sent; see `Selected`."""

    rows: Sequence[Row]
    kept: Mask

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def slice(self, length: int) -> SelectedVersions:
        """Return the first rows; ``kept`` stays as it is."""
        return SelectedVersions(self.rows[:length], self.kept)

    def block(self) -> bytes:
        """Return the rows back to back, as GetRange gives them."""
        return encode_rows(self.rows)

    def each(self) -> list[bytes]:
        """Return every row as a message of its own."""
        return [encode_row(row) for row in self.rows]


def select_rows(
    rows: pa.RecordBatch, layout: Layout, selection: Selection, now: int, present: Mask | None = None
) -> Selected | SelectedVersions:
    """Return what a selection gives of rows; see `select`."""
    if not selection.several(layout):
        return select(rows, layout, selection, now, present)
    there = np.ones(rows.num_rows, np.bool_) if present is None else present
    keys = rows.select(list(layout.schema.primary_key)).to_pylist()
    names = dict.fromkeys(each.name for each in selection.places(layout))
    found = [
        None if state is None else _selected(tuple(key.items()), state, list(names), selection)
        for key, state in zip(keys, states_of(rows, there.tolist(), layout, now), strict=True)
    ]
    kept = np.array([row is not None for row in found], np.bool_)
    return SelectedVersions([row for row in found if row is not None], kept)


def _selected(
    key: tuple[tuple[str, Value], ...], state: RowState, names: Sequence[str], selection: Selection
) -> Row | None:
    """Return what a selection gives of a row; None if that leaves it out."""
    versions = state.versions(selection.expired_before)
    given: dict[str, list[Held]] = {}
    for name in names:
        kept = versions.get(name, [])[: selection.kept_versions]
        inside = [held for held in kept if selection.oldest <= held.timestamp < selection.newest]
        if inside:
            given[name] = inside[: selection.versions]
    if selection.by_column and (selection.columns is None or selection.columns.isdisjoint(name for name, _ in key)):
        if not given:
            return None
    elif state.visible(selection.expired_before) is None:
        return None
    if isinstance(selection.filter, Pagination):
        first = selection.filter.offset
        given = dict(list(given.items())[first : first + selection.filter.limit])
    elif selection.filter is not None:
        values: dict[str, list[Value]] = {name: [value] for name, value in key}
        values.update((name, [held.value for held in each]) for name, each in given.items())
        if not matches(selection.filter, values):
            return None
    cells = (Cell(name, held.value, None, held.timestamp) for name, each in given.items() for held in each)
    return Row(key, tuple(cells))


def with_version(versions: Sequence[Held], given: Held, most: int) -> list[Held]:
    """Return the versions of a cell with one more, the newest first; it replaces the one of its timestamp."""
    others = [held for held in versions if held.timestamp != given.timestamp]
    return sorted([given, *others], key=lambda held: -held.timestamp)[:most]
