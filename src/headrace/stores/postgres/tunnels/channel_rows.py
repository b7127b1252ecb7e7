"""The rows of a tunnel in table ``headrace.channel``, and the snapshots of its base data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.model.tables.conditions import KeyRange
from headrace.model.tunnels.channels import channel_states
from headrace.model.tunnels.values import FINISHED, Channel, ChannelKind, Position
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements
from headrace.stores.postgres.tunnels.snapshots import ChunkSnapshot, Snapshots, TableSnapshots
from headrace.stores.postgres.tunnels.stored_tunnels import StoredTunnel, dropped, key_from_json


class ChannelRow(NamedTuple):
    """A row of the table. ``relation`` is the oid of the table of base data, and 0 for the stream."""

    id: str
    kind: ChannelKind
    parents: tuple[str, ...]
    relation: int
    keys: KeyRange
    start: Position
    committed: Position

    @property
    def finished(self) -> bool:
        return self.committed == FINISHED


def rows_in(statements: PostgresStatements, tunnel: StoredTunnel, channel: str | None = None) -> list[ChannelRow]:
    """Return the channels of a tunnel in the order of their creation.

    Args:
        channel: the id of the only channel to return, if the tunnel has it.

    Raises:
        NotFoundError: the tunnel was dropped.
    """
    rows = statements.execute(
        "SELECT id, kind, parents, relation::bigint, low, high, start, committed, skip FROM headrace.channel"
        f" WHERE tunnel = %s{'' if channel is None else ' AND id = %s'} ORDER BY seq",
        (tunnel.id,) if channel is None else (tunnel.id, channel),
    ).fetchall()
    if not rows and not statements.first("SELECT 1 FROM headrace.tunnel WHERE id = %s", (tunnel.id,)):
        raise dropped(tunnel)
    return [
        ChannelRow(
            channel,
            ChannelKind(kind),
            tuple(parents),
            relation,
            KeyRange(key_from_json(low), key_from_json(high)),
            Position(start),
            Position(committed, skip),
        )
        for channel, kind, parents, relation, low, high, start, committed, skip in rows
    ]


def channels_of(rows: Sequence[ChannelRow]) -> list[Channel]:
    """Return channels with their states."""
    states = channel_states({row.id: row.parents for row in rows}, {row.id for row in rows if row.finished})
    return [Channel(row.id, row.kind, states[row.id], row.committed, row.parents) for row in rows]


def read_snapshots(statements: PostgresStatements, tunnel: str, waiting: Sequence[int] = ()) -> Snapshots:
    """Return the snapshots in which the chunks of base data were read.

    Args:
        waiting: the oids of tables whose snapshots are left out: the stream does not have their changes yet.
    """
    rows = statements.execute(
        "SELECT c.relation::bigint, c.low, k.snapshot FROM headrace.channel c"
        " LEFT JOIN headrace.chunk k ON k.tunnel = c.tunnel AND k.channel = c.id"
        " WHERE c.tunnel = %s AND c.kind = %s AND c.relation <> ALL(%s::oid[]) ORDER BY c.seq",
        (tunnel, ChannelKind.BASE_DATA.value, list(waiting)),
    )
    by_table: dict[int, list[ChunkSnapshot]] = {}
    for relation, low, snapshot in rows:
        by_table.setdefault(relation, []).append(ChunkSnapshot(key_from_json(low), snapshot))
    return Snapshots({relation: TableSnapshots(each) for relation, each in by_table.items()})
