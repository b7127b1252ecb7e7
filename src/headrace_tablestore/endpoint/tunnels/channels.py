"""Channels and positions of the embedded store as those of the tunnel service, and back. Pure functions.

Ids of base channels begin with ``BaseData_``, by which the official Go client recognises them if it cannot parse a
token.

A token has a position and the channel. A token of another channel is refused, because it would skip changes without
notice. The iterator of a stream token is ``channel:log row index``. The primary key of a base token is the last key
that was read, or INF_MIN at the beginning, and a cell has the channel's id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from headrace.errors import OptionError
from headrace.model.tables.schema import Key, TableSchema
from headrace.model.tunnels.leases import LeaseStatus
from headrace.model.tunnels.values import FINISHED, Channel, ChannelKind, ChannelState, Position
from headrace.ports import ChannelDescription, TunnelDescription
from headrace.stores.embedded.for_servers import ROW_INDEX_BITS, key_of, key_position, row_of, row_position
from headrace_tablestore.endpoint.errors import invalid
from headrace_tablestore.endpoint.rows.layout import cell_type, type_of_column
from headrace_tablestore.endpoint.tunnels.errors import missing
from headrace_tablestore.wire.plainbuffer.rows import decode_row, encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, Marker, PlainBufferError, Row, values_of_key
from headrace_tablestore.wire.tokens import FINISHED_TOKEN, BaseToken, StreamToken, decode_token, encode_token

_BASE_PREFIX = "BaseData_"
_STORE_BASE_PREFIX = "base-"
_CHANNEL_CELL = "channel"
_ITERATOR = re.compile(r"(.+):([0-9]{1,15})", re.ASCII | re.DOTALL)
_NANOSECONDS = 1_000_000_000
_STATUS = {
    ChannelState.WAITING: LeaseStatus.WAIT,
    ChannelState.OPEN: LeaseStatus.OPEN,
    ChannelState.FINISHED: LeaseStatus.TERMINATED,
}


# -- ids --------------------------------------------------------------------------------------------------


def wire_id(channel: str) -> str:
    """Return the wire id of a channel of the store."""
    if channel.startswith(_STORE_BASE_PREFIX):
        return _BASE_PREFIX + channel.removeprefix(_STORE_BASE_PREFIX)
    return channel


def store_id(channel: str) -> str:
    """Return the store's id of a channel with a wire id. The channel may not exist."""
    if channel.startswith(_BASE_PREFIX):
        return _STORE_BASE_PREFIX + channel.removeprefix(_BASE_PREFIX)
    if channel.startswith(_STORE_BASE_PREFIX):
        raise missing("channel")
    return channel


def kind_of(channel: str) -> ChannelKind:
    """Return the kind of a channel with a wire id."""
    return ChannelKind.BASE_DATA if channel.startswith(_BASE_PREFIX) else ChannelKind.STREAM


# -- tokens -----------------------------------------------------------------------------------------------


def token_of(channel: str, position: Position, schema: TableSchema) -> str:
    """Return the token of a position. It depends only on the arguments.

    Args:
        channel: the wire id of the channel.
        position: the store's position. In base data it has no rows to skip.
        schema: the schema of the table.
    """
    if position == FINISHED:
        return FINISHED_TOKEN
    if kind_of(channel) is ChannelKind.STREAM:
        return encode_token(StreamToken(f"{channel}:{row_of(position)}"))
    key = values_of_key(key_of(position) or ()) or (Marker.INF_MIN,) * len(schema.primary_key)
    named = tuple(zip(schema.primary_key, key, strict=True))
    return encode_token(BaseToken(encode_row(Row(named, (Cell(_CHANNEL_CELL, channel),)))))


def position_of(channel: str, token: str, schema: TableSchema) -> Position:
    """Return the position of a token; the inverse of `token_of`.

    Raises:
        ServiceError: OTSParameterInvalid: the token is invalid, or belongs to another channel.
    """
    if token == FINISHED_TOKEN:
        return FINISHED
    try:
        decoded = decode_token(token)
        if isinstance(decoded, StreamToken):
            return _row_position(channel, decoded)
        row = decode_row(decoded.primary_key)
    except (OptionError, PlainBufferError) as error:
        raise invalid(error.problem, received=error.received) from None
    if row.cells != (Cell(_CHANNEL_CELL, channel),) or kind_of(channel) is not ChannelKind.BASE_DATA:
        raise _foreign(channel)
    return key_position(_key(row, schema))


