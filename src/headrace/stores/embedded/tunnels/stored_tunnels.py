"""Tunnels in the store: creating and dropping them, and following splits and merges.

A tunnel is a row of ``tunnel``; its channels are rows of ``channel``. A tunnel with base data has a snapshot. From its
creation, writers copy the rows that they change to the table's undo rows, so base channels read the table at the
snapshot. Later changes are in the change log.
"""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import apsw

from headrace.errors import AlreadyExistsError, DataLossError, UnsupportedError
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import Key, TableSchema
from headrace.model.tunnels.validation import check_new, microseconds
from headrace.model.tunnels.values import ChannelKind, Position, Start, StartKind, TunnelKind
from headrace.ports import Table
from headrace.stores.embedded import catalog, chunks
from headrace.stores.embedded.connection import Database
from headrace.stores.embedded.tables import change_log, physical
from headrace.stores.embedded.tables.conditions import marks
from headrace.stores.embedded.tables.keys import key_from_json, key_to_json
from headrace.stores.embedded.tables.physical import PhysicalTable
from headrace.stores.embedded.tunnels import base_data
from headrace.stores.embedded.tunnels.positions import AfterVersion, key_position, row_position

ROWS_PER_BASE_CHANNEL = 500_000
MAX_BASE_CHANNELS = 16
SEVERAL = 0
"""``tunnel.object`` of tunnels of several tables, which table ``tunnel_table`` names."""


class _Partition(NamedTuple):
    id: int
    keys: KeyRange
    parents: tuple[int, ...]
    open: bool
    first: int
    next: int
    trimmed: int
    rows: int


class _NewChannel(NamedTuple):
    id: str
    kind: ChannelKind
    partition: int | None
    keys: KeyRange
    parents: tuple[str, ...]
    start: Position
    object: int | None = None


def create(
    database: Database,
    tables: Sequence[Table],
    name: str,
    kind: TunnelKind,
    start: Start,
    base_channels: int | None,
    *,
    several: bool = False,
) -> str:
    """Create a tunnel in one transaction and return its id; see `headrace.ports.Store.create_tunnel`.

    Args:
        tables: the table, or the tables.
        several: create a tunnel of several tables, even if it is only one.
    """
    check_new(name, kind, start, base_channels)
    has_base, has_stream = kind is not TunnelKind.STREAM, kind is not TunnelKind.BASE_DATA
    # Finding the boundaries of a large table takes time: it is done before the transaction, while writers can write.
    bounds = [_boundaries(database, table, base_channels) if has_base else [] for table in tables]
    counts = [_counts(database, table, keys) if keys else {} for table, keys in zip(tables, bounds, strict=True)]
    tunnel_id = str(uuid.uuid4())
    with database.write() as connection:
        objects = [_with_log(connection, table.name) for table in tables]
        owner = SEVERAL if several else objects[0]
        if connection.execute("SELECT 1 FROM tunnel WHERE object = ? AND name = ?", (owner, name)).fetchone():
            has = "several tables have" if several else f"table {tables[0].name!r} has"
            raise AlreadyExistsError(f"{has} a tunnel of this name", received=repr(name))
        connection.execute(
            "INSERT INTO tunnel (id, object, name, kind, created) VALUES (?, ?, ?, ?, ?)",
            (tunnel_id, owner, name, kind.value, time.time()),
        )
        partitions = [_partitions(connection, object_id) for object_id in objects]
        channels: list[_NewChannel] = []
        for object_id, parts, keys, rows in zip(objects, partitions, bounds, counts, strict=True):
            # A partition without rows gets no base channel, which would only be an empty batch.
            base = _base_channels(object_id, [p for p in parts if p.open and p.rows], keys, rows) if has_base else []
            if base:
                physical_table(connection, object_id).create_undo(connection)
                base_data.take_snapshot(connection, object_id, tunnel_id)
            channels += base
        if several:
            connection.executemany(
                "INSERT INTO tunnel_table (tunnel, seq, object) VALUES (?, ?, ?)",
                [(tunnel_id, seq, object_id) for seq, object_id in enumerate(objects)],
            )
            if has_stream:
                channels.append(_stream_of_tables(connection, channels))
        elif has_stream:
            channels += _stream_channels(connection, tables[0].name, partitions[0], start, channels)
        _insert(connection, tunnel_id, channels)
    return tunnel_id


def _with_log(connection: apsw.Connection, name: str) -> int:
    """Return the id of a table whose changes are logged."""
    object_id = catalog.find(connection, name, "table")
    ((options,),) = connection.execute("SELECT options FROM object WHERE id = ?", (object_id,))
    # Tables of earlier versions do not have the option.
    if not json.loads(options).get("change_log", True):
        raise UnsupportedError(
            "the table keeps no changes, so it can have no tunnels",
            received=repr(name),
            remedy="create the table without change_log=False",
        )
    return object_id


