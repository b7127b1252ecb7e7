"""The records of a page as ReadRecords gives them, each a message of its own: where the rows in them are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.wire.tablestore import tunnel_pb2 as pb

# Before the row stand two tags, the action, and the row's length in at most five bytes.
_LONGEST_HEAD = 8
# The tags of a record's fields.
_ACTION, _ROW, _ORIGIN = 1 << 3, 2 << 3 | 2, 3 << 3 | 2


class Places(NamedTuple):
    """What each record says, and where in its bytes its row is. Arrays have as many elements as there are records."""

    actions: npt.NDArray[np.int8]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


def places_of(records: Sequence[bytes]) -> Places | None:
    """Return the places of rows in serialised `Record` messages, found for all of them at once.

    None if one of them has its fields in another order than they are usually written in.
    """
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    data = np.frombuffer(b"".join((*records, bytes(_LONGEST_HEAD))), np.uint8)
    starts = np.cumsum(sizes) - sizes
    head = data[starts[:, np.newaxis] + np.arange(_LONGEST_HEAD)].astype(np.int64)
    digits = head[:, 3:]
    more = digits >= 0x80
    # A digit belongs to the length as long as all before it say that more follow.
    belongs = np.ones(digits.shape, np.bool_)
    belongs[:, 1:] = np.logical_and.accumulate(more[:, :-1], axis=1)
    lengths = (((digits & 0x7F) * belongs) << (7 * np.arange(digits.shape[1]))).sum(axis=1)
    offsets = 3 + belongs.sum(axis=1)
    ends = offsets + lengths
    usual = (head[:, 0] == _ACTION) & (head[:, 2] == _ROW) & (belongs & ~more).any(axis=1) & (ends <= sizes)
    usual &= (head[:, 1] >= pb.PUT_ROW) & (head[:, 1] <= pb.DELETE_ROW)
    usual &= (ends >= sizes) | (data[starts + np.minimum(ends, sizes)] == _ORIGIN)
    return Places(head[:, 1].astype(np.int8), offsets, lengths) if usual.all() else None
