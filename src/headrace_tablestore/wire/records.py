"""The positions of the rows in the records of a page of ReadRecords, each of which is a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace_tablestore.wire import tunnel_pb2 as pb

# Two tags and the action precede the row, and its length in at most five bytes.
_LONGEST_HEAD = 8
# The tags of a record's fields.
_ACTION, _ROW, _ORIGIN = 1 << 3, 2 << 3 | 2, 3 << 3 | 2


class Places(NamedTuple):
    """The action of each record, and the offset and length of its row. Arrays have one element for each record."""

    actions: npt.NDArray[np.int8]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


def places_of(records: Sequence[bytes]) -> Places | None:
    """Return the positions of the rows in serialized `Record` messages.

    None if a record does not have its fields in the usual order.
    """
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    data = np.frombuffer(b"".join((*records, bytes(_LONGEST_HEAD))), np.uint8)
    starts = np.cumsum(sizes) - sizes
    head = data[starts[:, np.newaxis] + np.arange(_LONGEST_HEAD)].astype(np.int64)
    digits = head[:, 3:]
    more = digits >= 0x80
    # A digit belongs to the length if all digits before it have the continuation bit.
    belongs = np.ones(digits.shape, np.bool_)
    belongs[:, 1:] = np.logical_and.accumulate(more[:, :-1], axis=1)
    lengths = (((digits & 0x7F) * belongs) << (7 * np.arange(digits.shape[1]))).sum(axis=1)
    offsets = 3 + belongs.sum(axis=1)
    ends = offsets + lengths
    usual = (head[:, 0] == _ACTION) & (head[:, 2] == _ROW) & (belongs & ~more).any(axis=1) & (ends <= sizes)
    usual &= (head[:, 1] >= pb.PUT_ROW) & (head[:, 1] <= pb.DELETE_ROW)
    usual &= (ends >= sizes) | (data[starts + np.minimum(ends, sizes)] == _ORIGIN)
    return Places(head[:, 1].astype(np.int8), offsets, lengths) if usual.all() else None
