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
from headrace.stores.embedded.tunnels.positions import row_position


class ChannelRow(NamedTuple):
    """A row of the table."""

    id: str
    kind: ChannelKind
    partition: int
    keys: KeyRange
    parents: tuple[str, ...]
    start: Position
    committed: Position
    finished: bool


class ChannelLog(NamedTuple):
    """The change log that a stream channel reads."""

    open: bool
    first: int
    next: int
    bytes: int
    trimmed: int

    @property
    def end(self) -> Position:
        return row_position(self.next) if self.open else FINISHED


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
        "SELECT id, kind, partition, low, high, parents, start, checkpoint, finished FROM channel"
        f" WHERE tunnel = ?{'' if channel is None else ' AND id = ?'} ORDER BY seq",
        (tunnel,) if channel is None else (tunnel, channel),
    )
    rows = [
        ChannelRow(
            each,
            ChannelKind(kind),
            partition,
            KeyRange(key_from_json(low), key_from_json(high)),
            tuple(json.loads(parents)),
            Position(start),
            FINISHED if finished else Position(committed),
            bool(finished),
        )
        for each, kind, partition, low, high, parents, start, committed, finished in stored
    ]
    if not rows and connection.execute("SELECT 1 FROM tunnel WHERE id = ?", (tunnel,)).fetchone() is None:
        raise NotFoundError("the tunnel was dropped", received=f"{name!r} ({tunnel})", remedy="create a new tunnel")
    return rows


def channels_of(rows: Sequence[ChannelRow]) -> list[Channel]:
    """Return all channels of a tunnel with their states."""
    states = channel_states({row.id: row.parents for row in rows}, {row.id for row in rows if row.finished})
    return [Channel(row.id, row.kind, states[row.id], row.committed, row.parents) for row in rows]


def logs_in(connection: apsw.Connection, tunnel: str) -> dict[int, ChannelLog]:
    """Return the logs of a tunnel's channels. A table with many splits has many more closed logs."""
    rows = connection.execute(
        "SELECT id, open, first, next, log_bytes, trimmed FROM partition"
        " WHERE id IN (SELECT partition FROM channel WHERE tunnel = ?)",
        (tunnel,),
    )
    return {partition: ChannelLog(bool(is_open), *rest) for partition, is_open, *rest in rows}


def log_in(connection: apsw.Connection, partition: int) -> ChannelLog:
    """Return the log of one partition."""
    ((is_open, *rest),) = connection.execute(
        "SELECT open, first, next, log_bytes, trimmed FROM partition WHERE id = ?", (partition,)
    )
    return ChannelLog(bool(is_open), *rest)
