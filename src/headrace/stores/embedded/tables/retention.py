"""Retention: removal of old changes from the beginning of a table's change logs, in whole chunks.

Changes that a live tunnel has not read are kept, unless an option of the table or an argument of the caller allows
their removal. The report names the tunnels that kept changes from removal, or lost changes.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import apsw

from headrace.model.tables.options import TableOptions
from headrace.model.tunnels.values import ChannelKind, Position
from headrace.ports import TrimReport
from headrace.stores.embedded import chunks
from headrace.stores.embedded.connection import ROW_INDEX_BITS
from headrace.stores.embedded.tunnels.positions import row_of, version_of
from headrace.stores.embedded.tunnels.stored_tunnels import stream_id

_CHUNKS_PER_APPEND = 256
_CLOSED_PER_APPEND = 8
_WITHOUT_LIMIT = 1 << 62
_log = logging.getLogger("headrace")
_warned: set[str] = set()


class _Reader(NamedTuple):
    """A tunnel that has not read a partition's log from ``row``."""

    tunnel: str
    name: str
    row: int


class _Partition(NamedTuple):
    id: int
    open: bool
    first: int
    next: int
    log_bytes: int


@dataclass(frozen=True)
class _Cut:
    """The removal of the changes below ``row`` from one log; none if the log begins at ``row``."""

    row: int
    bytes: int
    held_by: tuple[_Reader, ...]
    cut_from: tuple[_Reader, ...]


def trim(
    connection: apsw.Connection,
    object_id: int,
    options: TableOptions,
    before: Mapping[int, int] | None,
    cut_tunnels: bool,
) -> TrimReport:
    """Remove old changes of a table, inside the caller's write transaction.

    Args:
        before: for each partition the log row index below which changes are removed, instead of too old ones.
        cut_tunnels: also remove changes that a live tunnel has not read. The table has an option for the same.
    """
    ids = [row[0] for row in connection.execute("SELECT id FROM partition WHERE object = ?", (object_id,))]
    if before is not None:
        ids = [partition_id for partition_id in ids if partition_id in before]
    force = cut_tunnels or options.retention_ignores_tunnels
    return _trim(connection, ids, options, before, force, _WITHOUT_LIMIT)


def held_by(connection: apsw.Connection, object_id: int, options: TableOptions) -> tuple[str, ...]:
    """Return the names of the tunnels that keep retention from removing changes now, sorted."""
    if options.retention_ignores_tunnels:
        return ()
    holders: set[str] = set()
    ids = [row[0] for row in connection.execute("SELECT id FROM partition WHERE object = ?", (object_id,))]
    for partition_id in ids:
        partition = _partition(connection, partition_id)
        cut = _plan(connection, partition, options, None, False, _WITHOUT_LIMIT)
        holders.update(reader.name for reader in cut.held_by)
    return tuple(sorted(holders))


def after_append(connection: apsw.Connection, object_id: int, partition_ids: Sequence[int]) -> None:
    """Remove a few old chunks at the end of a write.

    Only the partitions of the write and the oldest closed partitions are examined.
    """
    ((text,),) = connection.execute("SELECT options FROM object WHERE id = ?", (object_id,))
    options = TableOptions(**json.loads(text))
    if options.retention_seconds is None and options.retention_bytes is None:
        return
    closed = connection.execute(
        "SELECT id FROM partition WHERE object = ? AND open = 0 LIMIT ?", (object_id, _CLOSED_PER_APPEND)
    )
    due = _due(connection, [*partition_ids, *(row[0] for row in closed)], options)
    _trim(connection, due, options, None, options.retention_ignores_tunnels, _CHUNKS_PER_APPEND)


def _due(connection: apsw.Connection, partition_ids: Sequence[int], options: TableOptions) -> list[int]:
    """Return the partitions whose log is too large, or whose oldest chunk is too old, or that are closed and empty."""
    found = connection.execute(
        f"SELECT id FROM partition p WHERE id IN ({', '.join(map(str, partition_ids))}) AND (log_bytes > ?1"
        " OR (SELECT ts FROM chunk WHERE id >= p.id << ?3 AND id < (p.id + 1) << ?3 ORDER BY id LIMIT 1) < ?2"
        " OR (NOT open AND first = next))",
        (options.retention_bytes, _oldest_kept(options), ROW_INDEX_BITS),
    )
    return [row[0] for row in found]


def _oldest_kept(options: TableOptions) -> int | None:
    """Return the timestamp (µs) before which changes are too old; None without a limit."""
    if options.retention_seconds is None:
        return None
    return int(max(0.0, time.time() - options.retention_seconds) * 1e6)


