"""Rows for the tables of state."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.tables.changes import RowChange


@dataclass(frozen=True)
class StateRows:
    """Rows to put into a table of state, or keys to delete.

    Attributes:
        table: the table's role: a key of `GroupStates.tables`.
        change: PUT or DELETE.
        rows: the rows, or the keys.
    """

    table: str
    change: RowChange
    rows: pa.Table
