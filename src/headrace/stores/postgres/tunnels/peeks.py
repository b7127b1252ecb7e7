"""One read of a slot, decoded part by part. No I/O, except for messages in a mapped file.

Each read begins on the server at the slot's position. If each window had its own read, the server would decode the
first window of a long batch once for each window. So a read reaches over several windows, and it grows with its
distance from the slot: a batch of a few windows costs the server once its log, and one of any length about twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from headrace.wire.pgoutput.messages import Decoder, Images, Truncation

_WINDOWS = 8
"""The least length of a read in windows: what does not fit into memory is in a file, and the server needs a second."""
_MESSAGES_PER_ROW = 1.25
# Few changes have less log.
_MESSAGE_BYTES = 100
# The server's number is an integer of 32 bits.
_MOST_MESSAGES = 2**31 - 1


def reach(start: int, window: int, restart: int, limit: int) -> int:
    """Return the LSN up to which a read of the slot should go.

    Args:
        start: the LSN of the first wanted change.
        window: the length of a window in bytes.
        restart: the LSN from which the server decodes.
        limit: the LSN after the last wanted change.
    """
    return min(limit, max(start + _WINDOWS * window, start + (start - restart)))


class Received(NamedTuple):
    """What a read of the slot has received: its number of messages, its end, and the rows that were wanted from it."""

    messages: int
    end: int
    wanted: int


def messages_for(rows: int, log: int, last: Received | None) -> int:
    """Return the number of messages that a read of the slot should have for some rows.

    Transactions have two more messages each, so a batch of small ones needs a second read, which the first one makes
    exact: the server decodes the log of a batch about twice, and not the log after it.

    Args:
        rows: the number of wanted rows.
        log: the log between the slot's position and the first of them, in bytes; negative if the slot of an idle table
            is behind them already.
        last: the read that ended there; None if there was none.
    """
    before, per_row = max(0, log) // _MESSAGE_BYTES, _MESSAGES_PER_ROW
    if last is not None:
        read = last.wanted - rows
        # A read that ended before the first of the rows does not show how many messages a row has.
        before = last.messages if read > 0 else 2 * last.messages
        per_row = max(per_row, 1.1 * last.messages / read) if read > 0 else per_row
    return min(before + int(rows * per_row) + 1, _MOST_MESSAGES)


class Part(NamedTuple):
    """The images and truncations that are committed from ``start`` to before ``end``, two LSNs."""

    start: int
    end: int
    images: list[Images]
    truncations: list[Truncation]


class Peek:
    """The messages of all transactions that are committed from ``start`` to before ``end``, two LSNs.

    Only the messages of one part are decoded in memory, and those after them that are in the same Arrow batch.

    Args:
        messages: the messages of the slot; they may begin before ``start``.
        relations: the oids of the tables whose changes are wanted.
    """

    def __init__(self, messages: Sequence[pa.RecordBatch], relations: Collection[int], start: int, end: int) -> None:
        self.start, self.end = start, end
        self._messages = messages
        self._relations = relations
        self._begin(start)

    def _begin(self, start: int) -> None:
        self._next = start
        self._decoder = Decoder(start, self._relations)
        self._left: Iterator[pa.RecordBatch] = iter(self._messages)
        self._images: list[Images] = []
        self._truncations: list[Truncation] = []

    def read(self, start: int, end: int) -> Part:
        """Return the changes from an LSN to another one, or to the end of this read if there are no more changes.

        It is fast if ``start`` is the end of the previous part; otherwise all messages before it are skipped.
        """
        if start != self._next:
            self._begin(start)
        while self._decoder.reached < end and (batch := next(self._left, None)) is not None:
            decoded = self._decoder.decode(batch.column(0))
            self._images += decoded.images
            self._truncations += [
                each
                for each in decoded.truncations
                if any(relation.oid in self._relations for relation in each.relations)
            ]
        if self._decoder.reached < end:
            # There are no more transactions.
            end = self.end
        images, later = [], []
        for found in self._images:
            before = found.lsns < end
            if before.all():
                images.append(found)
            elif before.any():
                images.append(found.filter(before))
                later.append(found.filter(~before))
            else:
                later.append(found)
        truncations = [each for each in self._truncations if each.transaction.lsn < end]
        self._images, self._truncations = later, self._truncations[len(truncations) :]
        self._next = end
        return Part(start, end, images, truncations)
