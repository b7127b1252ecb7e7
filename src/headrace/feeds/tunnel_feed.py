"""A tunnel as a sequence of batches, each fixed for ever by its batch id.

A tunnel cannot be asked for "the rows from here to there": a store hands changes out page by page behind
opaque tokens. So a batch is a UUID, and what it holds is recorded in the store in two steps:

1. `TunnelFeed.latest` makes the batch id and saves its *plan*: the channels that it reads, from where, with
   which limits. The plan is in the store before Spark writes the id into its offset log, so no batch that
   Spark knows of lacks one.
2. Each task reads one channel and records its *end* (see `headrace.feeds.channel_reading`).

A batch's end positions are where the next batch starts. A channel without an end (its rows were not
read to the end, by a LIMIT or because its task never ran) is read again from its planned start.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

from headrace import failpoints
from headrace.errors import DataLossError, StoreBusyError
from headrace.feeds.limits import Limits, enough_rows, share_rows
from headrace.ports import Tunnel
from headrace.tunnels.channels import channel_states
from headrace.tunnels.records import INITIAL_BATCH, BatchPlan, ChannelPlan
from headrace.tunnels.values import FINISHED, Backlog, Channel, ChannelState, Position, Start, StartKind

OPENING_SECONDS = 60.0
"""How long Trigger.AvailableNow waits for a service that opens a channel only some time after its parents' end."""
_OPENING_PAUSE = 0.2
NO_LIMITS = Limits()
COMMITTED = Start()


