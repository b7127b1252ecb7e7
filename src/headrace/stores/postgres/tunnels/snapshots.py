"""Snapshots of PostgreSQL: which transactions are visible to the rows that a chunk of base data has. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_EPOCH = 1 << 32


@dataclass(frozen=True)
class Snapshot:
    """The result of ``pg_current_snapshot()``; transaction ids have 64 bits.

    Attributes:
        xmin: all transactions before it have ended.
        xmax: no transaction from it on has begun.
        running: the transactions between the two that had not ended.
    """

    xmin: int
    xmax: int
    running: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Return the snapshot of a text such as ``10:20:10,14,15``."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(xid) for xid in running.split(",") if xid))

    def visible(self, xids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which committed transactions the snapshot sees.

        Args:
            xids: transaction ids with 32 bits, as the messages of a slot have them. They are extended to the 64-bit ids
                nearest to the snapshot.
        """
        full = xids + (self.xmax // _EPOCH * _EPOCH)
        full = np.where(full - self.xmax > _EPOCH // 2, full - _EPOCH, full)
        full = np.where(self.xmax - full > _EPOCH // 2, full + _EPOCH, full)
        return (full < self.xmax) & ~np.isin(full, self.running)
