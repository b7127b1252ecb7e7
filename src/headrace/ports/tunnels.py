"""What a tunnel of a store can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.model import (
    Backlog,
    BatchPlan,
    Channel,
    ChannelEnd,
    Page,
    Position,
    Start,
    TunnelKind,
)
from headrace.ports.tables import Table


@dataclass(frozen=True)
class ChannelDescription:
    """A channel, and what it has that is not yet committed."""

    channel: Channel
    backlog: Backlog


@dataclass(frozen=True)
class TunnelDescription:
    """A tunnel as it stands. ``stage`` is ``BaseData`` while base data is being read, then ``Stream``."""

    id: str
    name: str
    table: str
    kind: TunnelKind
    stage: str
    created: float
    channels: tuple[ChannelDescription, ...]

    @property
    def backlog_rows(self) -> int | None:
        counts = [described.backlog.rows for described in self.channels]
        return None if None in counts else sum(count or 0 for count in counts)


class Tunnel(ABC):
    """A durable subscription to a table's changes, and the place where its readers' batches are recorded."""

    id: str
    name: str
    kind: TunnelKind
    table: Table

    @abstractmethod
    def describe(self) -> TunnelDescription: ...

    # -- channels -----------------------------------------------------------------------------------

    @abstractmethod
    def channels(self) -> list[Channel]:
        """Return all channels in creation order, those finished long ago may be left out.

        A channel leaves WAITING when all its parents are FINISHED, that is: when `commit` was called with
        `FINISHED` for each of them.
        """

    @abstractmethod
    def start_positions(self, start: Start) -> dict[str, Position]:
        """Return where a new reader begins in each channel, for a start other than `committed`.

        Channels that are to be passed over get `FINISHED`.

        Raises:
            DataLossError: the store no longer has everything from there on.
        """

    @abstractmethod
    def latest_positions(self) -> dict[str, Position]:
        """Return, for every channel that exists now, the position behind what is there now."""

    @abstractmethod
    def backlog(self, channel: str, position: Position, until: Position | None = None) -> Backlog:
        """Tell what can be read from a position on, up to ``until`` (from `latest_positions`) if given."""

    @abstractmethod
    def read(self, channel: str, position: Position, max_rows: int, until: Position | None = None) -> Page:
        """Read the next changes of a channel. The same position always gives the same rows, in the same order.

        A page may be longer than ``max_rows`` or shorter, and is empty only when there is nothing now. Its
        ``next`` is `FINISHED` once the channel has ended; with ``until``, no change behind it is given.

        Raises:
            DataLossError: changes at the position have been removed.
        """

    @abstractmethod
    def skip_lost(self, channel: str, position: Position) -> tuple[Position, int]:
        """Return the first position at or behind the given one that can be read, and how many rows are lost."""

    @abstractmethod
    def advance(self, channel: str, position: Position, rows: int) -> Position:
        """Return the position ``rows`` behind one, in the store's own form (used to cut a page)."""

    @abstractmethod
    def commit(self, positions: Mapping[str, Position]) -> None:
        """Record progress. Never moves a channel back; `FINISHED` lets the channel's children open."""

    # -- batches (the meta table) ---------------------------------------------------------------------

    @abstractmethod
    def save_plan(self, plan: BatchPlan) -> None:
        """Record a batch's plan under its batch id; a plan that is there stays.

        A plan that follows `INITIAL_BATCH` begins a new reader, which takes the tunnel over.
        """

    @abstractmethod
    def check_reader(self, batch: str) -> None:
        """Make sure that the reader of a recorded batch still has the tunnel.

        Raises:
            TunnelTakenError: another reader has begun since; its commits hide changes from this one.
        """

    @abstractmethod
    def load_plan(self, batch: str) -> BatchPlan | None: ...

    @abstractmethod
    def record_end(self, batch: str, channel: str, end: ChannelEnd) -> ChannelEnd:
        """Record where a batch ends in a channel, unless it is recorded; return what is recorded."""

    @abstractmethod
    def ends(self, batch: str) -> dict[str, ChannelEnd]:
        """Return the recorded ends of a batch, by channel."""

    @abstractmethod
    def prune(self, batch: str, keep: int) -> None:
        """Forget the batches that come more than ``keep`` before this one, and plans that were never used."""