class TunnelFeed:
    """The driver's side of a tunnel: which batch comes next, and what happens once it is done.

    Args:
        tunnel: what to read.
        start: where the first batch begins. Later ones follow from the batch before.
        limits: how much a batch may hold.
        retain_batches: how many batches stay readable behind a committed one; as many as Spark keeps.
    """

    def __init__(
        self,
        tunnel: Tunnel,
        *,
        start: Start = COMMITTED,
        limits: Limits = NO_LIMITS,
        retain_batches: int = 100,
    ) -> None:
        self.tunnel = tunnel
        self.start = start
        self.limits = limits
        self.retain_batches = retain_batches
        self._pinned: dict[str, Position] | None = None
        self._committed = INITIAL_BATCH
        self._behind: dict[str, int] = {}

    def latest(self, previous: str, *, unlimited: bool = False) -> str:
        """Return the id of the batch that follows ``previous``, or ``previous`` if there is nothing to read.

        Spark asks for this when ``previous`` is done, and commits it only together with a next batch; so it is
        committed here, or the children of its finished channels would never open.

        Args:
            unlimited: read all that is there, whatever the limits.

        Raises:
            TunnelTakenError: another query has begun to read the tunnel since.
        """
        limits = NO_LIMITS if unlimited else self.limits
        if previous != INITIAL_BATCH:
            self.tunnel.check_reader(previous)
        positions, finished = self._positions_after(previous)
        if previous != self._committed:
            self._commit(previous, positions)
        channels, backlogs = self._look(positions, finished)
        self._behind = {channel: backlog.known for channel, backlog in backlogs.items()}
        # A start of its own is fixed by a first batch, empty if need be: Spark records no start, only ends.
        starts_here = previous == INITIAL_BATCH and self.start.kind is not StartKind.COMMITTED
        if not starts_here:
            if all(backlog.empty for backlog in backlogs.values()):
                return previous
            if not unlimited and self._pinned is None and not enough_rows(backlogs, limits):
                return previous
        batch = str(uuid.uuid4())
        parts = self._parts(channels, positions, finished, backlogs, limits)
        # What the store does not yet call finished must not come back when it is asked again.
        unconfirmed = {channel.id for channel in channels if channel.state is not ChannelState.FINISHED}
        failpoints.reach("plan-unsaved")
        self.tunnel.save_plan(BatchPlan(batch, previous, parts, tuple(sorted(finished & unconfirmed))))
        failpoints.reach("plan-saved")
        return batch

    def plan(self, batch: str) -> BatchPlan:
        """Return what a batch reads, the same each time.

        Spark begins a query that finds nothing with a batch that ends where it starts; that one reads nothing.

        Raises:
            DataLossError: the batch is not, or no longer, recorded.
        """
        if batch == INITIAL_BATCH:
            return BatchPlan(batch, batch, ())
        plan = self.tunnel.load_plan(batch)
        if plan is None:
            raise DataLossError(
                f"tunnel {self.tunnel.name!r} has no record of this batch",
                received=batch,
                remedy="the checkpoint belongs to another tunnel or store, or is older than option retainBatches "
                f"({self.retain_batches}) reaches; start the query with a new checkpoint location",
            )
        return plan

    def commit(self, batch: str) -> None:
        """Tell the tunnel that a batch and all before it are done, and forget batches that are out of reach."""
        if batch not in (self._committed, INITIAL_BATCH):
            self._commit(batch, self._positions_after(batch)[0])

    def pin(self) -> None:
        """Take what is there now as all that the following batches may read (Trigger.AvailableNow)."""
        self._pinned = self.tunnel.latest_positions()

    def behind(self) -> dict[str, int]:
        """Return per channel how many rows were waiting, behind the planned batch, when `latest` last looked."""
        return dict(self._behind)

    def _commit(self, batch: str, positions: dict[str, Position]) -> None:
        failpoints.reach("progress-unsaved")
        self.tunnel.commit(positions)
        failpoints.reach("progress-saved")
        self.tunnel.prune(batch, self.retain_batches)
        self._committed = batch

    def _positions_after(self, batch: str) -> tuple[dict[str, Position], set[str]]:
        """Return where the channels that were read so far stand behind a batch, and which of them are finished."""
        if batch == INITIAL_BATCH:
            if self.start.kind is StartKind.COMMITTED:
                return {}, set()
            positions = self.tunnel.start_positions(self.start)
        else:
            plan = self.plan(batch)
            positions = {part.channel: part.start for part in plan}
            positions.update({channel: end.position for channel, end in self.tunnel.ends(batch).items()})
            positions.update(dict.fromkeys(plan.finished, FINISHED))
        return positions, {channel for channel, position in positions.items() if position == FINISHED}

    def _look(self, positions: dict[str, Position], finished: set[str]) -> tuple[list[Channel], dict[str, Backlog]]:
        """Return the tunnel's channels, and what the readable ones have to give.

        Raises:
            StoreBusyError: the store does not open a channel that is pinned, though all before it is read.
        """
        patient_until = time.monotonic() + OPENING_SECONDS
        while True:
            channels = self._known_channels(positions, finished)
            backlogs = self._backlogs(channels, positions, finished)
            exhausted = {channel for channel, backlog in backlogs.items() if backlog.empty and backlog.ends}
            if exhausted:
                # A partition that was split after its last change was read: nothing is left but to say so. Its
                # children may have been split in turn.
                self.tunnel.commit(dict.fromkeys(exhausted, FINISHED))
                finished |= exhausted
                continue
            waiting = [each.id for each in channels if each.state is ChannelState.WAITING and self._owes(each.id)]
            if not waiting or not all(backlog.empty for backlog in backlogs.values()):
                return channels, backlogs
            # All before them is read. A service opens the next ones when it comes to it.
            remaining = patient_until - time.monotonic()
            if remaining <= 0:
                raise StoreBusyError(
                    f"tunnel {self.tunnel.name!r} does not open channels of which all before is read",
                    received=f"{len(waiting)} channels wait for {OPENING_SECONDS:g} seconds: {', '.join(waiting[:3])}",
                    remedy="start the query again: it goes on where it is",
                )
            self.tunnel.wait_for_change(min(_OPENING_PAUSE, remaining))

    def _owes(self, channel: str) -> bool:
        """Tell whether a channel has to be read before Trigger.AvailableNow ends."""
        return self._pinned is not None and self._pinned.get(channel, FINISHED) != FINISHED

    def _known_channels(self, positions: dict[str, Position], finished: set[str]) -> list[Channel]:
        """Return the tunnel's channels; those not read so far add their checkpoints to ``positions``."""
        channels = self.tunnel.channels(positions)
        for channel in channels:
            if channel.id not in positions:
                positions[channel.id] = channel.committed
                if channel.state is ChannelState.FINISHED:
                    finished.add(channel.id)
        return channels

    def _backlogs(
        self, channels: list[Channel], positions: dict[str, Position], finished: set[str]
    ) -> dict[str, Backlog]:
        """Return what the readable channels have to give."""
        states = channel_states({channel.id: channel.parents for channel in channels}, finished)
        wanted: dict[str, Position] = {}
        for channel in channels:
            # A service opens its channels itself: where it says "waiting", the rule alone is not enough.
            if states[channel.id] is not ChannelState.OPEN or channel.state is ChannelState.WAITING:
                continue
            if self._pinned is None or channel.id in self._pinned:
                wanted[channel.id] = positions[channel.id]
        return self.tunnel.backlogs(wanted, self._pinned)

    def _parts(
        self,
        channels: list[Channel],
        positions: dict[str, Position],
        finished: set[str],
        backlogs: dict[str, Backlog],
        limits: Limits,
    ) -> tuple[ChannelPlan, ...]:
        shares = share_rows(backlogs, limits)
        # Without a row limit, "what is there now" must still end while writers go on.
        bounds = self._pinned if self._pinned is not None else self.tunnel.latest_positions()
        parts: list[ChannelPlan] = []
        for channel in channels:
            if channel.id in finished:
                continue
            part = ChannelPlan(channel.id, positions[channel.id], max_rows=0)
            if channel.id in backlogs and shares[channel.id] != 0:
                share = shares[channel.id]
                part = replace(part, max_rows=share, until=bounds.get(channel.id))
                self._behind[channel.id] = 0 if share is None else max(0, backlogs[channel.id].known - share)
            parts.append(part)
        return tuple(parts)
