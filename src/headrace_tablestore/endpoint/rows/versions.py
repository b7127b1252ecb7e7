"""Reads of several versions of cells, row by row. `reading` reads only the newest versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace_tablestore.endpoint.rows.filters import Pagination, matches
from headrace_tablestore.endpoint.rows.layout import CellVersion, Layout, Mask, RowState, states_of
from headrace_tablestore.endpoint.rows.reading import Selected, Selection, select
from headrace_tablestore.wire.plainbuffer.rows import encode_row, encode_rows
from headrace_tablestore.wire.plainbuffer.values import Row, Value


@dataclass(frozen=True)
class SelectedVersions:
    """Selected rows; see `Selected`."""

    rows: Sequence[Row]
    kept: Mask

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def slice(self, length: int) -> SelectedVersions:
        """Return the first rows, with the same ``kept``."""
        return SelectedVersions(self.rows[:length], self.kept)

    def block(self) -> bytes:
        """Return the concatenated rows, for GetRange."""
        return encode_rows(self.rows)

    def each(self) -> list[bytes]:
        """Return each row as a message."""
        return [encode_row(row) for row in self.rows]


def select_rows(
    rows: pa.RecordBatch, layout: Layout, selection: Selection, now: int, present: Mask | None = None
) -> Selected | SelectedVersions:
    """Select rows and cells; see `select`."""
    if not selection.several(layout):
        return select(rows, layout, selection, now, present)
    exist = np.ones(rows.num_rows, np.bool_) if present is None else present
    keys = rows.select(list(layout.schema.primary_key)).to_pylist()
    names = dict.fromkeys(each.name for each in selection.cell_columns(layout))
    found = [
        None if state is None else _selected(tuple(key.items()), state, list(names), selection)
        for key, state in zip(keys, states_of(rows, exist.tolist(), layout, now), strict=True)
    ]
    kept = np.array([row is not None for row in found], np.bool_)
    return SelectedVersions([row for row in found if row is not None], kept)


def _selected(
    key: tuple[tuple[str, Value], ...], state: RowState, names: Sequence[str], selection: Selection
) -> Row | None:
    """Return the selected cells of a row; None if the row is not selected."""
    versions = state.versions(selection.expired_before)
    selected: dict[str, list[CellVersion]] = {}
    for name in names:
        kept = versions.get(name, [])[: selection.kept_versions]
        inside = [version for version in kept if selection.oldest <= version.timestamp < selection.newest]
        if inside:
            selected[name] = inside[: selection.versions]
    if selection.by_column and (selection.columns is None or selection.columns.isdisjoint(name for name, _ in key)):
        if not selected:
            return None
    elif state.visible(selection.expired_before) is None:
        return None
    if isinstance(selection.filter, Pagination):
        first = selection.filter.offset
        selected = dict(list(selected.items())[first : first + selection.filter.limit])
    elif selection.filter is not None:
        values: dict[str, list[Value]] = {name: [value] for name, value in key}
        values.update((name, [version.value for version in each]) for name, each in selected.items())
        if not matches(selection.filter, values):
            return None
    cells = (version.named(name) for name, each in selected.items() for version in each)
    return Row(key, tuple(cells))


def with_version(versions: Sequence[CellVersion], added: CellVersion, most: int) -> list[CellVersion]:
    """Return the versions of a cell with one added, the newest first. It replaces a version of the same timestamp."""
    others = [version for version in versions if version.timestamp != added.timestamp]
    return sorted([added, *others], key=lambda version: -version.timestamp)[:most]