def _stream_of_tables(connection: apsw.Connection, base: Sequence[_NewChannel]) -> _NewChannel:
    """Return the channel with the changes of several tables after the last commit."""
    ((version,),) = connection.execute("SELECT version FROM clock")
    parents = tuple(channel.id for channel in base)
    return _NewChannel("stream", ChannelKind.STREAM, None, KeyRange(), parents, AfterVersion(version).position)


def partitions_replaced(
    connection: apsw.Connection, object_id: int, parents: Sequence[int], children: Sequence[int]
) -> None:
    """Add channels for the new partitions of a split or merge to every tunnel with stream channels.

    Runs in the transaction that closes the parents and creates the children.
    """
    tunnels = connection.execute(
        "SELECT id FROM tunnel WHERE object = ? AND kind <> ?", (object_id, TunnelKind.BASE_DATA.value)
    )
    for tunnel_id in [row[0] for row in tunnels]:
        followed = tuple(
            channel
            for (channel,) in connection.execute(
                f"SELECT id FROM channel WHERE tunnel = ? AND id IN ({marks(parents)}) ORDER BY seq",
                (tunnel_id, *map(stream_id, parents)),
            )
        )
        channels = [
            _NewChannel(stream_id(child), ChannelKind.STREAM, child, KeyRange(), followed, row_position(0))
            for child in children
        ]
        _insert(connection, tunnel_id, channels)


def drop(connection: apsw.Connection, tunnel_id: str) -> None:
    """Remove a tunnel with its channels, batches and clients, inside the caller's write transaction."""
    release_snapshots(connection, tunnel_id)
    for table in ("channel", "batch_plan", "batch_end", "tunnel_client", "tunnel_table"):
        connection.execute(f"DELETE FROM {table} WHERE tunnel = ?", (tunnel_id,))
    connection.execute("DELETE FROM tunnel WHERE id = ?", (tunnel_id,))


def drop_all(connection: apsw.Connection, object_id: int) -> None:
    """Remove all tunnels of a table, also of several tables, inside the caller's write transaction."""
    tunnels = connection.execute(
        "SELECT id FROM tunnel WHERE object = ?1 OR id IN (SELECT tunnel FROM tunnel_table WHERE object = ?1)",
        (object_id,),
    )
    for tunnel_id in [row[0] for row in tunnels]:
        drop(connection, tunnel_id)


def release_snapshots(connection: apsw.Connection, tunnel_id: str, table: int | None = None) -> None:
    """End the snapshots of a tunnel, of all its tables or of one, and remove their undo rows."""
    snapshots = list(
        connection.execute(
            "SELECT id, object FROM snapshot WHERE tunnel = ?1 AND (?2 IS NULL OR object = ?2)", (tunnel_id, table)
        )
    )
    for snapshot_id, object_id in snapshots:
        connection.execute("DELETE FROM snapshot WHERE id = ?", (snapshot_id,))
        if connection.execute("SELECT 1 FROM snapshot WHERE object = ?", (object_id,)).fetchone() is None:
            physical.drop_undo(connection, object_id)
        else:
            physical_table(connection, object_id).release(connection, snapshot_id)


def physical_table(connection: apsw.Connection, object_id: int) -> PhysicalTable:
    """Return the SQLite tables of a table for its current schema."""
    ((version,),) = connection.execute("SELECT schema_version FROM object WHERE id = ?", (object_id,))
    return PhysicalTable(object_id, change_log.stored_schema(connection, object_id, version), version)


def schemas_in(connection: apsw.Connection, tunnel_id: str) -> dict[str, TableSchema]:
    """Return the tables of a tunnel of several tables, by name, with their current columns."""
    tables = list(
        connection.execute(
            "SELECT o.name, o.id, o.schema_version FROM tunnel_table t JOIN object o ON o.id = t.object"
            " WHERE t.tunnel = ? ORDER BY t.seq",
            (tunnel_id,),
        )
    )
    return {name: change_log.stored_schema(connection, object_id, version) for name, object_id, version in tables}


def cut(keys: KeyRange, boundaries: Iterable[Key]) -> list[KeyRange]:
    """Cut a key range at the boundaries inside it; the boundaries are in key order."""
    inside = [
        key for key in boundaries if (keys.low is None or keys.low < key) and (keys.high is None or key < keys.high)
    ]
    edges = [keys.low, *inside, keys.high]
    return [KeyRange(low, high) for low, high in itertools.pairwise(edges)]


