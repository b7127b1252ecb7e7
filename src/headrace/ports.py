"""What a store can do, as abstract classes that every store implements and everything else is written against.

A store differs from another by its `Capabilities`, never by its name. All methods may be called from any
thread and any process; objects are cheap to make and hold no state that others need to see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pyarrow as pa

from headrace.model import (
    Backlog,
    BatchPlan,
    Channel,
    ChannelEnd,
    KeyRange,
    KeyValue,
    Page,
    Position,
    RowChange,
    Start,
    TableSchema,
    TunnelKind,
    Where,
)

if TYPE_CHECKING:
    import pandas

Rows: TypeAlias = "pa.Table | pa.RecordBatch | pandas.DataFrame | Sequence[Mapping[str, Any]] | Mapping[str, Any]"
"""Rows as Arrow, pandas, a list of dicts, or one dict."""


@dataclass(frozen=True)
class Capabilities:
    """What a store promises.

    Attributes:
        transactions: rows of any number of tables and a job's marker are published in one transaction:
            publication is exactly once. Otherwise publication repeats an identical batch after a crash.
        whole_rows: a change holds the whole row as it became, not only the cells that were set.
        pre_images: tables can keep the row before each change.
        add_columns: columns can be added to a table that has rows.
        split_partitions: a user can split and merge partitions.
        predicates: the operators that the store itself evaluates in `Table.scan`.
    """

    transactions: bool
    whole_rows: bool
    pre_images: bool
    add_columns: bool
    split_partitions: bool
    predicates: frozenset[str]

    @property
    def guarantee(self) -> str:
        """What a sink in this store can promise a job, in a few words."""
        return "exactly once" if self.transactions else "at least once, identical batches (idempotent puts)"


@dataclass(frozen=True)
class TableOptions:
    """How a table keeps its change log.

    Attributes:
        pre_images: log the row as it was before each replacement, update and delete.
        retention_seconds: remove changes older than this; None keeps them for ever.
        retention_bytes: keep at most about so many bytes of log per partition; None is no limit.
        retention_ignores_tunnels: remove even what a live tunnel has not read yet. Off by default:
            what a tunnel needs is kept, and `Table.describe` says which tunnel holds it.
    """

    pre_images: bool = False
    retention_seconds: float | None = 7 * 86400.0
    retention_bytes: int | None = None
    retention_ignores_tunnels: bool = False


@dataclass(frozen=True)
class Partition:
    """A key range of a table, with its change log.

    ``first`` and ``next`` are log row indexes: the oldest change still kept, and the next to be given.
    """

    id: int
    keys: KeyRange
    parents: tuple[int, ...]
    open: bool
    rows: int
    first: int
    next: int
    log_bytes: int


@dataclass(frozen=True)
class TableDescription:
    """A table as it stands; ``held_by`` names the tunnels that keep retention from removing changes."""

    name: str
    schema: TableSchema
    options: TableOptions
    rows: int
    partitions: tuple[Partition, ...]
    held_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrimReport:
    """What a trim removed, and the tunnels that held back or lost changes."""

    changes: int
    bytes: int
    held_by: tuple[str, ...] = ()
    cut_from: tuple[str, ...] = ()


class Table(ABC):
    """Rows with a primary key."""

    name: str

    @property
    @abstractmethod
    def schema(self) -> TableSchema:
        """The columns now; other processes may add some."""

    @abstractmethod
    def put(self, rows: Rows) -> int:
        """Write whole rows: insert, or replace the row of that key. Columns left out become null.

        All rows become visible at once, or none. Returns the commit version.
        """

    @abstractmethod
    def update(self, rows: Rows, *, keep_nulls: bool = True) -> int:
        """Set the given columns of rows, inserting rows that are not there; other columns keep their values.

        Args:
            rows: the key columns and at least one other.
            keep_nulls: whether a null is a value to set; otherwise a null leaves the cell as it is.
        """

    @abstractmethod
    def delete(self, keys: Rows) -> int:
        """Remove the rows of these keys; keys that are not there are no change. Other columns are ignored."""

    @abstractmethod
    def get(self, key: Mapping[str, KeyValue], columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        """Return one row as ``{column: value}``, or None."""

    @abstractmethod
    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        keys: KeyRange | None = None,
        batch_rows: int = 65536,
    ) -> pa.RecordBatchReader:
        """Read rows in key order. One call sees one state of the table, however long it is read.

        Args:
            columns: the columns to return, in this order; all by default. An empty list gives row counts.
            where: conditions on any columns, see `headrace.model.parse_where`.
            keys: only keys in this range.
            batch_rows: most rows in a batch.
        """

    @abstractmethod
    def splits(self, count: int) -> list[KeyRange]:
        """Return at most ``count`` key ranges of about equal size that cover the table without overlap."""

    @abstractmethod
    def split(self, partition: int | None = None, at: Mapping[str, KeyValue] | None = None) -> tuple[int, int]:
        """Split a partition (the largest by default) at a key (its middle by default); return the two new ids."""

    @abstractmethod
    def merge(self, left: int, right: int) -> int:
        """Merge two open partitions that are neighbours; return the new id."""

    @abstractmethod
    def add_columns(self, columns: Mapping[str, str | pa.DataType]) -> None:
        """Add attribute columns, null in the rows that are there."""

    @abstractmethod
    def set_options(self, **changes: Any) -> TableOptions:
        """Change some of the `TableOptions`; return all of them."""

    @abstractmethod
    def describe(self) -> TableDescription: ...

    @abstractmethod
    def trim(self, *, before: Mapping[int, int] | None = None, cut_tunnels: bool = False) -> TrimReport:
        """Remove old changes now: by the table's retention, or below given log row indexes per partition.

        What a live tunnel still needs stays, unless ``cut_tunnels`` (or the table's own option) says otherwise.
        """


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


@dataclass(frozen=True)
class Staged:
    """A receipt for rows that are in the store but not visible. Small, and can be pickled."""

    id: int
    rows: int


@dataclass(frozen=True)
class Write:
    """What to do with staged rows at publication."""

    table: str
    change: RowChange
    staged: tuple[Staged, ...]


class Publisher(ABC):
    """Makes a job's batches visible in a store, each at once and once.

    ``job`` is the identity of the job (Spark's query id), ``sink`` tells several sinks of one job apart.
    """

    job: str
    sink: str

    @abstractmethod
    def published(self, batch: int) -> bool:
        """Tell whether this batch, or a later one, is published."""

    @abstractmethod
    def stage(self, batch: int, rows: Iterable[pa.RecordBatch]) -> list[Staged]:
        """Put rows aside, invisible to readers, from any process. Nothing is staged when the input fails."""

    @abstractmethod
    def publish(self, batch: int, writes: Sequence[Write], *, content: str = "", last: bool = False) -> bool:
        """Make staged rows visible in one transaction with the marker; remove what else was staged up to it.

        Returns False, having changed nothing, if the batch is published already.

        Args:
            content: tells the batch's content from any other under the same number; unknown if empty.
            last: keep no marker, because the job has this one batch.

        Raises:
            PublicationError: staged rows are not there; or the batch, or a later one, is published with
                another content: the job's checkpoint went back.
        """

    @abstractmethod
    def discard(self, batch: int, staged: Sequence[Staged] | None = None) -> None:
        """Remove what was staged for a batch: these receipts, or everything."""


class Store(ABC):
    """Where tables live."""

    url: str
    capabilities: Capabilities

    @abstractmethod
    def tables(self) -> list[str]:
        """Return the names of all tables, sorted."""

    @abstractmethod
    def create_table(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        primary_key: str | Sequence[str],
        *,
        exist_ok: bool = False,
        **options: Any,
    ) -> Table:
        """Create a table; ``options`` are the fields of `TableOptions`.

        With ``exist_ok``, a table of the same columns and key is returned as it is.
        """

    @abstractmethod
    def table(self, name: str) -> Table:
        """Return a table, or raise `NotFoundError`."""

    @abstractmethod
    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        """Remove a table with its rows, change log and tunnels."""

    @abstractmethod
    def create_tunnel(
        self,
        table: str,
        name: str,
        kind: str | TunnelKind = TunnelKind.BASE_AND_STREAM,
        *,
        start: str | Start = "latest",
        base_channels: int | None = None,
    ) -> Tunnel:
        """Subscribe to a table.

        Args:
            kind: BaseData, Stream or BaseAndStream.
            start: for a Stream tunnel: ``latest`` (changes from now on), ``earliest`` (all that the log still
                has) or a timestamp.
            base_channels: into how many pieces the base data of the table is cut; by its size if None.
        """

    @abstractmethod
    def tunnel(self, id_or_name: str, table: str | None = None) -> Tunnel:
        """Return a tunnel by id, or by name where the name is unique (name the table if it is not)."""

    @abstractmethod
    def tunnels(self, table: str | None = None) -> list[Tunnel]: ...

    @abstractmethod
    def drop_tunnel(self, id_or_name: str, table: str | None = None, *, missing_ok: bool = False) -> None: ...

    @abstractmethod
    def publisher(self, job: str, sink: str = "") -> Publisher: ...

    @abstractmethod
    def wait_for_change(self, timeout: float) -> bool:
        """Wait until some process commits to the store, at most ``timeout`` seconds; tell whether one may have.

        Cheap enough to be called all the time. A store that cannot tell waits a moment and returns True.
        """

    @abstractmethod
    def close(self) -> None:
        """Give files and connections of this process back; the store can be used again afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
