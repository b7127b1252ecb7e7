"""The rule that opens the channels of a tunnel, and its stage, the same for all stores. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from headrace.model.tunnels.values import Channel, ChannelKind, ChannelState, TunnelKind


def channel_states(parents: Mapping[str, Sequence[str]], finished: Collection[str]) -> dict[str, ChannelState]:
    """Return the state of every channel.

    A channel is open when all its parents are finished: read to their end, and the end is committed.

    Args:
        parents: the parents of each channel of the tunnel. A parent that is no longer a channel of the tunnel is
            finished.
        finished: the finished channels.
    """
    done = frozenset(finished)

    def state(channel: str) -> ChannelState:
        if channel in done:
            return ChannelState.FINISHED
        waits = any(parent in parents and parent not in done for parent in parents[channel])
        return ChannelState.WAITING if waits else ChannelState.OPEN

    return {channel: state(channel) for channel in parents}


def stage_of(kind: TunnelKind, channels: Iterable[Channel]) -> ChannelKind:
    """Return the kind of rows that a tunnel gives now: changes only after all its base data was read."""
    reading_base = any(
        channel.kind is ChannelKind.BASE_DATA and channel.state is not ChannelState.FINISHED for channel in channels
    )
    return ChannelKind.BASE_DATA if reading_base or kind is TunnelKind.BASE_DATA else ChannelKind.STREAM
