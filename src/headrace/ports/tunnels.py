"""What a tunnel of a store can do."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.ports.arguments import Port
from headrace.ports.tables import Table
from headrace.tunnels.leases import Lease, LeaseStatus, Saved
from headrace.tunnels.records import BatchPlan, ChannelEnd
from headrace.tunnels.values import Backlog, Channel, Page, Position, Start, TunnelKind
from headrace.workers import TunnelWorker


@dataclass(frozen=True)
class ChannelDescription:
    """A channel, and what it has that is not yet committed.

    Where a live client has it: the client's id and tag, and whether it is to be given back (`LeaseStatus.CLOSING`).
    """

    channel: Channel
    backlog: Backlog
    client: str | None = None
    client_tag: str | None = None
    lease: LeaseStatus | None = None


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


class TunnelClient(Port):
    """One of several readers that share a tunnel's channels, each channel with one of them at a time.

    A client that lets its time-out pass without a heartbeat loses its channels.
    """

    id: str
    timeout: float

    @abstractmethod
    def heartbeat(self, leases: Sequence[Lease]) -> list[Lease]:
        """Tell how this client sees its channels; return the channels that it has now.

        A client reports a channel as CLOSE that it was asked to give back, as TERMINATED once it has saved `FINISHED`,
        each with a version one higher; a channel that is missing from the answer is no longer its own.

        Raises:
            ClientGoneError: the client's time-out passed, or it was closed.
            TunnelTakenError: a streaming query has begun to read the tunnel since, as far as the store knows.
        """

    @abstractmethod
    def saved(self, channel: str) -> Saved:
        """Return where reading goes on in a channel."""

    @abstractmethod
    def save(self, channel: str, position: Position, sequence: int) -> None:
        """Save how far a channel is read; ``sequence`` is one more than that of the save before.

        Raises:
            SequenceNumberError: the number is not above the saved one: somebody else reads the channel too.
            ClientGoneError: the client's time-out passed, or it was closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Give all channels back and end; nothing happens if the client has ended."""


class Tunnel(Port):
    """A durable subscription to a table's changes, and the place where its readers' batches are recorded."""

    id: str
    name: str
    kind: TunnelKind
    table: Table

    @abstractmethod
    def describe(self) -> TunnelDescription: ...

    # -- channels -----------------------------------------------------------------------------------

    @abstractmethod
    def channels(self, known: Mapping[str, Position] | None = None) -> list[Channel]:
        """Return all channels in creation order, those finished long ago may be left out.

        Args:
            known: positions of channels whose committed positions the caller does not need. A store that needs a
                request for each committed position may return these instead.

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

    def backlogs(
        self, positions: Mapping[str, Position], until: Mapping[str, Position] | None = None
    ) -> dict[str, Backlog]:
        """Tell the same for several channels; a store that has to ask for each may ask for all at once."""
        bounds = until or {}
        return {channel: self.backlog(channel, at, bounds.get(channel)) for channel, at in positions.items()}

    @abstractmethod
    def read(self, channel: str, position: Position, max_rows: int, until: Position | None = None) -> Page:
        """Read the next changes of a channel. The same position always gives the same rows, in the same order.

        A page may be longer than ``max_rows`` or shorter, and is empty only when there is nothing now. Its
        ``next`` is `FINISHED` once the channel has ended; with ``until``, no change behind it is given.

        Raises:
            DataLossError: changes at the position have been removed.
        """

    @abstractmethod
    def skip_lost(self, channel: str, position: Position) -> tuple[Position, int | None]:
        """Return the first position at or behind the given one that can be read, and how many rows are lost.

        None stands for a number that the store does not know.
        """

    @abstractmethod
    def advance(self, channel: str, position: Position, rows: int) -> Position:
        """Return the position ``rows`` behind one, in the store's own form (used to cut a page)."""

    @abstractmethod
    def commit(self, positions: Mapping[str, Position]) -> None:
        """Record progress. Never moves a channel back; `FINISHED` lets the channel's children open."""

    # -- clients that share the channels -------------------------------------------------------------

    @abstractmethod
    def connect(self, *, tag: str = "", timeout: float = 300.0) -> TunnelClient:
        """Begin to share the tunnel's channels; the first heartbeat gives the client some.

        A tunnel is for clients or for a streaming query. Where both read it no change is lost, but each gets only a
        part. A store that knows of both tells whoever came first by `TunnelTakenError`: the query when it calls
        `check_reader`, the clients when they call anything.

        Args:
            tag: a name for people who look at the tunnel.
            timeout: seconds without a heartbeat after which the client's channels go to others.
        """

    @abstractmethod
    def client(self, client_id: str) -> TunnelClient:
        """Return a connected client by its id, also one that has connected from another process.

        Raises:
            ClientGoneError: there is no such client any more.
        """

    def consume(
        self,
        client: str = "",
        *,
        batch_rows: int = 5000,
        checkpoint_interval: float = 5.0,
        heartbeat_interval: float | None = None,
        timeout: float = 60.0,
        idle: str = "wait",
    ) -> TunnelWorker:
        """Read the tunnel here, without Spark, together with all others who do the same; at least once.

        Iterate over the result. A batch counts as processed when the next one is asked for, or with its `done()`; what
        was processed is saved, and what was not comes again, here or elsewhere, when this process is gone.

        Args:
            client: a name for people who look at the tunnel.
            batch_rows: most changes in a batch.
            checkpoint_interval: save at least so often what was processed, in seconds.
            heartbeat_interval: seconds between heartbeats, by default 5 or a quarter of ``timeout``, the lesser.
            timeout: seconds without a heartbeat after which others get this worker's channels. A channel that another
                worker is to have waits as long for the batch in hand.
            idle: at the end of what is there, ``wait`` for more, or ``stop`` once the whole tunnel is read and saved,
                by this worker or by others.
        """
        return TunnelWorker(
            self,
            client,
            batch_rows=batch_rows,
            checkpoint_interval=checkpoint_interval,
            heartbeat_interval=heartbeat_interval,
            timeout=timeout,
            idle=idle,
        )

    def wait_for_change(self, timeout: float) -> bool:
        """Wait until there may be more to read, at most ``timeout`` seconds; tell whether something was committed.

        A store that is not told of commits waits, and returns False.
        """
        time.sleep(timeout)
        return False

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
