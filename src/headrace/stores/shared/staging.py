"""Staged rows of a batch: their owner, and rows that are staged in the memory of the process that publishes them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import pyarrow as pa

from headrace.ports import Staged


class BatchKey(NamedTuple):
    """The owner of staged rows."""

    job: str
    sink: str
    batch: int


class HeldRows:
    """The staged rows of a publisher with `headrace.ports.Publisher.in_process`."""

    def __init__(self) -> None:
        self._tables: dict[int, pa.Table] = {}
        # A receipt is never that of other rows, also after `clear`.
        self._next = 0

    def hold(self, rows: Iterable[pa.RecordBatch]) -> list[Staged]:
        """Stage rows, and return their receipts: one for all rows with the same columns, as they follow each other."""
        # If the input fails, nothing is staged.
        parts = list(rows)
        return [self._add(pa.Table.from_batches(list(same))) for _, same in groupby(parts, attrgetter("schema"))]

    def _add(self, rows: pa.Table) -> Staged:
        receipt = Staged(self._next, rows.num_rows)
        self._next += 1
        self._tables[receipt.id] = rows
        return receipt

    def load(self, receipt: Staged) -> pa.Table:
        return self._tables[receipt.id]

    def clear(self) -> None:
        self._tables.clear()
