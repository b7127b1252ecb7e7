"""Counts the rows of a load whose key an earlier row of the load has: they replaced that row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_MOST_KEYS = 16_000_000
"""The keys that are remembered, 8 bytes each."""


class KeysOfLoad:
    """The keys of written rows, as digests of 64 bits.

    Attributes:
        exact: whether all keys are remembered, so that `repeated` misses no row.
    """

    def __init__(self) -> None:
        self.exact = True
        self._seen: list[np.ndarray] = []
        self._kept = 0
        self._repeated = 0

    def add(self, rows: pa.Table, key: Sequence[str]) -> None:
        """Add written rows; does nothing without a key."""
        from headrace.inspect.comparing.canonical import canonical
        from headrace.inspect.comparing.digests import row_digests

        if not key or not self.exact:
            return
        columns = [canonical(rows.column(name).combine_chunks()) for name in key]
        self._seen.append(row_digests(columns, key))
        self._kept += rows.num_rows
        if self._kept > _MOST_KEYS:
            self._count()
            self.exact = self._kept <= _MOST_KEYS // 2

    @property
    def repeated(self) -> int:
        """The number of rows that replaced another one."""
        self._count()
        return self._repeated

    def _count(self) -> None:
        import numpy as np

        if len(self._seen) > 0:
            different = np.unique(np.concatenate(self._seen))
            self._repeated += self._kept - len(different)
            self._seen, self._kept = [different], len(different)
