"""The interface of a tunnel and its clients."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import UnsupportedError
from headrace.model.tables.json_forms import JsonForm, Origin
from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.lag import Lag, Slot
from headrace.model.tunnels.leases import Lease, LeaseStatus, Saved
from headrace.model.tunnels.records import BatchPlan, ChannelEnd
from headrace.model.tunnels.values import Backlog, Channel, ChannelKind, ChannelState, Page, Position, Start, TunnelKind
from headrace.ports.arguments import Port
from headrace.ports.tables import Table
from headrace.support import notebooks
from headrace.workers import TunnelWorker

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WAITING_SECONDS = 60.0
"""The age from which on an unread change of a tunnel is reported."""


@dataclass(frozen=True)
class ChannelDescription:
    """A channel and its uncommitted changes.

    Attributes:
        client: the id of the client that reads the channel; None if no client does.
        client_tag: the tag of that client.
        lease: whether that client keeps the channel, or has to release it (`LeaseStatus.CLOSING`).
    """

    channel: Channel
    backlog: Backlog
    client: str | None = None
    client_tag: str | None = None
    lease: LeaseStatus | None = None


@dataclass(frozen=True)
class TunnelDescription:
    """The state of a tunnel.

    Attributes:
        stage: ``BaseData`` until all base data is read, then ``Stream``.
        created: in seconds since 1970.
        details: more facts, by names that only this store has. None is an unknown value, or no limit.
        warnings: what needs the attention of a person, in sentences.
    """

    id: str
    name: str
    table: str
    kind: TunnelKind
    stage: str
    created: float
    channels: tuple[ChannelDescription, ...]
    details: Mapping[str, int | str | bool | None] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def backlog_rows(self) -> int | None:
        """The number of unread rows; None if the store does not know it."""
        return self.lag.rows if self.lag.exact else None

    @property
    def oldest_unread(self) -> float | None:
        """The age of the oldest unread change in seconds, as far as the store knows it."""
        return max((each.backlog.seconds for each in self.channels if each.backlog.seconds is not None), default=None)

    @property
    def waits(self) -> bool:
        """Whether a change has waited for more than a minute: nothing reads the tunnel, or too slowly."""
        return (self.oldest_unread or 0.0) > WAITING_SECONDS

    @property
    def lag(self) -> Lag:
        """The unread rows of all channels, as far as the store knows them."""
        base = [each.channel for each in self.channels if each.channel.kind is ChannelKind.BASE_DATA]
        done = sum(channel.state is ChannelState.FINISHED for channel in base)
        return Lag.of([described.backlog for described in self.channels], len(base), done)


class TunnelClient(Port):
    """One of the readers that share a tunnel. One client at a time reads a channel.

    A client that sends no heartbeat for ``timeout`` seconds loses its channels.
    """

    id: str
    timeout: float

    @abstractmethod
    def heartbeat(self, leases: Sequence[Lease]) -> list[Lease]:
        """Report the states of this client's channels, and return its current channels.

        A client reports CLOSE for a channel that it has released on request, and TERMINATED for a channel for which it
        has saved `FINISHED`, each with the version incremented. It no longer has channels that are not returned.

        Raises:
            ClientGoneError: the client has timed out or is closed.
            TunnelTakenError: a streaming query has started to read the tunnel. Not all stores detect this.
        """

    @abstractmethod
    def saved(self, channel: str) -> Saved:
        """Return the saved position of a channel."""

    @abstractmethod
    def save(self, channel: str, position: Position, sequence: int) -> None:
        """Save the position of a channel.

        Args:
            sequence: the number of the save, one more than that of the previous save.

        Raises:
            SequenceNumberError: the number is not larger than the saved one: another client also reads the channel.
            ClientGoneError: the client has timed out or is closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Release all channels and end the client. Further calls do nothing."""


def _html(described: TunnelDescription) -> str:
    title = notebooks.facts(
        f"Tunnel {described.name}",
        {"table": described.table, "kind": described.kind, "stage": described.stage, "lag": str(described.lag)},
    )
    warnings = "".join(notebooks.note(f"⚠ {each}") for each in described.warnings)
    channels = [
        (each.channel.id, each.channel.kind, each.channel.state, each.backlog.unread, each.client_tag or each.client)
        for each in described.channels
    ]
    columns = ("channel", "kind", "state", "unread rows", "reader")
    return title + warnings + notebooks.rows(columns, channels, len(channels))


class BatchRecords(Port):
    """The plans and ends of the batches of a tunnel's reader. A batch is a UUID."""

    @abstractmethod
    def save_plan(self, plan: BatchPlan) -> None:
        """Save the plan of a batch, unless the batch has one.

        A plan that follows `INITIAL_BATCH` starts a new reader, which replaces the previous one.
        """

    @abstractmethod
    def check_reader(self, batch: str) -> None:
        """Check that the reader of a recorded batch is still the tunnel's reader.

        Raises:
            TunnelTakenError: another reader has started. Its commits hide changes from the previous reader.
        """

    @abstractmethod
    def load_plan(self, batch: str) -> BatchPlan | None:
        """Return the plan of a batch; None if it has none."""

    @abstractmethod
    def record_end(self, batch: str, channel: str, end: ChannelEnd) -> ChannelEnd:
        """Save the end of a batch in a channel, unless it has one; return the saved end."""

    @abstractmethod
    def end(self, batch: str, channel: str) -> ChannelEnd | None:
        """Return the saved end of a batch in one channel; None if it has none."""

    @abstractmethod
    def ends(self, batch: str) -> dict[str, ChannelEnd]:
        """Return the saved ends of a batch, by channel."""

    @abstractmethod
    def prune(self, batch: str, keep: int) -> None:
        """Delete the records of batches more than ``keep`` before this one, and of plans without use."""


