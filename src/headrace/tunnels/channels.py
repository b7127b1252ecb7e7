"""The one rule by which the channels of a tunnel open. Pure, and the same for every store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from headrace.tunnels.values import ChannelState


def channel_states(parents: Mapping[str, Sequence[str]], finished: Collection[str]) -> dict[str, ChannelState]:
    """Return the state of every channel.

    A channel is open when all its parents are finished, that is: read to their end, with that end committed.

    Args:
        parents: for each channel of the tunnel, the channels that it follows. A parent that is not a channel
            of the tunnel any more was finished long ago and has been forgotten.
        finished: the channels that are finished and committed.
    """
    done = frozenset(finished)

    def state(channel: str) -> ChannelState:
        if channel in done:
            return ChannelState.FINISHED
        waits = any(parent in parents and parent not in done for parent in parents[channel])
        return ChannelState.WAITING if waits else ChannelState.OPEN

    return {channel: state(channel) for channel in parents}
