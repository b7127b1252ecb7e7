"""What a store can do as a whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from headrace.errors import UnsupportedError
from headrace.ports.arguments import Port
from headrace.ports.files import Files
from headrace.ports.publication import Publisher
from headrace.ports.queues import Consumer, Producer, Queue, Registration
from headrace.ports.tables import Table
from headrace.ports.tunnels import Tunnel
from headrace.tables.column_limits import MAX_COLUMNS
from headrace.tunnels.values import Start, TunnelKind


@dataclass(frozen=True)
class Capabilities:
    """What a store promises.

    Attributes:
        transactions: rows of any number of tables and a job's marker are published in one transaction:
            publication is exactly once. Otherwise publication repeats an identical batch after a crash. Also, each
            write of many rows becomes visible at once or not at all, and a scan sees one state of its table.
        whole_rows: a change holds the whole row as it became, not only the cells that were set.
        pre_images: tables can keep the row before each change.
        add_columns: columns can be added to a table that has rows.
        split_partitions: a user can split and merge partitions.
        queues: the store has queues, consumers and producers.
        predicates: the operators that the store itself evaluates in `Table.scan`.
        column_types: the names of the types that columns can have; None is every type that headrace has.
        any_names: tables and columns may have any name that is not empty.
        not_null: columns besides the key can be NOT NULL.
        tells_changes: `Store.wait_for_change` can tell that nothing was committed.
        tells_rows: a change tells whether its row was there before. Otherwise every put is an INSERT, and whatever sets
            cells is an UPDATE.
        rewinds: a new reader can begin before the committed positions of a tunnel.
        trims: changes can be removed from the log of a table, and partitions tell what it has.
        files: the store has files, and so can keep the checkpoints of queries.
        tunnels: tables keep their changes, and tunnels read them.
        row_times: queues tell when each row was committed, also without a column `$timestamp`.
        partition_sizes: queues tell the bytes of each partition; otherwise they are estimated from those of the queue.
        max_columns: the most columns that a new table or queue can have.
        rows_at_once: of how many rows for one partition of its targets a publication may make sure that all become
            visible at one moment; larger ones are exactly once too, but become visible in parts. None is any number.
    """

    transactions: bool
    whole_rows: bool
    pre_images: bool
    add_columns: bool
    split_partitions: bool
    queues: bool
    predicates: frozenset[str]
    column_types: tuple[str, ...] | None = None
    any_names: bool = True
    not_null: bool = True
    tells_changes: bool = True
    tells_rows: bool = True
    rewinds: bool = True
    trims: bool = True
    files: bool = False
    tunnels: bool = True
    row_times: bool = True
    partition_sizes: bool = True
    max_columns: int = MAX_COLUMNS
    rows_at_once: int | None = None

    @property
    def guarantee(self) -> str:
        """What a sink in this store can promise a job, in a few words."""
        if not self.transactions:
            return "at least once, identical batches (idempotent puts)"
        if self.rows_at_once is None:
            return "exactly once"
        return f"exactly once; up to {self.rows_at_once} rows of a batch visible at once, more of them in parts"


class Store(Port):
    """Where tables live.

    The methods for tunnels, queues and files raise `UnsupportedError` unless a store overrides them; `capabilities`
    says which of them the store has.
    """

    url: str
    id: str
    """Tells this store from any other, wherever it is reached; holds no secret."""
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

        With ``exist_ok``, a table of the same columns and key is returned as it is, with the options that it has.
        """

    @abstractmethod
    def table(self, name: str, columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None) -> Table:
        """Return a table, or raise `NotFoundError`.

        Args:
            columns: columns that the caller knows of, for stores that do not keep a table's schema; others keep to
                the schema that they have.
        """

    @abstractmethod
    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        """Remove a table with its rows, change log and tunnels."""

    # -- tunnels -----------------------------------------------------------------------------------------

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
        raise self._no_tunnels()

    def tunnel(
        self,
        id_or_name: str,
        table: str | None = None,
        columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None,
    ) -> Tunnel:
        """Return a tunnel by id, or by name where the name is unique (name the table if it is not).

        Args:
            columns: columns of the table that the caller knows of, see `table`.
        """
        raise self._no_tunnels()

    def tunnels(self, table: str | None = None) -> list[Tunnel]:
        """Return all tunnels, or those of a table; an empty list if the store has no tunnels."""
        return []

    def drop_tunnel(self, id_or_name: str, table: str | None = None, *, missing_ok: bool = False) -> None:
        if not missing_ok:
            raise self._no_tunnels()

    # -- queues, consumers, producers ------------------------------------------------------------------

    def create_queue(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        *,
        partitions: int = 1,
        exist_ok: bool = False,
        **options: Any,
    ) -> Queue:
        """Create a queue; ``options`` are the fields of `QueueOptions`.

        The system columns `$timestamp` (timestamp or long, µs) and `$cumulative_data_weight` (long) are filled
        by the store where they are declared. With ``exist_ok``, a queue of the same columns is returned as it is: with
        the partitions and options that it has, whatever is given here.
        """
        raise self._no_queues()

    def queue(self, name: str) -> Queue:
        """Return a queue, or raise `NotFoundError`."""
        raise self._no_queues()

    def queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        raise self._no_queues()

    def drop_queue(self, name: str, *, missing_ok: bool = False) -> None:
        """Remove a queue with its rows, its registrations and the offsets and sessions over it."""
        raise self._no_queues()

    def create_consumer(self, name: str, *, exist_ok: bool = False) -> Consumer:
        raise self._no_queues()

    def consumer(self, name: str) -> Consumer:
        """Return a consumer, or raise `NotFoundError`."""
        raise self._no_queues()

    def consumers(self) -> list[str]:
        raise self._no_queues()

    def drop_consumer(self, name: str, *, missing_ok: bool = False) -> None:
        """Remove a consumer with its registrations and offsets."""
        raise self._no_queues()

    def register_consumer(self, queue: str, consumer: str, *, vital: bool = False) -> Registration:
        """Let a consumer read a queue, or change whether it is vital."""
        raise self._no_queues()

    def unregister_consumer(self, queue: str, consumer: str) -> None:
        """Take a registration back; offsets stay. Nothing happens if there is none."""
        raise self._no_queues()

    def registrations(self, queue: str | None = None, consumer: str | None = None) -> list[Registration]:
        raise self._no_queues()

    def create_producer(self, name: str, *, exist_ok: bool = False) -> Producer:
        raise self._no_queues()

    def producer(self, name: str) -> Producer:
        """Return a producer, or raise `NotFoundError`."""
        raise self._no_queues()

    def producers(self) -> list[str]:
        raise self._no_queues()

    def drop_producer(self, name: str, *, missing_ok: bool = False) -> None:
        raise self._no_queues()

    # -- files ------------------------------------------------------------------------------------------

    def files(self) -> Files:
        """Return the files of the store.

        Raises:
            UnsupportedError: the store has none, see `Capabilities.files`.
        """
        raise UnsupportedError(
            "this store has no files, so it cannot keep a checkpoint",
            received=self.url,
            remedy="keep the checkpoint in a directory, or name a store that has files",
        )

    # -- publication, waiting ---------------------------------------------------------------------------

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

    def _no_tunnels(self) -> UnsupportedError:
        return UnsupportedError(
            "tables of this store keep no changes, so they have no tunnels",
            received=self.url,
            remedy="let writers append to a queue (store.create_queue), and read it with a consumer",
        )

    def _no_queues(self) -> UnsupportedError:
        return UnsupportedError(
            "this store has no queues, consumers or producers",
            received=self.url,
            remedy="use tables and tunnels, or keep the queue in a store that has queues",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
