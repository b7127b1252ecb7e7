"""`HeldRows`: rows that are staged in the memory of the process that publishes them."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from headrace.ports import Staged


class HeldRows:
    """The staged rows of a publisher with `headrace.ports.Publisher.in_process`."""

    def __init__(self) -> None:
        self._tables: dict[int, pa.Table] = {}

    def hold(self, rows: Iterable[pa.RecordBatch]) -> list[Staged]:
        """Stage rows, and return their receipt; none if there are no rows."""
        parts = list(rows)
        if not parts:
            return []
        table = pa.Table.from_batches(parts)
        receipt = Staged(len(self._tables), table.num_rows)
        self._tables[receipt.id] = table
        return [receipt]

    def load(self, receipt: Staged) -> pa.Table:
        return self._tables[receipt.id]

    def clear(self) -> None:
        self._tables.clear()
