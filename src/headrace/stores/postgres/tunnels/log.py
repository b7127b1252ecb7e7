"""The change log of a tunnel: what its slot contains between two LSNs, in windows.

A window is decoded at once, and the last one is kept, because several pages may lie in one window. One read of the slot
serves several windows, see `headrace.stores.postgres.tunnels.peeks`.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import NamedTuple

from headrace.errors import DataLossError
from headrace.model.tunnels.values import Position
from headrace.stores.postgres.failures import COPIES
from headrace.stores.postgres.tunnels import slots
from headrace.stores.postgres.tunnels.followed import Followed
from headrace.stores.postgres.tunnels.meta_tables import Database
from headrace.stores.postgres.tunnels.pages import Visibility, Window
from headrace.stores.postgres.tunnels.peeks import Peek, Received, messages_for, reach
from headrace.stores.postgres.tunnels.positions import lsn_of, lsn_position, lsn_text
from headrace.stores.postgres.tunnels.publications import Publication
from headrace.wire.pgoutput.messages import Images, Truncation

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


class Stop(NamedTuple):
    """A place in the log that cannot be read.

    Attributes:
        lsn: the LSN of the first transaction that cannot be read.
        after: the LSN after which the log can be read again.
    """

    lsn: int
    after: int
    error: DataLossError


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
        self._kept: tuple[Window, Stop | None] | None = None
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

    def behind_stop(self, position: Position) -> int | None:
        """Return the LSN behind a stop that the last read has found at a position, or None."""
        if self._kept is None or self._kept[1] is None:
            return None
        stop = self._kept[1]
        return stop.after if self._kept[0].end <= max(stop.lsn, lsn_of(position)) else None

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
            DataLossError: the log cannot be read at the start.
        """
        kept = self._kept
        if kept is None or not kept[0].start <= start < kept[0].end:
            in_base = in_base if start < marks.base_end else None
            self._kept = kept = self._read(start, max(start, limit), state, in_base, total)
        found, stop = kept
        if stop is not None and stop.lsn <= start:
            raise stop.error
        return found

    def _read(
        self, start: int, limit: int, state: slots.SlotState, in_base: Visibility | None, total: int | None
    ) -> tuple[Window, Stop | None]:
        if start >= limit:
            return self._followed.window([], start, start, in_base), None
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
        images = [piece for found in part.images for piece in self._followed.pieces(found)]
        stops = [self._truncated(each) for each in part.truncations[:1]]
        stops += [stop for found in images if (stop := self._unreadable(found)) is not None]
        if not stops:
            return self._followed.window(images, start, part.end, in_base), None
        # The changes before a stop can be read.
        first = min(stops, key=lambda stop: stop.lsn)
        end = max(start, first.lsn)
        before = [found.filter(found.lsns < end) for found in images if found.lsns[0] < end]
        return self._followed.window(before, start, end, in_base), first

    def _truncated(self, truncation: Truncation) -> Stop:
        oids = {each.oid for each in truncation.relations} & set(self._followed.relations)
        lsn = truncation.transaction.lsn
        error = DataLossError(
            f"table {', '.join(map(self._followed.name_of, sorted(oids)))!r} was truncated, and the log does "
            "not contain the removed rows",
            received=f"commit version {lsn}",
            remedy="create a new tunnel of kind BaseAndStream, or continue after it with failOnDataLoss=false" + COPIES,
        )
        return Stop(lsn, lsn + 1, error)

    def _unreadable(self, found: Images) -> Stop | None:
        """Return a stop before images that are no rows of their table now; None if they are."""
        problem = self._followed.problem(found)
        if problem is None:
            return None
        first, last = int(found.lsns[0]), int(found.lsns[-1])
        error = DataLossError(
            f"changes of table {self._followed.name_of(found.relation.oid)!r} cannot be read by its definition of now",
            received=f"{problem}; {len(found)} rows in commit versions {first} to {last}",
            remedy="create a new tunnel of kind BaseAndStream, or continue after them with failOnDataLoss=false"
            + COPIES,
        )
        return Stop(first, last + 1, error)


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
