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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from headrace.batches.feeds.channel_reading import ChannelTask
from headrace.batches.feeds.feed import Feed, Offset
from headrace.batches.feeds.limits import Limits, enough_rows, share_rows
from headrace.errors import DataLossError, NotFoundError, OptionError, StoreBusyError
from headrace.model.tunnels.channels import channel_states
from headrace.model.tunnels.lag import Lag, Slot
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
TRUNCATES = "truncates"
"""An entry of offsets: the tables with whose TRUNCATE the batch begins, as far as its plan knows."""
_SLOT_SECONDS = 10.0
"""The time between two looks at the log that a server keeps."""
_SOME = Backlog(rows=None)
Positions: TypeAlias = Mapping[str, Position]
"""The positions of channels; `FINISHED` for channels without further changes."""


class ReadTunnel(NamedTuple):
    """The tunnel of an offset.

    Attributes:
        store: the id of its store.
        tunnel: its id.
    """

    store: str
    tunnel: str


@dataclass(frozen=True)
class _Channels:
    """The channels of a tunnel after a batch.

    Attributes:
        all: the channels, in creation order.
        positions: their positions.
        backlogs: the unread rows of the open channels.
    """

    all: list[Channel]
    positions: Positions
    backlogs: Mapping[str, Backlog]

    def is_finished(self, channel: Channel) -> bool:
        return self.positions[channel.id] == FINISHED


@dataclass(frozen=True)
class _Lag:
    """What is unread after the batch that was planned last.

    Attributes:
        left: the rows in open channels.
        waiting: the positions of waiting channels.
        base: the base channels, and whether each is read.
    """

    left: Mapping[str, Backlog] = field(default_factory=dict)
    waiting: Positions = field(default_factory=dict)
    base: Mapping[str, bool] = field(default_factory=dict)

    def after(self, plans: Iterable[ChannelPlan]) -> _Lag:
        """Return the lag after a batch."""
        read = {plan.channel: self.left[plan.channel].after(plan.max_rows) for plan in plans if plan.max_rows != 0}
        return replace(self, left={**self.left, **read})


