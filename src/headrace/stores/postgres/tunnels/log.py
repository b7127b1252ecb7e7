"""The change log of a tunnel: what its slot contains between two LSNs, in windows.

A window is decoded at once, and the last one is kept, because several pages may lie in one window. One read of the slot
serves several windows, see `headrace.stores.postgres.tunnels.peeks`.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import NamedTuple

from headrace.errors import DataLossError
from headrace.stores.postgres.tunnels import slots
from headrace.stores.postgres.tunnels.followed import Followed
from headrace.stores.postgres.tunnels.meta_tables import Database
from headrace.stores.postgres.tunnels.pages import Visibility, Window
from headrace.stores.postgres.tunnels.peeks import Peek, Received, messages_for, reach
from headrace.stores.postgres.tunnels.positions import lsn_of, lsn_position, lsn_text
from headrace.stores.postgres.tunnels.publications import Publication
from headrace.tunnels.values import Position
from headrace.wire.pgoutput.messages import Truncation

WINDOW_BYTES = 64 << 20
"""The log of a window in bytes: its changes are in memory at once."""


class Place(NamedTuple):
    """Rows of a window at a position: the rows from ``first`` to before ``last``.

    Attributes:
        end: the end of the log at the time of the read, or of the bound.
    """

    window: Window
    first: int
    last: int
    end: int


class Marks(NamedTuple):
    """What the tunnel records about its slot; all are LSNs.

    Attributes:
        base_end: base data contains no transaction that is committed from here on.
        advanced: the LSN to which headrace has advanced the slot.
        lost: changes that are committed before it may be lost by that.
    """

    base_end: int
    advanced: int
    lost: int


class ChangeLog:
    """The changes of a tunnel's tables in a slot.

    Args:
        followed: the tables.
    """

    def __init__(
        self, database: Database, tunnel: str, slot: str, system: str, publication: Publication, followed: Followed
    ) -> None:
        self._database = database
        self._tunnel = tunnel
        self._slot = slot
        self._system = system
        self._publication = publication
        self._followed = followed
        self._kept: tuple[Window, list[Truncation]] | None = None
        # At most one. A deque is atomic, so threads need no lock: a thread that finds none reads the slot itself.
        self._peeks: deque[Peek] = deque(maxlen=1)
        self._received: Received | None = None
        # An interval that has no changes of the table.
        self._empty = (0, 0)

    def state(self, position: Position | None = None) -> slots.SlotState:
        """Return the state of the slot; see `slots.state` for errors."""
        lost = "all changes" if position is None else f"changes after {position.token}"
        return slots.state(self._database, self._tunnel, self._slot, self._system, lost)

    def find(
        self,
        position: Position,
        until: Position | None,
        marks: Marks,
        in_base: Visibility | None,
        total: int | None = None,
    ) -> Place:
        """Return the first rows at a position and before a bound, and none only if there are none yet.

        Args:
            total: about how many rows from the position on will be wanted; None for all.

        Raises:
            DataLossError: changes at the position are lost, or the table was truncated there.
        """
        state = self.state(position)
        if until is not None and until.skip:
            until = self._canonical(until, state, marks, in_base)
        start, skip = lsn_of(position), position.skip
        _check_position(self._tunnel, start, state, marks)
        limit = state.flushed
        if until is not None:
            # The last transaction before a bound inside a transaction begins at the bound.
            limit = min(limit, lsn_of(until) + (1 if until.skip else 0))
        while True:
            if self._empty[0] <= start < self._empty[1]:
                start = max(start, min(self._empty[1], limit))
            found = self._window(start, limit, state, marks, in_base, None if total is None else skip + total)
            first, last = found.rows_before(start) + skip, found.rows
            if until is not None:
                last = min(last, found.rows_before(lsn_of(until)) + until.skip)
            if found.rows_before(start) == found.rows:
                self._empty = (self._empty[0] if self._empty[1] == start else start, max(start, found.end))
            if first < last or found.end >= limit:
                return Place(found, min(first, last), last, limit)
            skip = max(0, first - found.rows)
            start = found.end

    def _canonical(
        self, position: Position, state: slots.SlotState, marks: Marks, in_base: Visibility | None
    ) -> Position:
        """Return a position whose rows to skip are rows of the transaction at its LSN."""
        start, skip = lsn_of(position), position.skip
        while start < state.flushed:
            found = self._window(start, state.flushed, state, marks, in_base, skip)
            row = found.rows_before(start) + skip
            if found.rows and row <= found.rows:
                return found.position(row)
            skip, start = row - found.rows, found.end
        return lsn_position(start, skip)

    def accept_publication(self) -> bool:
        """Accept changes that the publication may have left out; return whether there may be any."""
        return self._publication.accept(self._followed.published)

    def forget(self) -> None:
        """Forget what was read."""
        self._kept = None
        self._peeks.clear()
        self._empty = (0, 0)

    def idle_until(self, lsn: int) -> int:
        """Return the LSN up to which, as far as is known, the table has no change from an LSN on."""
        return self._empty[1] if self._empty[0] <= lsn <= self._empty[1] else lsn

    def truncation(self, position: Position) -> int | None:
        """Return the LSN of a truncation that the last read has found at a position, or None."""
        if self._kept is None or not self._kept[1]:
            return None
        lsn = self._kept[1][0].transaction.lsn
        return lsn if self._kept[0].end <= max(lsn, lsn_of(position)) else None

    def canonical(self, position: Position, marks: Marks, in_base: Visibility | None) -> Position:
        """Return the same position with the smallest number of rows to skip."""
        return self._canonical(position, self.state(position), marks, in_base) if position.skip else position

    def _window(
        self,
        start: int,
        limit: int,
        state: slots.SlotState,
        marks: Marks,
        in_base: Visibility | None,
        total: int | None,
    ) -> Window:
        """Return a window that contains ``start``; it may end before ``limit`` or after it.

        Raises:
            DataLossError: the table was truncated at the start.
        """
        kept = self._kept
        if kept is None or not kept[0].start <= start < kept[0].end:
            in_base = in_base if start < marks.base_end else None
            self._kept = kept = self._read(start, max(start, limit), state, in_base, total)
        found, truncations = kept
        if truncations and truncations[0].transaction.lsn <= start:
            truncated = {each.oid for each in truncations[0].relations} & set(self._followed.relations)
            raise DataLossError(
                f"table {', '.join(map(self._followed.name_of, sorted(truncated)))!r} was truncated, and the log does "
                "not contain the removed rows",
                received=f"commit version {truncations[0].transaction.lsn}",
                remedy="create a new tunnel of kind BaseAndStream, or continue after it with failOnDataLoss=false",
            )
        return found

    def _read(
        self, start: int, limit: int, state: slots.SlotState, in_base: Visibility | None, total: int | None
    ) -> tuple[Window, list[Truncation]]:
        if start >= limit:
            return self._followed.window([], start, start, in_base), []
        peek: Peek | None = None
        with suppress(IndexError):
            peek = self._peeks.pop()
        # A limited read may end before the first wanted change. The next one is longer.
        while peek is None or not peek.start <= start < peek.end:
            end = reach(start, WINDOW_BYTES, state.restart, limit)
            # After the end of the log was looked up: a later change of the publication has no effect before it.
            self._publication.check(self._followed.published, f"changes after {lsn_text(start)}")
            last = self._received if self._received is not None and self._received.end <= start else None
            found = slots.peek(
                self._database,
                self._slot,
                self._publication.name,
                end,
                binary=self._followed.binary,
                messages=None if total is None else messages_for(total, start - state.confirmed, last),
            )
            self._received = Received(sum(each.num_rows for each in found.messages), found.end, total or 0)
            peek = Peek(found.messages, self._followed.relations, start, found.end)
        part = peek.read(start, min(start + WINDOW_BYTES, peek.end))
        if part.end < peek.end:
            self._peeks.append(peek)
        # The changes before a truncation can be read.
        end = max(start, part.truncations[0].transaction.lsn) if part.truncations else part.end
        return self._followed.window(part.images, start, end, in_base), part.truncations


def _check_position(tunnel: str, start: int, state: slots.SlotState, marks: Marks) -> None:
    """Check that the slot has all changes from an LSN on.

    Headrace itself advances the slot over changes that are committed, and over log without changes of the table.
    """
    lost = state.confirmed if state.confirmed > marks.advanced else min(state.confirmed, marks.lost)
    if lost <= start <= state.flushed:
        return
    begin, end = lsn_text(state.confirmed), lsn_text(state.flushed)
    raise DataLossError(
        f"changes of tunnel {tunnel!r} after this position have been removed",
        received=f"position {lsn_text(start)}; the slot begins at {begin}, and the server's log ends at {end}",
        remedy="create a new tunnel, or continue with failOnDataLoss=false; if nobody has moved the slot, the query "
        "uses an older copy of its checkpoint",
    )