def _boundaries(database: Database, table: Table, base_channels: int | None) -> list[Key]:
    """Return the keys, in order, that divide the table into pieces of about the right size."""
    ((rows,),) = database.query(
        "SELECT coalesce(sum(p.rows), 0) FROM partition p JOIN object o ON o.id = p.object WHERE o.name = ?",
        (table.name,),
    )
    by_size = min(max(1, -(-rows // ROWS_PER_BASE_CHANNEL)), MAX_BASE_CHANNELS)
    return [keys.low for keys in table.splits(base_channels or by_size) if keys.low is not None]


def _counts(database: Database, table: Table, boundaries: Sequence[Key]) -> dict[KeyRange, int]:
    """Return the numbers of rows in the key ranges into which the boundaries cut the partitions."""
    with database.read() as connection:
        row = connection.execute("SELECT id FROM object WHERE name = ?", (table.name,)).fetchone()
        if row is None:
            return {}
        stored = physical_table(connection, row[0])
        ranges = [cut(each.keys, boundaries) for each in _partitions(connection, row[0]) if each.open and each.rows]
        return {keys: stored.count(connection, keys) for parts in ranges if len(parts) > 1 for keys in parts}


def _partitions(connection: apsw.Connection, object_id: int) -> list[_Partition]:
    rows = connection.execute(
        "SELECT id, low, high, parents, open, first, next, trimmed, rows FROM partition WHERE object = ? ORDER BY id",
        (object_id,),
    )
    return [
        _Partition(
            partition_id,
            KeyRange(key_from_json(low), key_from_json(high)),
            tuple(json.loads(parents)),
            bool(is_open),
            *rest,
        )
        for partition_id, low, high, parents, is_open, *rest in rows
    ]


def _base_channels(
    object_id: int, partitions: Sequence[_Partition], boundaries: Sequence[Key], counts: Mapping[KeyRange, int]
) -> list[_NewChannel]:
    return [
        _NewChannel(
            f"base-{partition.id}-{number}",
            ChannelKind.BASE_DATA,
            partition.id,
            keys,
            (),
            key_position(None, rows),
            object_id,
        )
        for partition in sorted(partitions, key=lambda partition: partition.keys.low or ())
        for number, (keys, rows) in enumerate(_counted(partition, cut(partition.keys, boundaries), counts))
    ]


def _counted(
    partition: _Partition, ranges: Sequence[KeyRange], counts: Mapping[KeyRange, int]
) -> list[tuple[KeyRange, int | None]]:
    """Return the key ranges of a partition with the numbers of their rows, whose sum is that of the partition.

    Rows that were written after the ranges were counted are added to the largest range. The number is None if the
    partition is another one than when the ranges were counted.
    """
    if len(ranges) == 1:
        return [(ranges[0], partition.rows)]
    if any(keys not in counts for keys in ranges):
        return [(keys, None) for keys in ranges]
    rows = {keys: counts[keys] for keys in ranges}
    largest = max(ranges, key=lambda keys: rows[keys])
    rows[largest] = max(0, rows[largest] + partition.rows - sum(rows.values()))
    return list(rows.items())


def _stream_channels(
    connection: apsw.Connection,
    table: str,
    partitions: Sequence[_Partition],
    start: Start,
    base: Sequence[_NewChannel],
) -> list[_NewChannel]:
    """Return a channel for every open partition, and for closed ones with changes from the start position."""
    channels: list[_NewChannel] = []
    base_of: dict[int | None, list[str]] = {}
    for channel in base:
        base_of.setdefault(channel.partition, []).append(channel.id)
    # The parents of the channels of a partition's children: its own channel or, without a channel, its parents.
    followed: dict[int, tuple[str, ...]] = {}
    for partition in partitions:
        row = _first_row(connection, table, partition, start)
        parents = list(base_of.get(partition.id, ()))
        parents += dict.fromkeys(name for parent in partition.parents for name in followed.get(parent, ()))
        followed[partition.id] = tuple(parents)
        if partition.open or row < partition.next:
            name = stream_id(partition.id)
            followed[partition.id] = (name,)
            channels.append(
                _NewChannel(name, ChannelKind.STREAM, partition.id, KeyRange(), tuple(parents), row_position(row))
            )
    return channels


def _first_row(connection: apsw.Connection, table: str, partition: _Partition, start: Start) -> int:
    if start.kind is StartKind.EARLIEST:
        return partition.first
    if start.timestamp is None:
        return partition.next
    ts = microseconds(start.timestamp)
    if ts <= partition.trimmed:
        raise DataLossError(
            f"the change log of table {table!r} begins later",
            received=f"start={start.timestamp.isoformat()}",
            remedy="use start='earliest' to read the rest of it",
        )
    return chunks.row_at_time(connection, partition.id, ts)


def _insert(connection: apsw.Connection, tunnel_id: str, channels: Sequence[_NewChannel]) -> None:
    ((last,),) = connection.execute("SELECT coalesce(max(seq), -1) FROM channel WHERE tunnel = ?", (tunnel_id,))
    connection.executemany(
        "INSERT INTO channel (tunnel, seq, id, kind, partition, low, high, parents, start, checkpoint, object)"
        " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9, ?10)",
        [
            (
                tunnel_id,
                last + 1 + number,
                channel.id,
                channel.kind.value,
                channel.partition,
                key_to_json(channel.keys.low),
                key_to_json(channel.keys.high),
                json.dumps(channel.parents),
                channel.start.token,
                channel.object,
            )
            for number, channel in enumerate(channels)
        ],
    )


def stream_id(partition_id: int) -> str:
    """Return the id of the stream channel of a partition, by which it can be found in each tunnel."""
    return f"stream-{partition_id}"