class TunnelFeed(Feed[str, ChannelTask]):
    """The feed of a tunnel. A position is a batch id.

    Args:
        tunnel: the tunnel.
        store: the id of its store, for offsets.
        start: where the first batch starts.
        limits: the limits of a batch.
        retain_batches: how many batches before a committed batch can be read again; as many as Spark retains.
    """

    def __init__(
        self,
        tunnel: Tunnel,
        *,
        store: str = "",
        start: Start = COMMITTED,
        limits: Limits = DEFAULT_LIMITS,
        retain_batches: int = 100,
    ) -> None:
        self.tunnel = tunnel
        self.store = store
        self.start = start
        self.limits = limits
        self.retain_batches = retain_batches
        self._fixed_end: dict[str, Position] | None = None
        self._committed = INITIAL_BATCH
        # The batch that was planned last, and the tables with whose TRUNCATE it begins.
        self._truncates: tuple[str, tuple[str, ...]] = INITIAL_BATCH, ()
        self._lag = _Lag()
        self._last_slot: Slot | None = None
        self._next_look = 0.0

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
        positions = self.positions_after(previous)
        if previous != self._committed:
            self._commit(previous, positions)
        self.tunnel.take_in_tables()
        channels = self._channels(positions)
        backlogs = channels.backlogs
        self._lag = self._lag_of(channels)
        # Spark saves only the ends of batches, so the first batch, even if it is empty, fixes a start position.
        fixes_start = previous == INITIAL_BATCH and self.start.kind is not StartKind.COMMITTED
        if not fixes_start:
            if all(backlog.empty for backlog in backlogs.values()):
                return previous
            if not unlimited and self._fixed_end is None and not enough_rows(backlogs, limits):
                return previous
        batch = str(uuid.uuid4())
        plans = self._channel_plans(channels, limits)
        read = [backlogs[plan.channel] for plan in plans if plan.max_rows != 0 and plan.channel in backlogs]
        self._truncates = batch, tuple(table for backlog in read for table in backlog.truncates)
        self._lag = self._lag.after(plans)
        # The store may not yet report these channels as finished.
        finished = sorted(each.id for each in channels.all if channels.is_finished(each) and not _is_finished(each))
        failpoints.reach("plan-unsaved")
        self.tunnel.batches.save_plan(BatchPlan(batch, previous, plans, tuple(finished)))
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
        except NotFoundError as error:
            problem = f"table {table.name!r} was dropped, and tunnel {tunnel.name!r} with it"
            if tunnel.whole_transactions:
                problem = f"a table of tunnel {tunnel.name!r} was dropped, and the tunnel with it"
            remedy = f"create the table and the tunnel again, {again}"
            raise NotFoundError(problem, received=error.received, remedy=remedy) from None
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
            self._commit(end, self.positions_after(end))

    def fix_end(self) -> None:
        self.tunnel.take_in_tables()
        self._fixed_end = self.tunnel.latest_positions()

    def lift_end(self) -> None:
        self._fixed_end = None

    def rows_behind(self) -> dict[str, int]:
        return {channel: backlog.known for channel, backlog in self._lag.left.items()}

    def report(self) -> Offset:
        """Return the lag, also of channels that wait for base data to be read; see `Feed.report`."""
        lag = self._lag
        backlogs = dict(lag.left)
        if lag.waiting:
            backlogs |= self.tunnel.waiting_backlogs(lag.waiting, self._fixed_end)
        unread, slot = Lag.of(backlogs.values()), self._slot()
        done = [channel for channel, read in lag.base.items() if read or lag.left.get(channel, _SOME).unread == 0]
        return {
            "rowsBehindLatest": {channel: backlog.known for channel, backlog in backlogs.items()},
            "rowsUnknown": [channel for channel, backlog in backlogs.items() if backlog.unread is None],
            "baseRanges": [len(lag.base), len(done)],
            "secondsBehindLatest": unread.seconds,
            "bytesBehindLatest": unread.bytes,
            **({} if slot is None else {"slot": slot._asdict()}),
        }

    def _slot(self) -> Slot | None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look, self._last_slot = now + _SLOT_SECONDS, self.tunnel.slot()
        return self._last_slot

    def _lag_of(self, channels: _Channels) -> _Lag:
        unread = [each.id for each in channels.all if not channels.is_finished(each) and self._is_read(each.id)]
        waiting = {each: channels.positions[each] for each in unread if each not in channels.backlogs}
        base = {each.id: channels.is_finished(each) for each in channels.all if each.kind is ChannelKind.BASE_DATA}
        return _Lag(channels.backlogs, waiting, base)

    def _is_read(self, channel: str) -> bool:
        """Return whether a channel is read: Trigger.AvailableNow leaves out later ones."""
        return self._fixed_end is None or channel in self._fixed_end

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
        planned, truncates = self._truncates
        begin = {TRUNCATES: list(truncates)} if truncates and position == planned else {}
        return {"batch": position, **ReadTunnel(self.store, self.tunnel.id)._asdict(), **begin}

    def _commit(self, batch: str, positions: Positions) -> None:
        failpoints.reach("progress-unsaved")
        self.tunnel.commit(positions)
        failpoints.reach("progress-saved")
        self.tunnel.batches.prune(batch, self.retain_batches)
        self._committed = batch

    def positions_after(self, batch: str) -> Positions:
        """Return the positions of the channels of a batch after it. Channels without changes yet may be missing."""
        if batch == INITIAL_BATCH:
            return {} if self.start.kind is StartKind.COMMITTED else self.tunnel.start_positions(self.start)
        plan = self.plan(batch)
        starts = {channel_plan.channel: channel_plan.start for channel_plan in plan}
        ends = {channel: end.position for channel, end in self.tunnel.batches.ends(batch).items()}
        return starts | ends | dict.fromkeys(plan.finished, FINISHED)

    def _channels(self, positions: Positions) -> _Channels:
        """Return the tunnel's channels, also the new ones since a batch.

        Commits the end of channels that have no more changes, so that their children open.

        Args:
            positions: the positions after the batch.

        Raises:
            StoreBusyError: the service does not open a channel below the fixed end, though its parents are finished.
        """
        deadline = time.monotonic() + OPENING_SECONDS
        while True:
            channels = self.tunnel.channels(positions)
            # A position that a batch has read is newer than the committed one.
            committed = {each.id: FINISHED if _is_finished(each) else each.committed for each in channels}
            positions = {**committed, **positions}
            backlogs = self._backlogs(channels, positions)
            exhausted = [channel for channel, backlog in backlogs.items() if backlog.empty and backlog.ends]
            if exhausted:
                # The partition was split after its last change was read. Its children may be split already, too.
                ends = dict.fromkeys(exhausted, FINISHED)
                self.tunnel.commit(ends)
                positions = {**positions, **ends}
                continue
            waiting = [each.id for each in channels if each.state is ChannelState.WAITING and self._before_end(each.id)]
            if not waiting or not all(backlog.empty for backlog in backlogs.values()):
                return _Channels(channels, positions, backlogs)
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

    def _backlogs(self, channels: list[Channel], positions: Positions) -> dict[str, Backlog]:
        """Return the backlogs of the open channels."""
        finished = {channel for channel, position in positions.items() if position == FINISHED}
        states = channel_states({channel.id: channel.parents for channel in channels}, finished)
        # A service opens its channels itself, possibly later than the rule.
        may_open = (channel.id for channel in channels if channel.state is not ChannelState.WAITING)
        is_open = [each for each in may_open if states[each] is ChannelState.OPEN and self._is_read(each)]
        return self.tunnel.backlogs({channel: positions[channel] for channel in is_open}, self._fixed_end)

    def _channel_plans(self, channels: _Channels, limits: Limits) -> tuple[ChannelPlan, ...]:
        shares = share_rows(channels.backlogs, limits)
        # The batch needs an end, even without a row limit, because writers continue.
        bounds = self._fixed_end if self._fixed_end is not None else self.tunnel.latest_positions()
        plans: list[ChannelPlan] = []
        for channel in channels.all:
            if channels.is_finished(channel):
                continue
            share = shares.get(channel.id, 0)
            until = bounds.get(channel.id) if share != 0 else None
            plans.append(ChannelPlan(channel.id, channels.positions[channel.id], max_rows=share, until=until))
        return tuple(plans)


def tunnel_of(offset: Any) -> ReadTunnel | None:
    """Return the tunnel of an offset; None for another source, and for an offset of an older release."""
    if not isinstance(offset, dict) or not all(isinstance(offset.get(name), str) for name in ReadTunnel._fields):
        return None
    return ReadTunnel(offset["store"], offset["tunnel"])


def _is_finished(channel: Channel) -> bool:
    return channel.state is ChannelState.FINISHED
