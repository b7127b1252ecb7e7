"""The change log of a tunnel: the changes that its slot contains.

A `SlotRead` has the messages of one call of the server. A `Window` has the changes of a stretch of it, which are
decoded at once. `WindowRows` are those at a position, and a `Page` has as many of them as its reader wants.

What was read is in one value, `LogCache`: the last window, because several pages may lie in it, and the read that it is
from, because the next windows are in it. A window begins behind the last change before it, so that a long stretch
without changes is read once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headrace.errors import DataLossError, StoreBusyError
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tables.several_tables import TABLE
from headrace.model.tunnels.values import Backlog, Page, Position
from headrace.stores.postgres.failures import COPIES
from headrace.stores.postgres.tunnels import slot_reads
from headrace.stores.postgres.tunnels.channel_rows import read_snapshots
from headrace.stores.postgres.tunnels.followed import Followed
from headrace.stores.postgres.tunnels.members import in_stream
from headrace.stores.postgres.tunnels.meta_tables import TunnelDatabase
from headrace.stores.postgres.tunnels.positions import lsn_of, lsn_position, lsn_text
from headrace.stores.postgres.tunnels.publications import Publication
from headrace.stores.postgres.tunnels.slot_reads import ReadSize, SlotRead
from headrace.stores.postgres.tunnels.snapshots import Snapshots
from headrace.stores.postgres.tunnels.stored_tunnels import StoredTunnel, dropped
from headrace.wire.pgoutput.messages import Images, Truncation, WrittenLeaf

WINDOW_BYTES = 64 << 20
"""The log of a window in bytes: its changes are in memory at once."""
_STATE = f"""
SELECT pg_current_wal_flush_lsn() - '0/0', s.confirmed_flush_lsn - '0/0', s.restart_lsn - '0/0', t.base_end - '0/0',
    t.advanced - '0/0', t.lost - '0/0', s.wal_status,
    t.system = (SELECT system_identifier::text FROM pg_control_system()),
    {slot_reads.AWAITED},
    (SELECT reason FROM headrace.slot_limit WHERE tunnel = t.id)
