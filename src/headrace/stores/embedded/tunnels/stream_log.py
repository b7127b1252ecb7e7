"""The log that a stream channel reads, in a read transaction: of a partition, or of several tables."""

from __future__ import annotations

import time
from typing import Protocol

import apsw

from headrace.model.tunnels.values import FINISHED, Backlog, Page, Position
from headrace.stores.embedded import chunks
from headrace.stores.embedded.tables import change_log
from headrace.stores.embedded.tunnels.positions import row_of, row_position


class StreamLog(Protocol):
    """A log. Positions are those of `headrace.stores.embedded.tunnels.positions`."""

    @property
    def end(self) -> Position:
        """The position after the last change."""

    def at_time(self, first: Position, ts: int) -> Position:
        """Return the position before the first change at or after a timestamp (µs), not before ``first``."""

    def lost(self, position: Position) -> bool:
        """Return whether changes after a position have been removed."""

    def lost_before(self, ts: int) -> bool:
        """Return whether changes at or after a timestamp (µs) have been removed."""

    def first_readable(self, position: Position) -> tuple[Position, int | None]:
        """See `headrace.ports.Tunnel.skip_lost`."""

    def backlog(self, position: Position, until: Position | None) -> Backlog:
        """See `headrace.ports.Tunnel.backlog`."""

    def read(self, position: Position, max_rows: int, until: Position | None) -> Page:
        """See `headrace.ports.Tunnel.read`."""

    def after(self, position: Position, rows: int) -> Position:
        """Return the position ``rows`` rows after a position, without rows to skip."""


class PartitionLog:
    """The change log of a partition. The arguments are columns of its row in table ``partition``."""

    def __init__(
        self, connection: apsw.Connection, id: int, open: int, first: int, next: int, log_bytes: int, trimmed: int
    ) -> None:
        self._connection = connection
        self._id = id
        self._open = bool(open)
        self._first = first
        self._next = next
        self._bytes = log_bytes
        self._trimmed = trimmed

    @property
    def end(self) -> Position:
        return row_position(self._next) if self._open else FINISHED

    def at_time(self, first: Position, ts: int) -> Position:
        row = max(row_of(first), chunks.row_at_time(self._connection, self._id, ts))
        return row_position(row) if row < self._next else self.end

    def lost(self, position: Position) -> bool:
        return self._first > row_of(position)

    def lost_before(self, ts: int) -> bool:
        return ts <= self._trimmed

    def first_readable(self, position: Position) -> tuple[Position, int | None]:
        begin = row_of(position)
        return row_position(max(begin, self._first)), max(0, self._first - begin)

    def backlog(self, position: Position, until: Position | None) -> Backlog:
        begin = row_of(position)
        end = self._next if until is None or until == FINISHED else min(self._next, row_of(until))
        count = max(0, end - begin)
        ends = not self._open and end == self._next
        if count == 0:
            return Backlog(rows=0, bytes=0, seconds=0.0, ends=ends)
        seconds = None
        if begin < self._next and self._first < self._next:
            oldest = chunks.time_of_row(self._connection, self._id, max(begin, self._first))
            seconds = max(0.0, time.time() - oldest / 1e6)
        rows_in_log = max(1, self._next - self._first)
        return Backlog(rows=count, bytes=self._bytes * count // rows_in_log, seconds=seconds, ends=ends)

    def read(self, position: Position, max_rows: int, until: Position | None) -> Page:
        end = None if until is None or until == FINISHED else row_of(until)
        changes, after = change_log.read(self._connection, self._id, row_of(position), max_rows, end)
        ended = not self._open and after >= self._next
        return Page(changes, FINISHED if ended else row_position(after))

    def after(self, position: Position, rows: int) -> Position:
        return row_position(row_of(Position(position.token, position.skip + rows)))
