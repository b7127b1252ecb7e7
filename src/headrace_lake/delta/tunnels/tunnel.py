"""`DeltaTunnel`: a tunnel of a Delta table.

The base data of a tunnel is the table at a version, and its stream the versions after it. A position of base data is a
row number; one of the stream is a version, and the number of changes after it that were read. Its token is
``VERSION@READ:HASH`` with the last version of which a change was read, and the hash of the entry of that version in the
log: so a reader notices an older copy of the table that has as many versions by now.
"""

from __future__ import annotations

import datetime
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.errors import DataLossError, HeadraceError, NotFoundError, OptionError, StoreError
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tunnels.channels import channel_states, stage_of
from headrace.model.tunnels.losses import already_read
from headrace.model.tunnels.validation import microseconds
from headrace.model.tunnels.values import (
    FINISHED,
    Backlog,
    Channel,
    ChannelKind,
    ChannelState,
    Page,
    Position,
    Start,
    StartKind,
    TunnelKind,
)
from headrace.ports import ChannelDescription, Tunnel, TunnelClient, TunnelDescription
from headrace.support.cached import cached_property
from headrace_lake.delta.log import DataFile, Entry, Log
from headrace_lake.delta.schemas import keeps_pre_images
from headrace_lake.delta.snapshot import Snapshot
from headrace_lake.delta.table import DeltaTable
from headrace_lake.delta.tunnels import clients
from headrace_lake.delta.tunnels.clients import Channels
from headrace_lake.delta.tunnels.records import Progress, StoredTunnel, TunnelBatches, TunnelRecords
from headrace_lake.delta.tunnels.version_changes import Part, changes, parts_of, read_or_lost
from headrace_lake.places import moment_of

STREAM = "stream"
_BASE = "base-"
_CHANNEL_BYTES, _MOST_CHANNELS = 32 << 20, 64
LOOK_BYTES = 8 << 20
"""The size of the files that are compared to plan a batch. The tasks of the batch read them again."""
# The changes in memory that are kept for the next page.
_KEPT_BYTES = 32 << 20
_MOST_COUNTS = 4096
_HASH_DIGITS = 16
_TOKEN = re.compile(r"(-?[0-9]+)(?:@([0-9]+):([0-9a-f]+))?")
_NEW_TUNNEL = "create the tunnel again, and start the query with a new checkpoint location"


