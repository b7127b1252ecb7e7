"""The snapshots of base data: which changes of the slot the rows of a chunk already contain. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UnsupportedError
from headrace.model.tables.schema import Key, KeyValue
from headrace.model.types import type_name
from headrace.wire.pgoutput.cells import Integers, Mask
from headrace.wire.pgoutput.messages import Images

_EPOCH = 1 << 32


@dataclass(frozen=True)
class Snapshot:
    """The result of ``pg_current_snapshot()``; transaction ids have 64 bits.

    Attributes:
        xmax: no transaction from it on has begun.
        running: the transactions before it that had not ended.
    """

    xmax: int
    running: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Return the snapshot of a text such as ``10:20:10,14,15``."""
        _, xmax, running = text.split(":")
        return cls(int(xmax), tuple(int(xid) for xid in running.split(",") if xid))

    def sees(self, xids: Integers) -> Mask:
        """Return which committed transactions the snapshot sees.

        Args:
            xids: transaction ids with 32 bits, as the messages of a slot have them. They are extended to the 64-bit ids
                nearest to the snapshot.
        """
        full = xids + (self.xmax // _EPOCH * _EPOCH)
        full = np.where(full - self.xmax > _EPOCH // 2, full - _EPOCH, full)
        full = np.where(self.xmax - full > _EPOCH // 2, full + _EPOCH, full)
        return (full < self.xmax) & ~np.isin(full, self.running)


class ChunkSnapshot(NamedTuple):
    """A chunk: the beginning of its key range, and its snapshot; None before its first read."""

    low: Key | None
    snapshot: str | None


class TableSnapshots:
    """The snapshots of the chunks of a table, in key order."""

    def __init__(self, chunks: Sequence[ChunkSnapshot]) -> None:
        self._lows = [chunk.low for chunk in chunks[1:]]
        texts = list(dict.fromkeys(chunk.snapshot for chunk in chunks))
        # A chunk that was not read yet contains no change.
        self._snapshots = [None if text is None else Snapshot.parse(text) for text in texts]
        self._snapshot_of = np.array([texts.index(chunk.snapshot) for chunk in chunks], np.int64)
        self.complete = None not in texts

    def see(self, images: Images, keys: Sequence[pa.Array]) -> Mask:
        """Return which images belong to transactions that the snapshot of their key's chunk sees.

        Args:
            keys: the key columns of the images.
        """
        none = np.zeros(len(images), np.bool_)
        if not self._snapshots:
            return none
        seen = np.stack([none if each is None else each.sees(images.xids) for each in self._snapshots])
        mask = np.asarray(seen.all(axis=0))
        unclear = np.flatnonzero(seen.any(axis=0) & ~mask)
        if len(unclear):
            chunk = _chunks_of([key.take(pa.array(unclear)) for key in keys], self._lows)
            mask[unclear] = seen[self._snapshot_of[chunk], unclear]
        return mask

    def see_transaction(self, xid: int) -> bool | None:
        """Return whether the chunks that were read see a transaction; None if only some of them do."""
        seen = {bool(each.sees(np.array([xid], np.int64))[0]) for each in self._snapshots if each is not None}
        return None if len(seen) > 1 else seen.pop() if seen else False


class Snapshots:
    """The snapshots of the tables of a tunnel, by the oids of the tables."""

    def __init__(self, tables: Mapping[int, TableSnapshots]) -> None:
        self._tables = tables
        self.complete = all(each.complete for each in tables.values())

    def see(self, images: Images, keys: Sequence[pa.Array]) -> Mask:
        """Return which images base data already contains; see `TableSnapshots.see`."""
        table = self._tables.get(images.relation.oid)
        return np.zeros(len(images), np.bool_) if table is None else table.see(images, keys)

    def see_transaction(self, relation: int, xid: int) -> bool | None:
        """Return whether base data of a table sees a transaction; see `TableSnapshots.see_transaction`."""
        table = self._tables.get(relation)
        return False if table is None else table.see_transaction(xid)


def bound_scalar(bound: KeyValue, data_type: pa.DataType) -> pa.Scalar:
    """Return a value of a bound of base data in the type of its key column.

    Raises:
        UnsupportedError: the key had another type when the base data was divided.
    """
    try:
        return pa.scalar(bound, data_type)
    except pa.ArrowException:
        raise UnsupportedError(
            "the base data of the tunnel was divided by keys of another type",
            received=repr(bound),
            valid=type_name(data_type),
            remedy="create a new tunnel, or open the store with the same option unrepresentable",
        ) from None


def _chunks_of(keys: Sequence[pa.Array], lows: Sequence[Key | None]) -> Integers:
    """Return the number of bounds that are not after each key; keys compare by their bytes, as the table is ordered."""
    chunks = np.zeros(len(keys[0]), np.int64)
    for low in lows:
        from_low: pa.BooleanArray | pa.Scalar = pa.scalar(True)
        for key, bound in reversed(list(zip(keys, low or (), strict=False))):
            scalar = bound_scalar(bound, key.type)
            from_low = pc.or_(pc.greater(key, scalar), pc.and_(pc.equal(key, scalar), from_low))
        chunks += pc.fill_null(from_low, False).to_numpy(zero_copy_only=False)
    return chunks
