"""`SeveralLogs`: the change logs of several tables as one log, in the order of their commits.

The rows of a commit are in the order of the tunnel's tables, then of the partitions, then of each partition's log. So a
position is the version of a commit and a number of rows, whatever the partitions are, and the end of a commit is one
position for all tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import apsw
import numpy as np
import numpy.typing as npt

from headrace.errors import DataLossError
from headrace.model.tables.changes import ChangeOp
from headrace.model.tables.schema import TableSchema
from headrace.model.tables.several_tables import together
from headrace.model.tunnels.values import FINISHED, Backlog, Page, Position
from headrace.stores.embedded import chunks
from headrace.stores.embedded.tables import change_log
from headrace.stores.embedded.tunnels.positions import AfterVersion, version_of

# Two rows are the smallest page that does not separate a pre-image from its change.
_LEAST_ROWS = 2
_PAGE_ROWS = 65536

Counts = npt.NDArray[np.int64]


class _Log(NamedTuple):
    """The log of one partition."""

    table: str
    partition: int
    first: int
    next: int
    bytes: int
    trimmed: int


class _Place(NamedTuple):
    """A position: the next row of each log."""

    after: AfterVersion
    rows: Counts


class _Runs(NamedTuple):
    """Consecutive rows of the logs, in the order of this module: the rows of a log in a commit are a run.

    Attributes:
        logs: the index of the log of each run.
        rows: the first row of each run in its log.
        counts: the number of rows of each run.
        versions: the version of the commit of each run.
    """

    logs: Counts
    rows: Counts
    counts: Counts
    versions: Counts

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def first(self, rows: int) -> _Runs:
        """Return the runs of the first rows."""
        before = np.cumsum(self.counts) - self.counts
        kept = before < rows
        counts = np.minimum(self.counts, rows - before)[kept]
        return _Runs(self.logs[kept], self.rows[kept], counts, self.versions[kept])

    def per_log(self, logs: int) -> Counts:
        """Return the number of rows of each log."""
        return np.bincount(self.logs, self.counts, logs).astype(np.int64)

    def after(self, rows: int, start: AfterVersion, until: AfterVersion) -> AfterVersion:
        """Return the position after the first rows, of which there is at least one.

        Args:
            start: the position before the first row.
            until: the position after the last row.
        """
        read = self.first(rows)
        version = int(read.versions[-1])
        if rows == self.total:
            open_at = until if until.rows and until.version == version - 1 else None
            return open_at or AfterVersion(version)
        if int(self.first(rows + 1).versions[-1]) != version:
            return AfterVersion(version)
        before = start.rows if start.version == version - 1 else 0
        return AfterVersion(version - 1, before + int(read.counts[read.versions == version].sum()))


class SeveralLogs:
    """The logs of the tables of a tunnel in a read transaction; see `StreamLog`.

    Args:
        tunnel: the id of the tunnel.
        schema: returns the columns of the rows.
    """

    def __init__(self, connection: apsw.Connection, tunnel: str, schema: Callable[[], TableSchema]) -> None:
        self._connection = connection
        self._schema = schema
        self._logs = [
            _Log(*row)
            for row in connection.execute(
                "SELECT o.name, p.id, p.first, p.next, p.log_bytes, p.trimmed FROM tunnel_table t"
                " JOIN object o ON o.id = t.object"
                " JOIN partition p ON p.object = t.object WHERE t.tunnel = ? ORDER BY t.seq, p.id",
                (tunnel,),
            )
        ]
        self._trimmed: list[tuple[str, int]] = list(
            connection.execute(
                "SELECT o.name, o.trimmed_version FROM tunnel_table t JOIN object o ON o.id = t.object"
                " WHERE t.tunnel = ? ORDER BY t.seq",
                (tunnel,),
            )
        )
        ((self._version,),) = connection.execute("SELECT version FROM clock")

    @property
    def tables(self) -> list[str]:
        """The names of the tables, in the order of the tunnel."""
        return [name for name, _ in self._trimmed]

    @property
    def end(self) -> Position:
        return AfterVersion(self._version).position

    def at_time(self, first: Position, ts: int) -> Position:
        versions = []
        for log in self._logs:
            row = chunks.row_at_time(self._connection, log.partition, ts)
            if row < log.next:
                versions.append(int(chunks.runs(self._connection, log.partition, row, log.next, 1)[0][1]) - 1)
        return AfterVersion(max(version_of(first).version, min(versions, default=self._version))).position

    def lost(self, position: Position) -> bool:
        after = version_of(position)
        return any(trimmed > max(after.version, after.lost) for _, trimmed in self._trimmed)

    def lost_before(self, ts: int) -> bool:
        return ts <= max(log.trimmed for log in self._logs)

    def first_readable(self, position: Position) -> tuple[Position, int | None]:
        """Return a position at which the changes that exist are read: other tables may have lost none."""
        if not self.lost(position):
            return position, 0
        after = version_of(position)
        # The rest of a commit of which rows were read cannot be found without its first rows.
        version = after.version + (after.rows > 0)
        return AfterVersion(version, lost=max(trimmed for _, trimmed in self._trimmed)).position, None

    def backlog(self, position: Position, until: Position | None) -> Backlog:
        if self.lost(position):
            # The reader fails, or accepts the loss.
            return Backlog(rows=None)
        begin, end = self._place(position), self._until(until)
        counts = np.maximum(end.rows - begin.rows, 0)
        if not counts.any():
            return Backlog(rows=0, bytes=0, seconds=0.0)
        sizes = [
            log.bytes * int(count) // max(1, log.next - log.first)
            for log, count in zip(self._logs, counts, strict=True)
        ]
        oldest = min(
            chunks.time_of_row(self._connection, log.partition, int(row))
            for log, row, count in zip(self._logs, begin.rows, counts, strict=True)
            if count
        )
        return Backlog(rows=int(counts.sum()), bytes=sum(sizes), seconds=max(0.0, time.time() - oldest / 1e6))

    def unread(self, position: Position) -> Mapping[str, int | None]:
        """Return the number of unread rows of each table; None if changes have been removed."""
        if self.lost(position):
            return dict.fromkeys(self.tables, None)
        counts = np.maximum(self._until(None).rows - self._place(position).rows, 0)
        rows = dict.fromkeys(self.tables, 0)
        for log, count in zip(self._logs, counts, strict=True):
            rows[log.table] += int(count)
        return rows

    def read(self, position: Position, max_rows: int, until: Position | None) -> Page:
        """Return a page of at most about 8 MB of each log."""
        if self.lost(position):
            raise self._lost_changes(version_of(position))
        begin, end = self._place(position), self._until(until)
        rows = max(_LEAST_ROWS, min(max_rows, _PAGE_ROWS))
        runs = self._runs(begin.rows, end.rows, rows + 1)
        page = runs.first(rows)
        if not page.total:
            return Page(together(self._schema(), []), begin.after.position)
        parts, read = [], []
        for log, first, count in zip(self._logs, begin.rows, page.per_log(len(self._logs)), strict=True):
            last = int(first + count)
            changes, _ = change_log.read(self._connection, log.partition, int(first), int(count), last)
            parts.append((log.table, changes))
            read.append(changes.num_rows)
        order = _order(page, begin.rows, np.array(read))
        changes = together(self._schema(), parts, order)
        if changes.num_rows < runs.total and changes.ops[-1].as_py() == ChangeOp.PREIMAGE:
            changes = changes.slice(0, changes.whole_pairs(changes.num_rows))
        after = runs.after(changes.num_rows, begin.after, end.after)
        return Page(changes, after.accepting(begin.after.lost).position)

    def after(self, position: Position, rows: int) -> Position:
        return self._place(Position(position.token, position.skip + rows)).after.position

    def _until(self, until: Position | None) -> _Place:
        if until is None or until == FINISHED:
            return _Place(AfterVersion(self._version), self._ends())
        return self._place(until)

    def _ends(self) -> Counts:
        return np.array([log.next for log in self._logs], np.int64)

    def _place(self, position: Position) -> _Place:
        """Return the rows of a position, and the position in its only form."""
        after = version_of(position)
        rows = np.array(
            [chunks.row_after_version(self._connection, log.partition, after.version) for log in self._logs], np.int64
        )
        if not after.rows:
            return _Place(after, rows)
        runs = self._runs(rows, self._ends(), after.rows + 1)
        count = min(after.rows, runs.total)
        if not count:
            return _Place(after._replace(rows=0), rows)
        normal = runs.after(count, after._replace(rows=0), AfterVersion(self._version))
        return _Place(normal.accepting(after.lost), rows + runs.first(count).per_log(len(self._logs)))

    def _runs(self, begin: Counts, end: Counts, rows: int) -> _Runs:
        """Return the runs of the first rows, at least this number if there are as many, and perhaps more."""
        found = [
            chunks.runs(self._connection, log.partition, int(first), int(last), rows)
            for log, first, last in zip(self._logs, begin, end, strict=True)
        ]
        counts = np.concatenate([each[:, 0] for each in found])
        versions = np.concatenate([each[:, 1] for each in found])
        logs = np.repeat(np.arange(len(found)), [len(each) for each in found])
        firsts = np.concatenate(
            [first + np.cumsum(each[:, 0]) - each[:, 0] for each, first in zip(found, begin, strict=True)]
        )
        order = np.lexsort((firsts, logs, versions))
        # Of a log that has more rows, at least as many are here: no row before the limit is missing.
        return _Runs(logs[order], firsts[order], counts[order], versions[order]).first(rows)

    def _lost_changes(self, after: AfterVersion) -> DataLossError:
        lost = {name: trimmed for name, trimmed in self._trimmed if trimmed > max(after.version, after.lost)}
        return DataLossError(
            f"changes of tables {', '.join(map(repr, lost))} were removed before they were read",
            received=f"commit versions {after.version + 1} to {max(lost.values())}",
            remedy="set option failOnDataLoss=false to continue after them",
        )


def _order(page: _Runs, begin: Counts, read: Counts) -> Counts:
    """Return the rows of a page as indexes into the rows that were read, one log after the other.

    The result ends before the first row that was not read.
    """
    before = np.cumsum(page.counts) - page.counts
    in_log = np.repeat(page.rows - begin[page.logs] - before, page.counts) + np.arange(page.total)
    logs = np.repeat(page.logs, page.counts)
    missing = np.flatnonzero(in_log >= read[logs])
    rows = int(missing[0]) if len(missing) else page.total
    starts = np.cumsum(read) - read
    order: Counts = (starts[logs] + in_log)[:rows]
    return order
