"""The rows of a tunnel in table ``channel``, and the change logs that they read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import apsw

from headrace.errors import NotFoundError
from headrace.model.tables.conditions import KeyRange
from headrace.model.tunnels.channels import channel_states
from headrace.model.tunnels.values import FINISHED, Channel, ChannelKind, Position
from headrace.stores.embedded.tables.keys import key_from_json
from headrace.stores.embedded.tunnels.stream_log import PartitionLog

_LOGS = "SELECT id, open, first, next, log_bytes, trimmed FROM partition"


class ChannelRow(NamedTuple):
    """A row of the table.

    Attributes:
        table: the id of the table; 0 for the stream of several tables, which has no partition either.
    """

    id: str
    kind: ChannelKind
    table: int
    partition: int
    keys: KeyRange
    parents: tuple[str, ...]
    start: Position
    committed: Position
    finished: bool


def rows_in(connection: apsw.Connection, tunnel: str, name: str, channel: str | None = None) -> list[ChannelRow]:
    """Return the channels of a tunnel in the order of their creation.

    Args:
        tunnel: the id of the tunnel.
        name: its name, for the error.
        channel: the id of the only channel to return, if the tunnel has it.

    Raises:
        NotFoundError: the tunnel was dropped.
    """
    stored = connection.execute(
        "SELECT c.id, c.kind, ifnull(c.object, t.object), c.partition, c.low, c.high, c.parents, c.start, c.checkpoint,"
        " c.finished FROM channel c JOIN tunnel t ON t.id = c.tunnel"
        f" WHERE c.tunnel = ?{'' if channel is None else ' AND c.id = ?'} ORDER BY c.seq",
        (tunnel,) if channel is None else (tunnel, channel),
    )
    rows = [
        ChannelRow(
            each,
            ChannelKind(kind),
            table,
            partition,
            KeyRange(key_from_json(low), key_from_json(high)),
            tuple(json.loads(parents)),
            Position(start),
            FINISHED if finished else Position(committed),
            bool(finished),
        )
        for each, kind, table, partition, low, high, parents, start, committed, finished in stored
    ]
    if not rows and connection.execute("SELECT 1 FROM tunnel WHERE id = ?", (tunnel,)).fetchone() is None:
        raise NotFoundError("the tunnel was dropped", received=f"{name!r} ({tunnel})", remedy="create a new tunnel")
    return rows


def channels_of(rows: Sequence[ChannelRow]) -> list[Channel]:
    """Return all channels of a tunnel with their states."""
    states = channel_states({row.id: row.parents for row in rows}, {row.id for row in rows if row.finished})
    return [Channel(row.id, row.kind, states[row.id], row.committed, row.parents) for row in rows]


def logs_in(connection: apsw.Connection, tunnel: str) -> dict[int, PartitionLog]:
    """Return the logs of the partitions of a tunnel's channels. A table with many splits has many more closed logs."""
    rows = connection.execute(
        f"{_LOGS} WHERE id IN (SELECT partition FROM channel WHERE tunnel = ?)",
        (tunnel,),
    )
    return {row[0]: PartitionLog(connection, *row) for row in rows}


def log_in(connection: apsw.Connection, partition: int) -> PartitionLog:
    """Return the log of one partition."""
    (row,) = connection.execute(f"{_LOGS} WHERE id = ?", (partition,))
    return PartitionLog(connection, *row)