def _trim(
    connection: apsw.Connection,
    partition_ids: Sequence[int],
    options: TableOptions,
    before: Mapping[int, int] | None,
    force: bool,
    max_chunks: int,
) -> TrimReport:
    changes = size = 0
    held: set[_Reader] = set()
    lost: set[_Reader] = set()
    for partition_id in partition_ids:
        partition = _partition(connection, partition_id)
        limit = None if before is None else before[partition_id]
        cut = _plan(connection, partition, options, limit, force, max_chunks)
        if cut.row > partition.first:
            chunks.remove(connection, partition_id, cut.row)
        changes += cut.row - partition.first
        size += cut.bytes
        held.update(cut.held_by)
        lost.update(cut.cut_from)
        if not partition.open and cut.row == partition.next:
            _forget(connection, partition_id)
    _warn(held, lost)
    return TrimReport(
        changes,
        size,
        held_by=tuple(sorted({reader.name for reader in held})),
        cut_from=tuple(sorted({reader.name for reader in lost})),
    )


def _plan(
    connection: apsw.Connection,
    partition: _Partition,
    options: TableOptions,
    before: int | None,
    force: bool,
    max_chunks: int,
) -> _Cut:
    """Return the cut of one log. Only the removed chunks and the next one are examined."""
    oldest_kept = _oldest_kept(options)
    low, high = chunks.chunk_ids(partition.id)
    oldest = connection.execute(
        "SELECT id, n, ts, length(data) FROM chunk WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
        (low, high, max_chunks),
    )
    readers: list[_Reader] | None = None
    row, size = partition.first, 0
    held: tuple[_Reader, ...] = ()
    for chunk_id, count, chunk_ts, chunk_size in oldest:
        end = chunk_id - low + count
        if before is not None:
            wanted = end <= before
        else:
            too_old = oldest_kept is not None and chunk_ts < oldest_kept
            too_much = options.retention_bytes is not None and partition.log_bytes - size > options.retention_bytes
            wanted = too_old or too_much
        if not wanted:
            break
        if readers is None:
            readers = _readers(connection, partition.id)
        held = tuple(reader for reader in readers if reader.row < end)
        if held and not force:
            break
        row, size = end, size + chunk_size
    lost = tuple(reader for reader in readers or () if reader.row < row)
    return _Cut(row, size, held_by=() if force else held, cut_from=lost)


def _readers(connection: apsw.Connection, partition_id: int) -> list[_Reader]:
    found = connection.execute(
        "SELECT t.id, t.name, c.checkpoint FROM partition p JOIN tunnel t ON t.object = p.object"
        " JOIN channel c ON c.tunnel = t.id AND c.id = ?2 WHERE p.id = ?1 AND NOT c.finished",
        (partition_id, stream_id(partition_id)),
    )
    readers = [_Reader(tunnel, name, row_of(Position(committed))) for tunnel, name, committed in found]
    of_several = connection.execute(
        "SELECT t.id, t.name, c.checkpoint FROM partition p JOIN tunnel_table s ON s.object = p.object"
        " JOIN tunnel t ON t.id = s.tunnel JOIN channel c ON c.tunnel = t.id AND c.kind = ?2 WHERE p.id = ?1",
        (partition_id, ChannelKind.STREAM.value),
    )
    for tunnel, name, committed in of_several:
        version = version_of(Position(committed)).version
        readers.append(_Reader(tunnel, name, chunks.row_after_version(connection, partition_id, version)))
    return readers


def _partition(connection: apsw.Connection, partition_id: int) -> _Partition:
    ((is_open, *rest),) = connection.execute(
        "SELECT open, first, next, log_bytes FROM partition WHERE id = ?", (partition_id,)
    )
    return _Partition(partition_id, bool(is_open), *rest)


def _forget(connection: apsw.Connection, partition_id: int) -> None:
    """Remove a closed partition whose log is empty and for which no tunnel has a channel.

    A partition with a parent is kept: new tunnels need it for the order of its parent and its children.
    """
    connection.execute(
        "DELETE FROM partition WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM tunnel t JOIN channel c ON c.tunnel = t.id"
        " AND c.id = ?2 WHERE t.object = (SELECT object FROM partition WHERE id = ?1))"
        " AND NOT EXISTS (SELECT 1 FROM partition p, json_each(p.parents) parent JOIN partition older"
        " ON older.id = parent.value WHERE p.id = ?1)",
        (partition_id, stream_id(partition_id)),
    )


def _warn(held: set[_Reader], lost: set[_Reader]) -> None:
    for reader in sorted(held):
        if reader.tunnel not in _warned:
            _warned.add(reader.tunnel)
            _log.warning(
                "tunnel %r (%s) has unread changes older than the table keeps; they stay until it reads them",
                reader.name,
                reader.tunnel,
            )
    for reader in sorted(lost):
        _log.warning(
            "changes were removed that tunnel %r (%s) has not read: from log row %d on",
            reader.name,
            reader.tunnel,
            reader.row,
        )