FROM headrace.tunnel t LEFT JOIN pg_replication_slots s ON s.slot_name = t.slot WHERE t.id = %s
"""


class JoinedError(StoreBusyError):
    """A table has joined the tunnel, or the stream no longer waits for one, since the tables were opened."""


class SlotState(NamedTuple):
    """A tunnel's slot at one moment, and the tunnel's records about it; all are LSNs.

    Attributes:
        flushed: the server's log is on disk up to it.
        confirmed: the slot was advanced to it.
        restart: the server keeps its log for the slot from it on.
        base_end: base data contains no transaction that is committed from here on.
        advanced: headrace has advanced the slot to it.
        lost: changes that are committed before it may be lost by that.
    """

    flushed: int
    confirmed: int
    restart: int
    base_end: int
    advanced: int
    lost: int


class Stop(NamedTuple):
    """A place in the log that cannot be read.

    Attributes:
        lsn: the LSN of the first transaction that cannot be read.
        after: the LSN after which the log can be read again.
        error: why; None if the stream waits for base data of a table that has joined the tunnel.
    """

    lsn: int
    after: int
    error: DataLossError | None


@dataclass(frozen=True)
class Window:
    """All changes in the transactions that are committed from ``start`` to before ``end``, two LSNs.

    Attributes:
        stop: why the log cannot be read from ``end`` on; None if it can.
        leaves: the partitions with rows, which are checked before the rows are read. A save of positions also decodes
            windows, in a transaction for which the check would wait.
    """

    start: int
    end: int
    changes: Changes
    stop: Stop | None = None
    leaves: Sequence[WrittenLeaf] = ()

    @property
    def count(self) -> int:
        return self.changes.num_rows

    @property
    def behind(self) -> int:
        """The LSN behind the last change."""
        return int(self.changes.versions[-1].as_py()) + 1 if self.count else self.start

    def position(self, row: int) -> Position:
        """Return the position before a row: the LSN of its transaction, and the rows of the transaction before it.

        After the last row, it is the LSN behind its transaction, and so the same whenever the row is read.
        """
        if row >= self.count:
            return lsn_position(self.behind if self.count else self.end)
        lsns = self.changes.versions.to_numpy()
        return lsn_position(int(lsns[row]), row - int(np.searchsorted(lsns, lsns[row])))

    @property
    def waits(self) -> bool:
        """Whether what follows is read after base data is committed."""
        return self.stop is not None and self.stop.error is None

    def has(self, lsn: int) -> bool:
        """Return whether the changes from an LSN on begin in this window, as far as the log can be read now."""
        return self.start <= lsn < self.end or (self.waits and lsn == self.end)

    def rows_before(self, lsn: int) -> int:
        """Return the number of rows of transactions that are committed before an LSN."""
        return int(np.searchsorted(self.changes.versions.to_numpy(), lsn))


@dataclass(frozen=True)
class WindowRows:
    """Rows of a window at a position: the rows from ``first`` to before ``last``.

    Attributes:
        end: the end of the log at the time of the read, or of the bound.
        all: whether the bound of the read is behind them, and no other row is before it.
    """

    window: Window
    first: int
    last: int
    end: int
    all: bool = False

    @property
    def count(self) -> int:
        return self.last - self.first

    @property
    def changes(self) -> Changes:
        return self.window.changes.slice(self.first, self.count)

    def to_truncation(self, first: int = 1) -> WindowRows:
        """Return the rows before the first TRUNCATE behind the ``first`` rows."""
        truncations = np.flatnonzero(self.changes.ops.to_numpy()[first:] == ChangeOp.TRUNCATE)
        return replace(self, last=self.first + first + int(truncations[0]), all=False) if len(truncations) else self

    def page(self, max_rows: int) -> Page:
        """Return the first rows as a page, which does not separate an old row from its new one."""
        count, changes = self.count, self.changes
        if count > max(1, max_rows):
            count = min(count, changes.whole_pairs(max(1, max_rows)))
        return Page(changes.slice(0, count), self.window.position(self.first + count), self.all and count == self.count)


class LogCache(NamedTuple):
    """What was read of a log. Each step replaces it as a whole.

    Attributes:
        snapshots: the snapshots of base data, after all of them are there.
        window: the last window.
        read: the read in which the next window is; None at its end.
        size: the size of the last read.
    """

    snapshots: Snapshots | None = None
    window: Window | None = None
    read: SlotRead | None = None
    size: ReadSize | None = None


class ChangeLog:
    """The changes of a tunnel's tables in its slot.

    Args:
        followed: the tables.
    """

    def __init__(self, database: TunnelDatabase, tunnel: StoredTunnel, followed: Followed) -> None:
        assert tunnel.slot is not None
        assert tunnel.publication is not None
        self._database = database
        self._tunnel = tunnel
        self._slot = tunnel.slot
        self._publication = Publication(database, tunnel.id, tunnel.name, tunnel.publication)
        self._followed = followed
        self._cache = LogCache()
        # Of the thread that decodes: the server lets one at a time read the slot, and the next one finds its window.
        self._decoding = threading.Lock()

    def end(self) -> Position:
        """Return the position at the end of the log."""
        return lsn_position(self._state().flushed)

    def rows(self, position: Position, until: Position | None = None, total: int | None = None) -> WindowRows:
        """Return the first rows at a position and before a bound, and none only if there are none yet.

        Args:
            total: about how many rows from the position on will be wanted; None for all.

        Raises:
            DataLossError: changes at the position are lost.
        """
        snapshots = self._base_snapshots()
        state = self._state(position)
        if until is not None and until.skip:
            until = self._canonical(until, state, snapshots)
        start, skip = lsn_of(position), position.skip
        self._check_position(start, state)
        # The last transaction before a bound inside a transaction begins at the bound.
        bound = None if until is None else lsn_of(until) + (1 if until.skip else 0)
        limit = state.flushed if bound is None else min(state.flushed, bound)
        while True:
            window = self._window_at(start, limit, state, snapshots, None if total is None else skip + total)
            self._followed.definitions.check_leaves(window.leaves, start)
            first, last = window.rows_before(start) + skip, window.count
            if until is not None:
                last = min(last, window.rows_before(lsn_of(until)) + until.skip)
            if first < last or window.end >= limit or window.waits:
                end = min(limit, window.end) if window.waits else limit
                return WindowRows(window, min(first, last), last, end, all=limit == bound and window.end >= limit)
            skip = max(0, first - window.count)
            start = window.end

    def canonical(self, position: Position) -> Position:
        """Return the same position with the smallest number of rows to skip."""
        if not position.skip:
            return position
        snapshots = self._base_snapshots()
        return self._canonical(position, self._state(position), snapshots)

    def _canonical(self, position: Position, state: SlotState, snapshots: Snapshots) -> Position:
        """Return a position whose rows to skip are rows of the transaction at its LSN."""
        start, skip = lsn_of(position), position.skip
        while start < state.flushed:
            window = self._window_at(start, state.flushed, state, snapshots, skip)
            row = window.rows_before(start) + skip
            if window.count and row <= window.count:
                return window.position(row)
            if window.waits:
                break
            skip, start = row - window.count, window.end
        return lsn_position(start, skip)

    def at_time(self, position: Position, time: int) -> Position:
        """Return the position of the first transaction at or after a time in µs, from a position on.

        Changes before it are not delivered, so they need not be readable.
        """
        state, start = self._state(position), lsn_of(position)
        self._check_position(start, state)
        with self._decoding:
            while start < state.flushed:
                read, size = self._read_at(start, state.flushed, state, None)
                # Without a read whose decoding fails halfway.
                self._cache = self._cache._replace(read=None, size=size)
                decoded, end = read.decode(start, min(start + WINDOW_BYTES, read.end))
                self._cache = self._cache._replace(read=read if read.has(read.next) else None)
                later = [int(each.lsns[each.times >= time][0]) for each in decoded.images if each.times.max() >= time]
                later += [each.transaction.lsn for each in decoded.truncations if each.transaction.time >= time]
                if later:
                    first = min(later)
                    return position if first == lsn_of(position) else lsn_position(first)
                start = end
        return lsn_position(start)

    def backlog(self, position: Position, until: Position | None, reach: int) -> Backlog:
        """Return the backlog at a position, from the first ``reach`` bytes of the log with rows."""
        rows, more = self._look(position, until, reach)
        count = rows.count
        if count == 0:
            return Backlog(rows=0, bytes=0, seconds=0.0)
        changes, truncates = rows.window.changes, _truncated_first(rows.changes)
        seconds = max(0.0, time.time() - changes.timestamps[rows.first].value / 1e6)
        size = max(1, changes.rows.nbytes * count // max(1, changes.num_rows))
        if rows.window.end < rows.end:
            # The window was read some time ago, or has an end of its own.
            rows, more = self._look(lsn_position(rows.window.end), until, reach)
            count += rows.count
        more |= rows.window.end < rows.end
        return Backlog(rows=None if more else count, bytes=size, seconds=seconds, at_least=count, truncates=truncates)

    def _look(self, position: Position, until: Position | None, reach: int) -> tuple[WindowRows, bool]:
        """Return the first rows at a position, and whether the log goes on after the part that was looked at.

        Args:
            reach: the length of that part in bytes of the log; without rows in it, a longer part is looked at.
        """
        while True:
            bound = lsn_position(lsn_of(position) + reach)
            ends = until is not None and lsn_of(until) < lsn_of(bound)
            rows = self.rows(position, until if ends else bound)
            more = not ends and rows.end == lsn_of(bound)
            if rows.count or not more:
                return rows, more
            reach *= 4

    def idle_until(self, lsn: int) -> int:
        """Return the LSN up to which, as far as is known, the tables have no change from an LSN on."""
        window = self._cache.window
        if window is None or not window.start <= lsn <= window.end:
            return lsn
        row = window.rows_before(lsn)
        return window.end if row == window.count else int(window.changes.versions[row].as_py())

    def skip_lost(self, position: Position) -> tuple[Position, int | None]:
        """Return the first readable position; see `headrace.ports.Tunnel.skip_lost`."""
        state, start, window = self._state(position), lsn_of(position), self._cache.window
        if window is not None and window.start <= start < window.end:
            row = window.rows_before(start) + position.skip
            if row < window.count and window.changes.ops[row].as_py() == ChangeOp.TRUNCATE:
                return window.position(row + 1), None
        if window is not None and window.stop is not None and not window.waits:
            return lsn_position(window.stop.after), None
        if start >= state.lost and state.confirmed <= max(state.advanced, start):
            return position, 0
        return lsn_position(max(state.confirmed, start)), None

    def check_publication(self) -> None:
        """Raise `DataLossError` if the publication is not that of the tunnel any more."""
        self._publication.check(self._followed.published, "its columns and rows")

    def accept_publication(self) -> bool:
        """Accept changes that the publication may have left out; return whether there may be any."""
        return self._publication.accept(self._followed.published)

    def _base_snapshots(self) -> Snapshots:
        """Return the snapshots of base data. The stream is read after all of them are there."""
        snapshots = self._cache.snapshots
        if snapshots is None:
            waiting = [relation for relation, each in self._followed.members.items() if each.waits]
            snapshots = self._database.ask(lambda statements: read_snapshots(statements, self._tunnel.id, waiting))
            with self._decoding:
                # Each chunk that is read changes what the stream leaves out.
                self._cache = LogCache(snapshots if snapshots.complete else None, size=self._cache.size)
        return snapshots

    def _state(self, position: Position | None = None) -> SlotState:
        """Return the state of the slot after the checks that a read needs.

        Raises:
            NotFoundError: the tunnel was dropped.
            DataLossError: the slot does not exist or is lost, or the server is another one.
            StoreBusyError: the server would let a read wait for a standby that has no slot.
        """
        rows = self._database.query(_STATE, (self._tunnel.id,))
        if not rows:
            raise dropped(self._tunnel)
        ((*lsns, status, same_system, awaited, reason),) = rows
        tunnel = f"tunnel {self._tunnel.name!r}"
        if awaited:
            raise slot_reads.waits(self._tunnel.name, awaited)
        if not same_system:
            problem = f"{tunnel} belongs to another database cluster"
        elif status is None:
            problem = reason or f"the replication slot of {tunnel} does not exist"
        elif status == "lost" or None in lsns:
            problem = f"the server has removed the log that {tunnel} needs (max_slot_wal_keep_size)"
        else:
            return SlotState(*map(int, lsns))
        lost = "all changes" if position is None else f"changes after {position.token}"
        raise DataLossError(
            problem,
            received=f"slot {self._slot}; {lost}",
            remedy="create a new tunnel; one of kind BaseAndStream begins with the rows that the table has",
        )

    def _check_position(self, start: int, state: SlotState) -> None:
        """Check that the slot has all changes from an LSN on.

        Headrace itself advances the slot over changes that are committed, and over log without changes of the table.
        """
        lost = state.confirmed if state.confirmed > state.advanced else min(state.confirmed, state.lost)
        if lost <= start <= state.flushed:
            return
        begin, end = lsn_text(state.confirmed), lsn_text(state.flushed)
        raise DataLossError(
            f"changes of tunnel {self._tunnel.name!r} after this position have been removed",
            received=f"position {lsn_text(start)}; the slot begins at {begin}, and the server's log ends at {end}",
            remedy="create a new tunnel, or continue with failOnDataLoss=false; if nobody has moved the slot, the "
            "query uses an older copy of its checkpoint",
        )

    def _window_at(self, start: int, limit: int, state: SlotState, snapshots: Snapshots, total: int | None) -> Window:
        """Return a window that contains ``start``; it may end before ``limit`` or after it.

        Raises:
            DataLossError: the log cannot be read at the start.
        """
        with self._decoding:
            window = self._cache.window
            if window is None or not window.has(start):
                if start >= limit:
                    return Window(start, start, self._followed.changes([], None))
                read, size = self._read_at(start, limit, state, total)
                # Without a read whose decoding fails halfway.
                self._cache = self._cache._replace(read=None, size=size)
                before, window = window, self._decoded(read, start, state, snapshots)
                if before is not None and before.end == start:
                    window = replace(window, start=before.behind)
                rest = read if read.has(read.next) else None
                self._cache = self._cache._replace(window=window, read=rest)
        if window.stop is not None and window.stop.error is not None and window.end <= start:
            raise window.stop.error
        return window

    def _read_at(self, start: int, limit: int, state: SlotState, total: int | None) -> tuple[SlotRead, ReadSize]:
        """Return a read that has the changes from an LSN on, and its size; read the slot if there is none."""
        read, size = self._cache.read, self._cache.size
        # A limited read may end before the first wanted change. The next one is longer.
        while read is None or size is None or not read.has(start):
            end = slot_reads.reach(start, WINDOW_BYTES, state.restart, limit)
            # After the end of the log was looked up: a table that joins later has no changes before it.
            if not self._followed.are_current():
                raise JoinedError(
                    f"a table has joined tunnel {self._tunnel.name!r} while its log was read",
                    received=f"changes after {lsn_text(start)}",
                    remedy="read again",
                )
            # After the end of the log was looked up: a later change of the publication has no effect before it.
            self._publication.check(self._followed.published, f"changes after {lsn_text(start)}")
            before = size if size is not None and size.end <= start else None
            most = None if total is None else slot_reads.messages_for(total, start - state.confirmed, before)
            messages, end = slot_reads.peek(
                self._database, self._slot, self._publication.name, end, binary=self._followed.binary, messages=most
            )
            read = SlotRead(messages, self._followed.relations, start, end)
            size = ReadSize(end, total or 0, sum(each.num_rows for each in messages))
        return read, size

    def _decoded(self, read: SlotRead, start: int, state: SlotState, snapshots: Snapshots) -> Window:
        """Decode the window of a read that begins at an LSN."""
        decoded, end = read.decode(start, min(start + WINDOW_BYTES, read.end))
        decoded, waits_at = in_stream(decoded, self._followed.members)
        snapshots_of = snapshots if start < state.base_end else None
        leaves = _in_stream_only(decoded.leaves, waits_at, snapshots, state.base_end) if snapshots.complete else []
        pieces = self._followed.pieces(decoded.images)
        truncations, stops = self._truncations(decoded.truncations, snapshots_of)
        stops += [self._unreadable(each.images, each.problem) for each in pieces if each.problem is not None]
        if waits_at is not None:
            # Base data first, also where the log has an error.
            stops.insert(0, Stop(waits_at, waits_at, None))
        stop = min(stops, key=lambda stop: stop.lsn, default=None)
        if stop is not None:
            # The changes before a stop can be read.
            end = stop.lsn
            pieces = [each.filter(each.images.lsns < end) for each in pieces if each.images.lsns[0] < end]
            truncations = [each for each in truncations if each.transaction.lsn < end]
        changes = self._followed.changes(pieces, snapshots_of, truncations)
        return Window(start, end, changes, stop, leaves)

    def _truncations(
        self, truncations: Sequence[Truncation], snapshots: Snapshots | None
    ) -> tuple[list[Truncation], list[Stop]]:
        """Return the truncations that base data does not have, and a stop before each that only a part of it has."""
        found, stops = [], []
        for each in truncations:
            oid, (lsn, _, xid) = each.relation.oid, each.transaction
            if oid not in self._followed.relations:
                continue
            seen = False if snapshots is None else snapshots.see_transaction(oid, xid)
            if seen is None:
                received = f"commit version {lsn}, while its base data was read"
                stops.append(Stop(lsn, lsn + 1, truncated(self._followed.name_of(oid), received)))
            elif not seen:
                found.append(each)
        return found, stops

    def _unreadable(self, images: Images, problem: str) -> Stop:
        """Return a stop before images that are no rows of their table now."""
        first, last = int(images.lsns[0]), int(images.lsns[-1])
        error = DataLossError(
            f"changes of table {self._followed.name_of(images.relation.oid)!r} cannot be read by its definition of now",
            received=f"{problem}; {len(images)} rows in commit versions {first} to {last}",
            remedy="create a new tunnel of kind BaseAndStream, or continue after them with failOnDataLoss=false"
            + COPIES,
        )
        return Stop(first, last + 1, error)


def _in_stream_only(
    leaves: Sequence[WrittenLeaf], waits_at: int | None, snapshots: Snapshots, base_end: int
) -> list[WrittenLeaf]:
    """Return the partitions whose rows are in the stream now, and of no transaction that all of base data sees.

    Args:
        waits_at: the LSN at which the stream waits for base data; None if it does not.
        base_end: base data sees no transaction that is committed from this LSN on.
    """
    return [
        each
        for each in leaves
        if (waits_at is None or each.transaction.lsn < waits_at)
        and not (each.transaction.lsn < base_end and snapshots.see_transaction(each.root, each.transaction.xid))
    ]


def _truncated_first(changes: Changes) -> tuple[str, ...]:
    """Return the tables with whose TRUNCATE changes begin; "" for the only one."""
    if not changes.begin_with_truncation:
        return ()
    if TABLE not in changes.rows.schema.names:
        return ("",)
    return tuple(changes.rows.column(TABLE).slice(0, changes.truncations_of_first).to_pylist())


def truncated(name: str, received: str) -> DataLossError:
    """Return the error for a TRUNCATE of a table that the reader does not follow."""
    return DataLossError(
        f"table {name!r} was truncated, and the log does not contain the removed rows",
        received=received,
        remedy="create a new tunnel of kind BaseAndStream, or continue after it with failOnDataLoss=false" + COPIES,
    )