class Tunnel(Port):
    """A durable subscription to the changes of a table, or of several tables in the order of their transactions.

    Attributes:
        id: the tunnel's id, which another tunnel of its name does not have.
        name: the tunnel's name, unique for its table.
        kind: BaseData, Stream or BaseAndStream.
        table: the table, as the tunnel shows its rows.
        batches: the records of the batches that a streaming query has read.

    Examples:
        >>> tunnel.kind
        <TunnelKind.BASE_AND_STREAM: 'BaseAndStream'>
        >>> for batch in tunnel.consume(idle="stop"):
        ...     print(batch.to_arrow().column("id").to_pylist())
        ['o1', 'o2']
        >>> [channel.backlog.rows for channel in tunnel.describe().channels]
        [0, 0]
    """

    id: str
    name: str
    kind: TunnelKind
    table: Table
    batches: BatchRecords
    whole_transactions: bool = False
    """Whether the changes of a batch are whole transactions: limits of rows are exceeded to the end of one."""
    borrowed: tuple[str, ...] = ()
    """What the tunnel uses and headrace has not created, in words. It remains when the tunnel is dropped."""

    def slot(self) -> Slot | None:
        """Return the log that a server keeps for the tunnel; None if it has no replication slot."""
        return None

    def _repr_html_(self) -> str | None:
        known = {"table": self.table.name, "kind": self.kind}
        return notebooks.shown(f"Tunnel {self.name}", lambda: _html(self.describe()), known)

    def plot(self) -> Figure:
        """Return a figure of the channels with their unread rows, which a notebook shows.

        Raises:
            MissingDependencyError: matplotlib (``headrace[plot]``) is not installed.
        """
        from headrace.ports.plots import tunnel_figure

        described = self.describe()
        title = f"Tunnel {described.name} of {described.table}: {described.lag} unread"
        return tunnel_figure(title, [(each.channel, each.backlog) for each in described.channels])

    @property
    def origin(self) -> Origin:
        """The database of the tables; empty if change events of other systems have no name for it."""
        return Origin()

    @abstractmethod
    def describe(self) -> TunnelDescription:
        """Return the stage of the tunnel, and its channels with their clients and backlogs."""

    def shown_position(self, position: Position) -> str:
        """Return a position for people: the token, unless the store has a more readable form."""
        return f"{position.token}, {position.skip} rows later" if position.skip else position.token

    @property
    def tables(self) -> Mapping[str, TableSchema]:
        """The tables of a tunnel of several tables with typed rows, by their columns; empty for other tunnels.

        See `headrace.model.tables.several_tables`.
        """
        return {}

    def typed(self) -> Tunnel:
        """Return this tunnel of several tables with typed rows, see `tables`.

        Raises:
            UnsupportedError: the tunnel has the columns of its table.
        """
        raise self._of_one_table("typed rows have a column for each table")

    def with_json(self, form: JsonForm) -> Tunnel:
        """Return this tunnel with another form of its rows, which are JSON.

        Raises:
            UnsupportedError: the tunnel has the columns of its table. Only tunnels of several tables have JSON.
        """
        raise self._of_one_table("rows as JSON are those of several tables")

    def _of_one_table(self, problem: str) -> UnsupportedError:
        return UnsupportedError(
            f"{problem}, and tunnel {self.name!r} has the columns of one table",
            received=f"a tunnel of table {self.table.name!r}",
            remedy="create a tunnel with a list of tables, which may be one: "
            f"store.create_tunnel([{self.table.name!r}], …)",
        )

    def with_truncations(self) -> Tunnel:
        """Return this tunnel with an entry `ChangeOp.TRUNCATE` where all rows of a table were deleted at once.

        It is the first change of its page. Typed rows of several tables have all such entries of a transaction first,
        on one page, and not what the transaction changed in these tables before. Without entries, such a place is a
        `DataLossError`, because the log does not have the rows. Stores whose logs have a delete for each row return the
        tunnel itself.
        """
        return self

    def take_in_tables(self) -> list[str]:
        """Take in later tables that the tunnel names, with base data, and return their names.

        Readers call it often; a store may look for new tables less often. Typed rows keep their tables: nothing happens
        then. Stores whose tunnels keep their tables do nothing.
        """
        return []

    # -- channels -----------------------------------------------------------------------------------

    @abstractmethod
    def channels(self, known: Mapping[str, Position] | None = None) -> list[Channel]:
        """Return the channels in creation order. Channels that finished long ago may be omitted.

        A channel is WAITING until all its parents are FINISHED: until `commit` was called with `FINISHED` for each.

        Args:
            known: positions of channels whose committed positions the caller does not need. A store that needs a
                request for each committed position may return these positions instead.
        """

    @abstractmethod
    def start_positions(self, start: Start) -> dict[str, Position]:
        """Return the start position of a new reader in each channel, for a start other than `committed`.

        The position of channels that the reader skips is `FINISHED`.

        Raises:
            DataLossError: changes after the start have been removed.
        """

    @abstractmethod
    def latest_positions(self) -> dict[str, Position]:
        """Return for each current channel the position after its last change."""

    def settled_positions(self) -> dict[str, Position]:
        """Return for each current channel a position after all changes that a reader of the table can see by now.

        In a store that shows rows before their changes are in the log, it waits for the log.

        Raises:
            StoreBusyError: the log does not come.
        """
        return self.latest_positions()

    @abstractmethod
    def backlog(self, channel: str, position: Position, until: Position | None = None) -> Backlog:
        """Return the backlog of a channel from a position, up to ``until`` (from `latest_positions`) if set."""

    def backlogs(
        self, positions: Mapping[str, Position], until: Mapping[str, Position] | None = None
    ) -> dict[str, Backlog]:
        """Return the backlogs of several channels. A store that needs requests for this may combine them."""
        bounds = until or {}
        return {channel: self.backlog(channel, at, bounds.get(channel)) for channel, at in positions.items()}

    def waiting_backlogs(
        self, positions: Mapping[str, Position], until: Mapping[str, Position] | None = None
    ) -> dict[str, Backlog]:
        """Return the backlogs of waiting channels, as far as the store knows them without reading the channels."""
        return dict.fromkeys(positions, Backlog(rows=None))

    @abstractmethod
    def read(
        self,
        channel: str,
        position: Position,
        max_rows: int,
        until: Position | None = None,
        *,
        total: int | None = None,
    ) -> Page:
        """Read the next changes of a channel. The same position always returns the same rows in the same order.

        A page may have more or fewer rows than ``max_rows``. It is empty only if there are no changes yet. Its ``next``
        is `FINISHED` at the end of the channel. A page does not separate a pre-image from the change after it, unless
        ``position`` or ``until`` does.

        Args:
            until: the position after the last change to return.
            total: the rows that the caller wants from this page and the next ones; None for all. A store that reads
                ahead reads no more than about that.

        Raises:
            DataLossError: changes at the position have been removed.
        """

    @abstractmethod
    def skip_lost(self, channel: str, position: Position) -> tuple[Position, int | None]:
        """Return the first readable position at or after a position, and the number of lost rows between the two.

        The number is None if the store does not know it.
        """

    def accept_lost(self, channel: str, position: Position) -> bool:
        """Accept for all readers a loss that stops reads at every position; return whether there was one.

        For a store that records such losses, as of rows that were read before.
        """
        return False

    def values_of_new_columns(self, names: Sequence[str]) -> Mapping[str, Any]:
        """Return the values of columns, by their names, in all rows that were read before they were columns.

        No change brings these values. Columns that are null there are missing.

        Raises:
            SchemaError: rows differ in such a value.
        """
        return {}

    @abstractmethod
    def advance(self, channel: str, position: Position, rows: int) -> Position:
        """Return the position that is ``rows`` rows after a position, to split a page."""

    @abstractmethod
    def commit(self, positions: Mapping[str, Position]) -> None:
        """Save committed positions, which never move back. `FINISHED` opens the children of a channel."""

    # -- clients that share the channels -------------------------------------------------------------

    @abstractmethod
    def connect(self, *, tag: str = "", timeout: float = 300.0) -> TunnelClient:
        """Connect a client. Its first heartbeat returns channels.

        A tunnel serves either clients or a streaming query. If both read it, no change is lost, but each gets only a
        part of the changes. A store that detects this raises `TunnelTakenError` in the reader that was first: in
        `BatchRecords.check_reader` for a query, in every call for a client.

        Args:
            tag: a name for the description of the tunnel.
            timeout: the number of seconds without a heartbeat after which other clients get the client's channels.
        """

    @abstractmethod
    def client(self, client_id: str) -> TunnelClient:
        """Return a connected client by its id, in any process.

        Raises:
            ClientGoneError: the client does not exist or has timed out.
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
        fail_on_data_loss: bool = True,
    ) -> TunnelWorker:
        """Read the tunnel without Spark, at least once. All workers of the tunnel share its channels.

        Iterate over the result. A batch is processed when the next batch is requested, or when its `done()` is called.
        The worker saves the positions of processed batches. After the end of the process, a worker reads the other
        batches again.

        Args:
            client: a name for the description of the tunnel.
            batch_rows: the maximum number of changes in a batch.
            checkpoint_interval: the maximum number of seconds between saves.
            heartbeat_interval: seconds between heartbeats; by default 5, or a quarter of ``timeout`` if that is less.
            timeout: the number of seconds without a heartbeat after which other workers get this worker's channels.
                It is also the maximum time that a channel waits for its current batch before it moves.
            idle: ``wait`` for new changes, or ``stop`` after all workers have read and saved all changes.
            fail_on_data_loss: raise `DataLossError` if changes were lost; otherwise skip them, and log it.
        """
        return TunnelWorker(
            self,
            client,
            batch_rows=batch_rows,
            checkpoint_interval=checkpoint_interval,
            heartbeat_interval=heartbeat_interval,
            timeout=timeout,
            idle=idle,
            fail_on_data_loss=fail_on_data_loss,
        )

    def wait_for_change(self, timeout: float) -> bool:
        """Wait for a commit, at most ``timeout`` seconds; return whether there was one.

        A store that does not detect commits waits for the whole time and returns False.
        """
        time.sleep(timeout)
        return False
