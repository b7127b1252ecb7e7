"""The feed of a tunnel: a batch is a UUID, and records in the store define its rows.

A tunnel cannot read the rows between two offsets, because a store returns changes page by page with opaque tokens. So
the content of a batch is recorded in two steps:

1. `TunnelFeed.latest` creates the batch id and saves the *plan* of the batch: its channels, their start positions and
   their limits. The plan is saved before Spark writes the batch id into its offset log, so each batch in the log has a
   plan.
2. Each task reads one channel and records its *end*, see `headrace.batches.feeds.channel_reading`.

The next batch starts at the ends. A channel without an end (a LIMIT stopped its task, or the task never ran) starts
again at its planned start.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

from headrace.batches.feeds.channel_reading import ChannelTask
from headrace.batches.feeds.feed import Feed, Offset
from headrace.batches.feeds.limits import Limits, enough_rows, share_rows
from headrace.errors import DataLossError, NotFoundError, OptionError, StoreBusyError
from headrace.model.tunnels.channels import channel_states
from headrace.model.tunnels.records import INITIAL_BATCH, BatchPlan, ChannelPlan
from headrace.model.tunnels.values import (
    FINISHED,
    Backlog,
    Channel,
    ChannelKind,
    ChannelState,
    Position,
    Start,
    StartKind,
)
from headrace.ports import Tunnel
from headrace.support import failpoints

OPENING_SECONDS = 60.0
"""How long Trigger.AvailableNow waits for a service to open a channel after its parents are finished."""
_OPENING_PAUSE = 0.2
DEFAULT_LIMITS = Limits()
NO_LIMITS = Limits(copied_rows=None)
COMMITTED = Start()
_SOME = Backlog(rows=None)


class TunnelFeed(Feed[str, ChannelTask]):
    """The feed of a tunnel. A position is a batch id.

    Args:
        tunnel: the tunnel.
        start: where the first batch starts.
        limits: the limits of a batch.
        retain_batches: how many batches before a committed batch can be read again; as many as Spark retains.
    """

    def __init__(
        self,
        tunnel: Tunnel,
        *,
        start: Start = COMMITTED,
        limits: Limits = DEFAULT_LIMITS,
        retain_batches: int = 100,
    ) -> None:
        self.tunnel = tunnel
        self.start = start
        self.limits = limits
        self.retain_batches = retain_batches
        self._fixed_end: dict[str, Position] | None = None
        self._committed = INITIAL_BATCH
        # After the batch that was planned last: the rows that are left in open channels, the positions of waiting
        # channels, and the base channels with whether each is read.
        self._left: dict[str, Backlog] = {}
        self._waiting: dict[str, Position] = {}
        self._base: dict[str, bool] = {}

    def initial(self) -> str:
        return INITIAL_BATCH

    def latest(self, previous: str, *, unlimited: bool = False, with_start: bool = False) -> str:
        """Plan the next batch; see `Feed.latest`.

        Spark commits a batch only after it has planned the next one. The children of finished channels open only after
        the commit, so this method commits ``previous``.

        Raises:
            TunnelTakenError: another query has started to read the tunnel.
        """
        limits = NO_LIMITS if unlimited else self.limits
        if previous != INITIAL_BATCH:
            self.tunnel.batches.check_reader(previous)
        positions, finished = self._positions_after(previous)
        if previous != self._committed:
            self._commit(previous, positions)
        channels, backlogs = self._channels_and_backlogs(positions, finished)
        self._note_lag(channels, positions, finished, backlogs)
        # Spark saves only the ends of batches, so the first batch, even if it is empty, fixes a start position.
        fixes_start = previous == INITIAL_BATCH and self.start.kind is not StartKind.COMMITTED
        if not fixes_start:
            if all(backlog.empty for backlog in backlogs.values()):
                return previous
            if not unlimited and self._fixed_end is None and not enough_rows(backlogs, limits):
                return previous
        batch = str(uuid.uuid4())
        plans = self._channel_plans(channels, positions, finished, backlogs, limits)
        # The store may not yet report these channels as finished.
        unconfirmed = {channel.id for channel in channels if channel.state is not ChannelState.FINISHED}
        failpoints.reach("plan-unsaved")
        self.tunnel.batches.save_plan(BatchPlan(batch, previous, plans, tuple(sorted(finished & unconfirmed))))
        failpoints.reach("plan-saved")
        return batch

    def plan(self, batch: str) -> BatchPlan:
        """Return the plan of a batch.

        If a query has nothing to read at its start, Spark runs an empty batch that ends at the initial position.

        Raises:
            DataLossError: the store has no record of the batch.
            NotFoundError: the tunnel or its table was dropped.
        """
        if batch == INITIAL_BATCH:
            return BatchPlan(batch, batch, ())
        plan = self.tunnel.batches.load_plan(batch)
        if plan is None:
            self._check_not_dropped()
            raise DataLossError(
                f"tunnel {self.tunnel.name!r} has no record of this batch",
                received=batch,
                remedy="the checkpoint belongs to another tunnel or store, or is older than the batches that option "
                f"retainBatches ({self.retain_batches}) keeps; start the query with a new checkpoint location",
            )
        return plan

    def _check_not_dropped(self) -> None:
        """Raise `NotFoundError` if the tunnel or its table was dropped."""
        table, tunnel = self.tunnel.table, self.tunnel
        again = "and start the query with a new checkpoint location"
        try:
            table.describe()
        except NotFoundError:
            problem = f"table {table.name!r} was dropped, and tunnel {tunnel.name!r} with it"
            raise NotFoundError(problem, remedy=f"create the table and the tunnel again, {again}") from None
        try:
            tunnel.describe()
        except NotFoundError:
            problem = f"tunnel {tunnel.name!r} of table {table.name!r} was dropped"
            raise NotFoundError(problem, remedy=f"create the tunnel again, {again}") from None

    def tasks(self, start: str, end: str) -> list[ChannelTask]:
        return [ChannelTask(end, plan) for plan in self.plan(end) if plan.max_rows != 0]

    def commit(self, end: str) -> None:
        """Commit the positions after a batch to the tunnel, and delete batches that are no longer retained."""
        if end not in (self._committed, INITIAL_BATCH):
            self._commit(end, self._positions_after(end)[0])

    def fix_end(self) -> None:
        self._fixed_end = self.tunnel.latest_positions()

    def rows_behind(self) -> dict[str, int]:
        return {channel: backlog.known for channel, backlog in self._left.items()}

    def report(self) -> Offset:
        """Return the lag, also of channels that wait for base data to be read; see `Feed.report`."""
        backlogs = self._left | (self.tunnel.waiting_backlogs(self._waiting, self._fixed_end) if self._waiting else {})
        done = [channel for channel, read in self._base.items() if read or self._left.get(channel, _SOME).unread == 0]
        return {
            "rowsBehindLatest": {channel: backlog.known for channel, backlog in backlogs.items()},
            "rowsUnknown": [channel for channel, backlog in backlogs.items() if backlog.unread is None],
            "baseRanges": [len(self._base), len(done)],
        }

    def _note_lag(
        self,
        channels: list[Channel],
        positions: dict[str, Position],
        finished: set[str],
        backlogs: dict[str, Backlog],
    ) -> None:
        self._left = dict(backlogs)
        self._base = {each.id: each.id in finished for each in channels if each.kind is ChannelKind.BASE_DATA}
        self._waiting = {
            channel.id: positions[channel.id]
            for channel in channels
            if channel.id not in finished
            and channel.id not in backlogs
            and (self._fixed_end is None or channel.id in self._fixed_end)
        }

    def position_of(self, offset: Offset) -> str:
        batch = offset.get("batch") if isinstance(offset, dict) else None
        if not isinstance(batch, str):
            raise OptionError(
                "the checkpoint's offset is not the offset of a tunnel",
                received=str(offset)[:200],
                valid='{"batch": "<uuid>"}',
                remedy="another source has used this checkpoint location; choose a new location",
            )
        return batch

    def offset_of(self, position: str) -> Offset:
        return {"batch": position}

    def _commit(self, batch: str, positions: dict[str, Position]) -> None:
        failpoints.reach("progress-unsaved")
        self.tunnel.commit(positions)
        failpoints.reach("progress-saved")
        self.tunnel.batches.prune(batch, self.retain_batches)
        self._committed = batch

    def _positions_after(self, batch: str) -> tuple[dict[str, Position], set[str]]:
        """Return the positions of all channels after a batch, and the finished channels among them."""
        if batch == INITIAL_BATCH:
            if self.start.kind is StartKind.COMMITTED:
                return {}, set()
            positions = self.tunnel.start_positions(self.start)
        else:
            plan = self.plan(batch)
            positions = {channel_plan.channel: channel_plan.start for channel_plan in plan}
            positions.update({channel: end.position for channel, end in self.tunnel.batches.ends(batch).items()})
            positions.update(dict.fromkeys(plan.finished, FINISHED))
        return positions, {channel for channel, position in positions.items() if position == FINISHED}

    def _channels_and_backlogs(
        self, positions: dict[str, Position], finished: set[str]
    ) -> tuple[list[Channel], dict[str, Backlog]]:
        """Return the tunnel's channels, and the backlogs of the open ones.

        Commits the end of channels that have no more changes, so that their children open, and adds them to
        ``finished``.

        Raises:
            StoreBusyError: the service does not open a channel below the fixed end, though its parents are finished.
        """
        deadline = time.monotonic() + OPENING_SECONDS
        while True:
            channels = self._known_channels(positions, finished)
            backlogs = self._backlogs(channels, positions, finished)
            exhausted = {channel for channel, backlog in backlogs.items() if backlog.empty and backlog.ends}
            if exhausted:
                # The partition was split after its last change was read. Its children may be split already, too.
                self.tunnel.commit(dict.fromkeys(exhausted, FINISHED))
                finished |= exhausted
                continue
            waiting = [each.id for each in channels if each.state is ChannelState.WAITING and self._before_end(each.id)]
            if not waiting or not all(backlog.empty for backlog in backlogs.values()):
                return channels, backlogs
            # A service opens channels some time after their parents are finished.
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise StoreBusyError(
                    f"tunnel {self.tunnel.name!r} does not open channels whose parents are finished",
                    received=f"{', '.join(waiting[:3])}: {len(waiting)} channels, for {OPENING_SECONDS:g} seconds",
                    remedy="start the query again: it continues at the same position",
                )
            self.tunnel.wait_for_change(min(_OPENING_PAUSE, remaining))

    def _before_end(self, channel: str) -> bool:
        """Return whether Trigger.AvailableNow has to read a channel before it ends."""
        return self._fixed_end is not None and self._fixed_end.get(channel, FINISHED) != FINISHED

    def _known_channels(self, positions: dict[str, Position], finished: set[str]) -> list[Channel]:
        """Return the tunnel's channels, and add the committed positions of new channels to ``positions``."""
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
        """Return the backlogs of the open channels."""
        states = channel_states({channel.id: channel.parents for channel in channels}, finished)
        open_positions: dict[str, Position] = {}
        for channel in channels:
            # A service opens its channels itself, possibly later than the rule.
            if states[channel.id] is not ChannelState.OPEN or channel.state is ChannelState.WAITING:
                continue
            if self._fixed_end is None or channel.id in self._fixed_end:
                open_positions[channel.id] = positions[channel.id]
        return self.tunnel.backlogs(open_positions, self._fixed_end)

    def _channel_plans(
        self,
        channels: list[Channel],
        positions: dict[str, Position],
        finished: set[str],
        backlogs: dict[str, Backlog],
        limits: Limits,
    ) -> tuple[ChannelPlan, ...]:
        shares = share_rows(backlogs, limits)
        # The batch needs an end, even without a row limit, because writers continue.
        bounds = self._fixed_end if self._fixed_end is not None else self.tunnel.latest_positions()
        plans: list[ChannelPlan] = []
        for channel in channels:
            if channel.id in finished:
                continue
            plan = ChannelPlan(channel.id, positions[channel.id], max_rows=0)
            if channel.id in backlogs and shares[channel.id] != 0:
                share = shares[channel.id]
                plan = replace(plan, max_rows=share, until=bounds.get(channel.id))
                self._left[channel.id] = backlogs[channel.id].after(share)
            plans.append(plan)
        return tuple(plans)