def new_tunnel(table: DeltaTable, name: str, kind: TunnelKind, start: Start, base_channels: int | None) -> StoredTunnel:
    """Return a new tunnel, which is not saved.

    Args:
        start: where the stream of a tunnel without base data begins.
        base_channels: the number of channels of the base data; by its size if None.
    """
    snapshot, log = table.snapshot(), Log(table.name, table.directory)
    snapshot.check_readable()
    versions = log.versions()
    version = snapshot.version
    if start.kind is StartKind.EARLIEST and versions:
        version = versions[0] - 1
    elif start.timestamp is not None and versions:
        version = before(log, versions[0] - 1, snapshot.version, start.timestamp)
    entry = log.entry(version) if version in versions else None
    files = () if kind is TunnelKind.STREAM else snapshot.files
    size = sum(file.size for file in files)
    return StoredTunnel(
        id=str(uuid.uuid4()),
        name=name,
        table=table.name,
        identity=snapshot.id,
        kind=kind,
        start=version,
        time=int(time.time() * 1e6) if entry is None else entry.time,
        base_channels=base_channels or min(_MOST_CHANNELS, 1 + size // _CHANNEL_BYTES),
        base_rows=sum(snapshot.count(file) if file.rows is None else file.rows for file in files),
        created=time.time(),
        position=str(version) if entry is None else _token(version, entry),
    )


def before(log: Log, first: int, last: int, moment: datetime.datetime) -> int:
    """Return the last version before a time, from ``first`` up to ``last``."""
    found = first
    for entry in log.after(first, last):
        if entry.time >= microseconds(moment):
            break
        found = entry.version
    return found


class DeltaTunnel(Tunnel):
    """A tunnel of a Delta table, created by `headrace_lake.delta.store.DeltaStore`."""

    def __init__(self, table: DeltaTable, stored: StoredTunnel, records: TunnelRecords) -> None:
        self.table = table
        self.id = stored.id
        self.name = stored.name
        self.kind = stored.kind
        self.batches = TunnelBatches(records)
        self._table = table
        self._stored = stored
        self._records = records
        self._log = Log(table.name, table.directory)
        self._newest: Snapshot | None = None
        self._counts: dict[tuple[str, int], int] = {}
        self._loaded: dict[tuple[str, int], Changes] = {}
        self._pre_images: dict[int, bool] = {}
        self._base: tuple[str, pa.Table] | None = None

    def __repr__(self) -> str:
        return f"DeltaTunnel({self.name!r} of table {self.table.name!r}, {self.kind}, id {self.id})"

    # -- channels -----------------------------------------------------------------------------------

    def describe(self) -> TunnelDescription:
        progress = self._records.progress()
        channels = self._channels(progress)
        holders = clients.holders(progress)
        warnings: list[str] = []
        described = []
        for channel in channels:
            try:
                backlog = self._backlog(channel.id, channel.committed, None)
            except HeadraceError as error:
                backlog = Backlog(rows=None)
                if error.problem not in warnings:
                    warnings.append(error.problem)
            holder = holders.get(channel.id)
            described.append(
                ChannelDescription(channel, backlog)
                if holder is None
                else ChannelDescription(channel, backlog, holder.client, holder.tag, holder.status)
            )
        versions = self._log.versions()
        return TunnelDescription(
            id=self.id,
            name=self.name,
            table=self.table.name,
            kind=self.kind,
            stage=str(stage_of(self.kind, channels)),
            created=self._stored.created,
            channels=tuple(described),
            details={"first_version": versions[0], "last_version": versions[-1]} if versions else {},
            warnings=tuple(warnings),
        )

    def channels(self, known: Mapping[str, Position] | None = None) -> list[Channel]:
        return self._channels(self._records.progress())

    def _channels(self, progress: Progress) -> list[Channel]:
        states = self._states(progress)
        return [
            Channel(
                channel,
                ChannelKind.STREAM if channel == STREAM else ChannelKind.BASE_DATA,
                state,
                progress.position(channel, self._start(channel)),
                tuple(self._base_channels) if channel == STREAM else (),
            )
            for channel, state in states.items()
        ]

    @cached_property
    def _base_channels(self) -> list[str]:
        count = 0 if self.kind is TunnelKind.STREAM else self._stored.base_channels
        return [f"{_BASE}{number}" for number in range(count)]

    def _states(self, progress: Progress) -> dict[str, ChannelState]:
        parents: dict[str, Sequence[str]] = dict.fromkeys(self._base_channels, ())
        if self.kind is not TunnelKind.BASE_DATA:
            parents[STREAM] = self._base_channels
        finished = {channel for channel in parents if progress.position(channel, self._start(channel)) == FINISHED}
        return channel_states(parents, finished)

    def _start(self, channel: str) -> Position:
        if channel == STREAM and self.kind is not TunnelKind.BASE_DATA:
            return self._first
        if channel not in self._base_channels:
            raise NotFoundError(
                f"tunnel {self.name!r} does not have this channel",
                received=repr(channel),
                valid=[*self._base_channels, STREAM],
            )
        return Position(str(self._base_rows(channel)[0]))

    def start_positions(self, start: Start) -> dict[str, Position]:
        progress = self._records.progress()
        if start.kind in (StartKind.COMMITTED, StartKind.BATCH):
            raise OptionError(
                "a query that begins at the committed positions or at a batch needs no start positions",
                received=str(start.kind),
            )
        if start.kind in (StartKind.EARLIEST, StartKind.BEGINNING):
            for channel in self._base_channels:
                self._check_unread(progress, channel)
            return {channel: self._start(channel) for channel in self._states(progress)}
        positions = dict.fromkeys(self._base_channels, FINISHED)
        if self.kind is not TunnelKind.BASE_DATA:
            newest = self._view().version
            if start.timestamp is not None:
                newest = before(self._log, self._stored.start, newest, start.timestamp)
            positions[STREAM] = self._at(newest)
        return positions

    def latest_positions(self) -> dict[str, Position]:
        self._check_committed(self._records.progress())
        positions = dict.fromkeys(self._base_channels, FINISHED)
        if self.kind is not TunnelKind.BASE_DATA:
            positions[STREAM] = self._at(self._view().version)
        return positions

    @property
    def _first(self) -> Position:
        """The position at which the stream begins, after the version of the base data."""
        return Position(self._stored.position or str(self._stored.start))

    def _at(self, version: int) -> Position:
        """Return the position after all changes of a version of the table."""
        try:
            return Position(_token(version, self._log.entry(version)))
        except DataLossError:
            return Position(str(version))

    def wait_for_change(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        before = self._log.versions()
        while self._log.versions()[-1:] == before[-1:]:
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(moment_of(self._table.directory), left))
        return True

    # -- reading ------------------------------------------------------------------------------------

    def read(
        self,
        channel: str,
        position: Position,
        max_rows: int,
        until: Position | None = None,
        *,
        total: int | None = None,
    ) -> Page:
        progress = self._records.progress()
        self._start(channel)
        if position == FINISHED:
            return Page(self._no_changes(), FINISHED)
        if channel != STREAM:
            self._check_unread(progress, channel)
            return self._read_base(channel, position, max_rows, until)
        pieces: list[Changes] = []
        room, place, end = max_rows, position, self._end(until)
        for step in self._steps(position, end):
            if step.part is None:
                place = step.place
                continue
            if room <= 0:
                break
            assert step.rows is not None
            found = self._changes(step.part).slice(step.skip, step.rows - step.skip)
            if found.num_rows > room:
                found = found.slice(0, found.whole_pairs(room))
            pieces.append(found)
            room -= found.num_rows
            place = _after(step.entry, step.place.skip + found.num_rows)
            if found.num_rows < step.rows - step.skip:
                break
        return Page(Changes.joined(pieces or [self._no_changes()]), place)

    def _steps(self, position: Position, end: Position, budget: int | None = None) -> Iterator[_Step]:
        """Yield the unread parts from a position on, and the ends of versions.

        Args:
            end: the position after the last change, in normal form.
            budget: the size of the files that may be read to count changes; None is no limit. The first part beyond it
                is the last one, and has no count.
        """
        version, skip = _place(position)
        last, rest = _place(end)
        view = self._view(version)
        for each in (position, end):
            self._check_same(each)
        for entry in self._log.after(version, last + (rest > 0)):
            before = 0
            for part in self._parts(entry, view):
                if budget is not None and self._count_of(part) is None:
                    budget -= part.size
                    if budget < 0:
                        yield _Step(_after(entry, before + skip), entry, part, skip, None)
                        return
                count = self._count(part)
                rows = count if entry.version <= last else min(count, rest - before)
                if skip < rows:
                    yield _Step(_after(entry, before + skip), entry, part, skip, rows)
                skip = max(0, skip - count)
                before += count
            if entry.version <= last:
                yield _Step(Position(_token(entry.version, entry), skip), entry)

    def _end(self, until: Position | None) -> Position:
        """Return the position after the last change to read, in normal form."""
        newest = Position(str(self._view().version))
        return newest if until is None or until == FINISHED else self._normal(until)

    def _normal(self, position: Position) -> Position:
        """Return a position in the form in which positions of the stream can be compared."""
        if position == FINISHED or not position.skip:
            return position
        for step in self._steps(position, Position(str(self._view().version))):
            position = step.place
            if step.part is not None or not position.skip:
                break
        return position

    def _parts(self, entry: Entry, view: Snapshot) -> list[Part]:
        def pre_images() -> bool:
            return self._keeps_pre_images(entry.version, view)

        if entry.properties is not None:
            self._pre_images[entry.version] = keeps_pre_images(entry.properties)
        elif entry.version - 1 in self._pre_images:
            self._pre_images[entry.version] = self._pre_images[entry.version - 1]
        return parts_of(entry, view, pre_images)

    def _keeps_pre_images(self, version: int, newest: Snapshot) -> bool:
        """Return whether the changes of a version have the old rows: the property can change."""
        if version not in self._pre_images:
            try:
                found = Snapshot(self._table.name, self._table.directory, version)
            except (DataLossError, StoreError):
                # The log has no checkpoint before the version any more.
                found = newest
            self._pre_images = {version: keeps_pre_images(found.properties)}
        return self._pre_images[version]

    def _count_of(self, part: Part) -> int | None:
        return self._counts.get(part.key) if part.count is None else part.count

    def _count(self, part: Part) -> int:
        found = self._count_of(part)
        return self._changes(part).num_rows if found is None else found

    def _changes(self, part: Part) -> Changes:
        found = self._loaded.get(part.key)
        if found is None:
            found = self._loaded[part.key] = part.load()
            self._counts[part.key] = found.num_rows
            while len(self._loaded) > 1 and sum(each.rows.nbytes for each in self._loaded.values()) > _KEPT_BYTES:
                del self._loaded[next(iter(self._loaded))]
            while len(self._counts) > _MOST_COUNTS:
                del self._counts[next(iter(self._counts))]
        return found

    def _view(self, reached: int = 0) -> Snapshot:
        """Return the newest version of the table.

        Args:
            reached: a version that was read.

        Raises:
            DataLossError: it is another table of the name, or an older copy of the table.
            NotFoundError: it was dropped.
        """
        before = self._newest
        self._newest = self._table.snapshot() if before is None else self._table.versions.newer(before)
        if before is not None and before is not self._newest and before.schema != self._newest.schema:
            # What was read has other columns.
            self._loaded.clear()
            self._base = None
        if self._newest.id != self._stored.identity:
            raise DataLossError(
                f"Delta table {self.table.name!r} was replaced by another one after the tunnel was created",
                received=f"table {self._newest.id}",
                valid=f"table {self._stored.identity}",
                remedy=_NEW_TUNNEL,
            )
        if reached > self._newest.version:
            raise self._older_copy(f"version {self._newest.version}", f"version {reached} or a later one")
        self._newest.check_readable()
        return self._newest

    def _check_committed(self, progress: Progress) -> None:
        """Raise `DataLossError` if the log has another entry at the committed position of the stream."""
        self._check_same(progress.position(STREAM, self._first))

    def _check_same(self, position: Position) -> None:
        """Raise `DataLossError` if the log has another entry than the one that was read before a position.

        An older copy of the table can have more versions by now.
        """
        self._view(_place(position)[0])
        _, version, known = _token_parts(position)
        if known is None:
            return
        try:
            found = self._log.entry(int(version), look=True).digest
        except DataLossError:
            # Entries are deleted after a checkpoint.
            return
        if not found.startswith(known):
            raise self._older_copy(f"another version {version}", "the version that was read")

    def _older_copy(self, received: str, valid: str) -> DataLossError:
        return DataLossError(
            f"Delta table {self.table.name!r} was replaced by an older copy: its next versions are not the ones that "
            "were read",
            received=received,
            valid=valid,
            remedy=_NEW_TUNNEL,
        )

    def _no_changes(self) -> Changes:
        return Changes.none(self._view().schema)

    # -- base data ----------------------------------------------------------------------------------

    @cached_property
    def _base_files(self) -> list[tuple[int, DataFile]]:
        """The files of the base data, each with the number of its first row; and the number of all rows."""
        found = Snapshot(self._table.name, self._table.directory, self._stored.start)
        files, first = [], 0
        for file in sorted(found.files, key=lambda each: each.path):
            files.append((first, file))
            first += file.rows if file.rows is not None else found.count(file)
        return files

    def _base_rows(self, channel: str) -> tuple[int, int]:
        """Return the number of the first row of a channel, and the number after its last row."""
        number, count, rows = int(channel.removeprefix(_BASE)), self._stored.base_channels, self._stored.base_rows
        return number * rows // count, (number + 1) * rows // count

    def _check_unread(self, progress: Progress, channel: str) -> None:
        if channel != STREAM and progress.position(channel, self._start(channel)) == FINISHED:
            raise already_read(channel)

    def _read_base(self, channel: str, position: Position, max_rows: int, until: Position | None) -> Page:
        self._check_same(self._first)
        _, end = self._base_rows(channel)
        row = _row(position)
        stop = end if until is None or until == FINISHED else min(end, _row(until))
        schema = self._view().schema
        rows = schema.nullable().empty_table()
        if row < stop:
            first, file = next(each for each in reversed(self._base_files) if each[0] <= row)
            rows = self._base_rows_of(file).slice(row - first, min(max_rows, stop - row))
        found = changes(
            self._stored.start, self._stored.time, rows, np.full(rows.num_rows, ChangeOp.BASE, np.int64), schema
        )
        row += rows.num_rows
        return Page(found, FINISHED if row >= end else Position(str(row)))

    def _base_rows_of(self, file: DataFile) -> pa.Table:
        if self._base is None or self._base[0] != file.path:
            self._base = (file.path, read_or_lost(self._view(), file, self._view().schema.nullable()))
        return self._base[1]

    # -- progress -----------------------------------------------------------------------------------

    def backlog(self, channel: str, position: Position, until: Position | None = None) -> Backlog:
        self._records.progress()
        return self._backlog(channel, position, until)

    def _backlog(self, channel: str, position: Position, until: Position | None) -> Backlog:
        self._start(channel)
        if position == FINISHED:
            return Backlog(rows=0, bytes=0, seconds=0.0, ends=True)
        if channel != STREAM:
            _, end = self._base_rows(channel)
            return Backlog(rows=max(0, end - _row(position)), ends=True)
        rows, size = 0, 0
        oldest: int | None = None
        for step in self._steps(position, self._end(until), LOOK_BYTES):
            if step.part is not None:
                oldest = step.entry.time if oldest is None else oldest
                if step.rows is None:
                    return Backlog(rows=None, at_least=max(rows, 1), seconds=_age(oldest))
                rows += step.rows - step.skip
                size += step.part.size
        return Backlog(rows=rows, bytes=size, seconds=0.0 if oldest is None else _age(oldest))

    def skip_lost(self, channel: str, position: Position) -> tuple[Position, int | None]:
        progress = self._records.progress()
        self._start(channel)
        if position == FINISHED:
            return FINISHED, 0
        # The changes of another table are not skipped to.
        self._check_committed(progress)
        if channel != STREAM:
            if progress.position(channel, self._start(channel)) == FINISHED:
                return FINISHED, 0
            try:
                self._read_base(channel, position, 1, None)
            except DataLossError:
                return FINISHED, self._base_rows(channel)[1] - _row(position)
            return position, 0
        self._check_same(position)
        version, _ = _place(position)
        versions = self._log.versions()
        if versions and version + 1 < versions[0]:
            return Position(str(versions[0] - 1)), None
        try:
            self.read(channel, position, 1)
        except DataLossError:
            return self._at(version + 1), None
        return position, 0

    def advance(self, channel: str, position: Position, rows: int) -> Position:
        self._start(channel)
        if position == FINISHED or rows == 0:
            return position
        if channel == STREAM:
            return Position(position.token, position.skip + rows)
        row = _row(position) + rows
        return FINISHED if row >= self._base_rows(channel)[1] else Position(str(row))

    def commit(self, positions: Mapping[str, Position]) -> None:
        def move(progress: Progress) -> None:
            for channel in positions:
                self._start(channel)
            for channel, position in positions.items():
                self._move(progress, channel, position)

        self._records.change(move)

    def _move(self, progress: Progress, channel: str, position: Position) -> None:
        """Commit the position of a channel, unless it is before the committed one."""
        before = progress.position(channel, self._start(channel))
        if before == FINISHED:
            return
        if position != FINISHED and channel == STREAM:
            position = self._normal(position)
        if position == FINISHED or self._order(channel, position) > self._order(channel, before):
            progress.committed[channel] = (position.token, position.skip)

    def _order(self, channel: str, position: Position) -> tuple[int, int]:
        return _place(position) if channel == STREAM else (_row(position), 0)

    # -- clients ------------------------------------------------------------------------------------

    def connect(self, *, tag: str = "", timeout: float = 300.0) -> TunnelClient:
        return clients.connect(self._records, self._shared, tag, timeout)

    def client(self, client_id: str) -> TunnelClient:
        return clients.find(self._records, self._shared, client_id)

    @property
    def _shared(self) -> Channels:
        return Channels(self._states, self._start, self._move)


@dataclass(frozen=True)
class _Step:
    """A part with unread changes, or the end of a version.

    Attributes:
        place: the position of the first unread change of the part, or the end of the version.
        part: None at the end of a version.
        skip: the number of changes of the part that are read.
        rows: the number of changes of the part up to the end of the read; None if it is unknown.
    """

    place: Position
    entry: Entry
    part: Part | None = None
    skip: int = 0
    rows: int | None = 0


def _token(version: int, read: Entry) -> str:
    return f"{version}@{read.version}:{read.digest[:_HASH_DIGITS]}"


def _after(entry: Entry, count: int) -> Position:
    """Return the position after some changes of a version; without any, after the version before it."""
    return Position(_token(entry.version - 1, entry) if count else str(entry.version - 1), count)


def _place(position: Position) -> tuple[int, int]:
    return int(_token_parts(position)[0]), position.skip


def _token_parts(position: Position) -> tuple[str, str, str | None]:
    """Return the version of a token, and the version that was read last with the hash of its entry, if it has them."""
    found = _TOKEN.fullmatch(position.token)
    if found is None:
        raise OptionError("invalid position", received=repr(position.token), valid="a version of the table")
    version, read, known = found.groups()
    return version, read, known


def _row(position: Position) -> int:
    """Return the number of a row of base data."""
    return sum(_place(position))


def _age(time_of: int) -> float:
    return max(0.0, time.time() - time_of / 1e6)