def _row_position(channel: str, token: StreamToken) -> Position:
    found = _ITERATOR.fullmatch(token.iterator)
    if found is None or found[1] != channel or kind_of(channel) is not ChannelKind.STREAM:
        raise _foreign(channel)
    row = int(found[2])
    if row >> ROW_INDEX_BITS:
        raise invalid("a token is after the end of any channel")
    return row_position(row)


def _key(row: Row, schema: TableSchema) -> Key | None:
    """Return the key of a base token; None for the beginning."""
    names = tuple(name for name, _ in row.key)
    values = tuple(value for _, value in row.key)
    if names == schema.primary_key:
        if all(value is Marker.INF_MIN for value in values):
            return None
        key = tuple(value for value in values if isinstance(value, str | int | bytes))
        fits = [cell_type(value) is type_of_column(schema.column(name).type) for name, value in row.key]
        if all(fits) and len(key) == len(values):
            return key
    raise invalid("the key in a token is not a key of the table")


def _foreign(channel: str) -> Exception:
    return invalid("a token belongs to another channel", received=f"channel {channel!r}")


# -- states -----------------------------------------------------------------------------------------------


def status_of(described: ChannelDescription) -> LeaseStatus:
    """Return the status of a channel. An open channel is OPEN with or without a client."""
    state = described.channel.state
    if state is ChannelState.OPEN and described.lease is LeaseStatus.CLOSING:
        return LeaseStatus.CLOSING
    return _STATUS[state]


def stage_of(channels: Iterable[Channel]) -> str:
    """Return the stage of a tunnel. The store creates all channels at once, so the initial stage never occurs."""
    reading_base = any(
        channel.kind is ChannelKind.BASE_DATA and channel.state is not ChannelState.FINISHED for channel in channels
    )
    return "ProcessBaseData" if reading_base else "ProcessStream"


# -- recovery points ---------------------------------------------------------------------------


def consumed_until(described: ChannelDescription, now: int) -> int:
    """Return the time up to which a channel's changes were read, in ns like ``now``; 0 for base data."""
    if described.channel.kind is ChannelKind.BASE_DATA:
        return 0
    return now - round((described.backlog.seconds or 0.0) * _NANOSECONDS)


def tunnel_consumed_until(description: TunnelDescription, now: int) -> int:
    """Return the time up to which all changes of a tunnel were read, in ns like ``now``; 0 without streams."""
    streams = [each for each in description.channels if each.channel.kind is ChannelKind.STREAM]
    return min((consumed_until(each, now) for each in streams), default=0)


def rpo_of_channels(description: TunnelDescription, now: int, limit: int | None = None) -> bytes:
    """Return the recovery points of the first channels as JSON, by channel and client."""
    infos = {
        wire_id(each.channel.id): {
            each.client or "": {
                "ChannelTyp": each.channel.kind.value,
                **_rpo(status_of(each), consumed_until(each, now), now),
            }
        }
        for each in description.channels[:limit]
    }
    return json.dumps(infos).encode()


def rpo_of_kinds(description: TunnelDescription, now: int) -> bytes:
    """Return the recovery point of the slowest channel of each kind as JSON."""
    by_kind: dict[str, list[ChannelDescription]] = {}
    for each in description.channels:
        by_kind.setdefault(each.channel.kind.value, []).append(each)
    slowest = {kind: min(channels, key=lambda each: consumed_until(each, now)) for kind, channels in by_kind.items()}
    infos = {kind: _rpo(status_of(each), consumed_until(each, now), now) for kind, each in slowest.items()}
    return json.dumps(infos).encode()


def _rpo(status: LeaseStatus, consumed: int, now: int) -> dict[str, str | int]:
    # The total number of records is unknown.
    return {"Status": status.value, "TotalCount": 0, "AccessTime": now, "RpoTime": consumed}
