"""Channels and positions of the embedded store in the words of the tunnel service, and back. Pure.

Ids of base channels begin with ``BaseData_``: the official Go client knows the kind of a channel by that where it
cannot read a token.

Tokens say where a channel is to be read on, and which channel: one that belongs to another channel is refused, where
it would otherwise pass over changes in silence. A stream token's iterator is ``channel:log row index``. A base token's
primary key is the key behind which reading goes on, INF_MIN at the beginning, with the channel's id in a cell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from headrace.endpoints.tablestore.errors import invalid
from headrace.endpoints.tablestore.rows.layout import cell_type, type_of_column
from headrace.endpoints.tablestore.tunnels.errors import missing
from headrace.errors import OptionError
from headrace.ports import ChannelDescription, TunnelDescription
from headrace.stores.embedded.connection import ROW_INDEX_BITS
from headrace.stores.embedded.tunnels.positions import key_of, key_position, row_of, row_position
from headrace.tables.schema import Key, TableSchema
from headrace.tunnels.leases import LeaseStatus
from headrace.tunnels.values import FINISHED, Channel, ChannelKind, ChannelState, Position
from headrace.wire.plainbuffer.rows import decode_row, encode_row
from headrace.wire.plainbuffer.values import Cell, Marker, PlainBufferError, Row
from headrace.wire.tablestore.tokens import FINISHED_TOKEN, BaseToken, StreamToken, decode_token, encode_token

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
    """Return the id under which clients know a channel of the store."""
    if channel.startswith(_STORE_BASE_PREFIX):
        return _BASE_PREFIX + channel.removeprefix(_STORE_BASE_PREFIX)
    return channel


def store_id(channel: str) -> str:
    """Return the store's id of a channel that a client names; there may be no such channel."""
    if channel.startswith(_BASE_PREFIX):
        return _STORE_BASE_PREFIX + channel.removeprefix(_BASE_PREFIX)
    if channel.startswith(_STORE_BASE_PREFIX):
        raise missing("channel")
    return channel


def kind_of(channel: str) -> ChannelKind:
    """Return the kind of a channel that a client names."""
    return ChannelKind.BASE_DATA if channel.startswith(_BASE_PREFIX) else ChannelKind.STREAM


# -- tokens -----------------------------------------------------------------------------------------------


def token_of(channel: str, position: Position, schema: TableSchema) -> str:
    """Return the token of a position, always the same text for the same place.

    Args:
        channel: the id that clients know.
        position: the store's own; in base data with nothing to skip, as the store gives all its positions.
        schema: of the table.
    """
    if position == FINISHED:
        return FINISHED_TOKEN
    if kind_of(channel) is ChannelKind.STREAM:
        return encode_token(StreamToken(f"{channel}:{row_of(position)}"))
    key = key_of(position) or (Marker.INF_MIN,) * len(schema.primary_key)
    named = tuple(zip(schema.primary_key, key, strict=True))
    return encode_token(BaseToken(encode_row(Row(named, (Cell(_CHANNEL_CELL, channel),)))))


def position_of(channel: str, token: str, schema: TableSchema) -> Position:
    """Read a token back; the inverse of `token_of`.

    Raises:
        ServiceError: OTSParameterInvalid: it is no token, or of another channel.
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
        raise invalid("a token is behind the end of every channel")
    return row_position(row)


def _key(row: Row, schema: TableSchema) -> Key | None:
    """Return the key of a base token, None for the beginning."""
    names = tuple(name for name, _ in row.key)
    values = tuple(value for _, value in row.key)
    if names == schema.primary_key:
        if all(value is Marker.INF_MIN for value in values):
            return None
        key = tuple(value for value in values if isinstance(value, str | int | bytes))
        fits = [cell_type(value) is type_of_column(schema.column(name).type) for name, value in row.key]
        if all(fits) and len(key) == len(values):
            return key
    raise invalid("the key in a token is not one of the table")


def _foreign(channel: str) -> Exception:
    return invalid("a token belongs to another channel", received=f"channel {channel!r}")


# -- states -----------------------------------------------------------------------------------------------


def status_of(described: ChannelDescription) -> LeaseStatus:
    """Return the status of a channel. One that is open is OPEN, whether a client has it or not."""
    state = described.channel.state
    if state is ChannelState.OPEN and described.lease is LeaseStatus.CLOSING:
        return LeaseStatus.CLOSING
    return _STATUS[state]


def stage_of(channels: Iterable[Channel]) -> str:
    """Return the stage of a tunnel. The store makes all channels at once, so there is no stage of making them."""
    reading_base = any(
        channel.kind is ChannelKind.BASE_DATA and channel.state is not ChannelState.FINISHED for channel in channels
    )
    return "ProcessBaseData" if reading_base else "ProcessStream"


# -- up to when changes were consumed ---------------------------------------------------------------------------


def consumed_until(described: ChannelDescription, now: int) -> int:
    """Return the instant up to which a channel's changes were consumed, in ns like ``now``; 0 for base data."""
    if described.channel.kind is ChannelKind.BASE_DATA:
        return 0
    return now - round((described.backlog.seconds or 0.0) * _NANOSECONDS)


def tunnel_consumed_until(description: TunnelDescription, now: int) -> int:
    """Return the instant up to which all changes of a tunnel were consumed, in ns like ``now``; 0 if it has none."""
    streams = [each for each in description.channels if each.channel.kind is ChannelKind.STREAM]
    return min((consumed_until(each, now) for each in streams), default=0)


def rpo_of_channels(description: TunnelDescription, now: int, limit: int | None = None) -> bytes:
    """Return as JSON, by channel and then by client, up to when changes of the first channels were consumed."""
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
    """Return the same as JSON by kind of channel, of the channel of that kind that is farthest behind."""
    by_kind: dict[str, list[ChannelDescription]] = {}
    for each in description.channels:
        by_kind.setdefault(each.channel.kind.value, []).append(each)
    slowest = {kind: min(channels, key=lambda each: consumed_until(each, now)) for kind, channels in by_kind.items()}
    infos = {kind: _rpo(status_of(each), consumed_until(each, now), now) for kind, each in slowest.items()}
    return json.dumps(infos).encode()


def _rpo(status: LeaseStatus, consumed: int, now: int) -> dict[str, str | int]:
    # How many records were read in all is not known here.
    return {"Status": status.value, "TotalCount": 0, "AccessTime": now, "RpoTime": consumed}
