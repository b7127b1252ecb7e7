"""The changes of a slot that base data already contains: those that the snapshot of their key's chunk sees. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.schema import Key
from headrace.stores.postgres.tunnels.snapshots import Snapshot
from headrace.wire.pgoutput.messages import Images


class SnapshotChunk(NamedTuple):
    """A chunk: the beginning of its key range, and its snapshot; None before its first read."""

    low: Key | None
    snapshot: str | None


class Chunks:
    """The chunks of a table, in key order."""

    def __init__(self, chunks: Sequence[SnapshotChunk]) -> None:
        self._lows = [chunk.low for chunk in chunks[1:]]
        texts = list(dict.fromkeys(chunk.snapshot for chunk in chunks))
        # A chunk that was not read yet contains no change.
        self._snapshots = [None if text is None else Snapshot.parse(text) for text in texts]
        self._snapshot_of = np.array([texts.index(chunk.snapshot) for chunk in chunks], np.int64)
        self.complete = None not in texts

    def __call__(self, images: Images, keys: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Return which images belong to transactions that the snapshot of their chunk sees.

        Args:
            keys: the key columns of the images.
        """
        if not self._snapshots:
            return np.zeros(len(images), np.bool_)
        none = np.zeros(len(images), np.bool_)
        seen = np.stack([none if each is None else each.visible(images.xids) for each in self._snapshots])
        mask = np.asarray(seen.all(axis=0))
        unclear = np.flatnonzero(seen.any(axis=0) & ~mask)
        if len(unclear):
            chunk = _places([key.take(pa.array(unclear)) for key in keys], self._lows)
            mask[unclear] = seen[self._snapshot_of[chunk], unclear]
        return mask


class TableChunks:
    """The chunks of the tables of a tunnel, by the oids of the tables."""

    def __init__(self, chunks: Mapping[int, Chunks]) -> None:
        self._chunks = chunks
        self.complete = all(each.complete for each in chunks.values())

    def __call__(self, images: Images, keys: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Return which images belong to transactions that the snapshot of their chunk sees; see `Chunks`."""
        chunks = self._chunks.get(images.relation.oid)
        return np.zeros(len(images), np.bool_) if chunks is None else chunks(images, keys)


def _places(keys: Sequence[pa.Array], lows: Sequence[Key | None]) -> npt.NDArray[np.int64]:
    """Return the number of bounds that are not after each key; keys compare by their bytes, as the table is ordered."""
    places = np.zeros(len(keys[0]), np.int64)
    for low in lows:
        from_low: pa.BooleanArray | pa.Scalar = pa.scalar(True)
        for key, bound in reversed(list(zip(keys, low or (), strict=False))):
            scalar = pa.scalar(bound, key.type)
            from_low = pc.or_(pc.greater(key, scalar), pc.and_(pc.equal(key, scalar), from_low))
        places += pc.fill_null(from_low, False).to_numpy(zero_copy_only=False)
    return places
