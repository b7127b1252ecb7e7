"""The interface of a store, and its capabilities."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self

import pyarrow as pa

from headrace.errors import NotFoundError, UnsupportedError
from headrace.model.findings import Finding, Status
from headrace.model.tables.bad_rows import COLUMNS, KEY, check_columns, table_name
from headrace.model.tables.column_limits import MAX_COLUMNS
from headrace.model.tunnels.values import KindName, Start, TunnelKind
from headrace.model.types import KEY_TYPE_NAMES
from headrace.ports.arguments import Port
from headrace.ports.backups import Backup, Progress
from headrace.ports.files import Files
from headrace.ports.publication import Publisher, RetriedRows
from headrace.ports.queues import Consumer, Producer, Queue, Registration
from headrace.ports.tables import Table
from headrace.ports.tunnels import Tunnel


@dataclass(frozen=True)
class Capabilities:
    """The features of a store.

    Attributes:
        transactions: publication writes the rows of any number of tables and the job's marker in one transaction, so
            it is exactly once. Otherwise publication repeats an identical batch after a crash. Also, each write of
            several rows is atomic, and a scan reads a snapshot of its table. `atomic_targets` and `rows_at_once` limit
            what becomes visible together.
        whole_rows: a change contains the whole new row, not only the cells that were set.
        pre_images: tables can log the row before each update and delete.
        add_columns: columns can be added to a table with rows.
        alters: columns can be dropped, renamed and widened, see `Table.alter`, also in the transaction of a
            publication.
        adds_in_batches: a publication can add columns, and let columns be null, in its transaction, see `Table.alter`.
            So can each store that alters.
        bad_rows: a publication can put the rows that a table refuses into another table, see `Write.bad_rows`.
        queues: the store has queues, consumers and producers. Without them, `Store.queue` may still return a table that
            is append-only, for streams that name it as a queue.
        predicates: the operators that Spark leaves to `Table.scan`. `Table.scan` itself has all operators in every
            store; `headrace.rows.satisfied` evaluates those that the store's system does not have.
        column_types: the names of the types that columns can have; None is all types of headrace.
        key_types: the names of the types that key columns of new tables can have, if other columns can have them.
        not_null: columns outside the key can be NOT NULL.
        tells_rows: a change contains whether its row existed before. Otherwise each put is an INSERT, and each other
            write of cells is an UPDATE.
        rewinds: a new reader can start before the committed positions of a tunnel.
        trims: changes can be removed from the log of a table, and partitions report the retained changes.
        markers: `Publisher.marker` returns the content of the last batch as it was published, so it can be the position
            of a reader.
        writes_at_once: publications of one job, by its publishers, write at the same time, and not one after the other.
        files: the store has files, so it can keep the checkpoints of queries.
        tunnels: tables log their changes, and tunnels read them.
        row_times: queues know the commit time of each row, also without a column `$timestamp`.
        transaction_ids: the changes of tunnels have the ids of their transactions.
        backup_tool: how to back up a store that `Store.back_up` cannot, for messages.
        several_tables: the forms of the rows of tunnels of several tables, ``typed`` and ``json``, the default first;
            empty if the store has no such tunnels.
        tunnel_options: the names of the options of a new tunnel that only this store has.
        max_columns: the maximum number of columns of a new table or queue.
        rows_at_once: the maximum number of rows for one partition that a publication makes visible atomically. Larger
            publications are also exactly once, but their rows become visible in parts. None is no limit.
        atomic_targets: the maximum number of tables whose rows a publication makes visible together. The rows of more
            tables are also published exactly once, but the tables change one after the other, and headrace's own
            tables before all others. None is no limit.
    """

    transactions: bool
    whole_rows: bool
    pre_images: bool
    add_columns: bool
    queues: bool
    predicates: frozenset[str]
    alters: bool = False
    adds_in_batches: bool = False
    bad_rows: bool = False
    column_types: tuple[str, ...] | None = None
    key_types: tuple[str, ...] = KEY_TYPE_NAMES
    not_null: bool = True
    tells_rows: bool = True
    rewinds: bool = True
    trims: bool = True
    markers: bool = False
    writes_at_once: bool = False
    files: bool = False
    tunnels: bool = True
    row_times: bool = True
    transaction_ids: bool = False
    backup_tool: str = "the tools of the system that has the tables"
    several_tables: tuple[str, ...] = ()
    tunnel_options: tuple[str, ...] = ()
    max_columns: int = MAX_COLUMNS
    rows_at_once: int | None = None
    atomic_targets: int | None = None

    @property
    def evolves(self) -> bool:
        """Whether a publication can change columns in its transaction."""
        return self.alters or self.adds_in_batches

    @property
    def guarantee(self) -> str:
        """The guarantee of a sink in this store, in a few words."""
        if not self.transactions:
            return "at least once, identical batches (idempotent puts)"
        if self.atomic_targets is not None:
            return "exactly once for each table; the tables of a batch change one after the other"
        if self.rows_at_once is None:
            return "exactly once"
        return f"exactly once; up to {self.rows_at_once} rows of a batch visible at once, more of them in parts"


@dataclass(frozen=True)
class Disk:
    """The file system with the files of a store.

    Attributes:
        free: what writers can still use, in bytes.
        size: in bytes.
    """

    free: int
    size: int


class Store(Port):
    """A store of tables, and optionally of tunnels, queues and files, see `capabilities`.

    The methods for tunnels, queues and files raise `UnsupportedError` unless a store overrides them.

    Attributes:
        url: the path or URL of the store, without secrets.
        id: the identity of the store, the same for each URL that reaches it; contains no secret.
        capabilities: the abilities in which stores differ.

    Examples:
        >>> store.create_table("customers", {"id": "long", "city": "string"}, "id").name
        'customers'
        >>> store.tables()
        ['customers', 'orders']
        >>> store.query("SELECT sum(price) AS spent FROM orders").to_pylist()
        [{'spent': 12.5}]
    """

    url: str
    id: str
    capabilities: Capabilities

    def instance(self) -> str:
        """Return a text that is that of this very store; a copy with the same `id` has another. Contains no secret.

        Processes on several machines that open one address compare it: they must reach the same store.
        """
        return self.id

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

        With ``exist_ok``, an existing table with the same columns and key is returned unchanged.
        """

    @abstractmethod
    def table(self, name: str, columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None) -> Table:
        """Return a table, or raise `NotFoundError`.

        Args:
            columns: columns that the caller declares, for stores that do not keep a table's schema; other stores
                ignore them.
        """

    @abstractmethod
    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        """Remove a table with its rows, change log and tunnels."""

    def beside(self, table: str, name: str) -> str:
        """Return the name of a table in the directory, or in the schema, of another table.

        Args:
            table: the other table.
            name: a name without a directory or schema.
        """
        directory, slash, _ = table.rpartition("/")
        return f"{directory}{slash}{name}"

    def changed_tables(self, table: str, store: str) -> list[str]:
        """Return the tables of a store that change when headrace writes into a table of this one.

        A store whose own tables users can follow also returns patterns of their names.

        Args:
            store: the id of the other store, or of this one.
        """
        return [table] if store == self.id else []

    def create_bad_rows(self, table: str) -> None:
        """Create the table of the bad rows of a table beside it, if it does not exist; see `Write.bad_rows`.

        Raises:
            UnsupportedError: the store has no `Capabilities.bad_rows`, or equal keys of the table can have several
                forms, so that the bad rows of a key could not be found.
            SchemaError: the table has no key, or a table of this name lacks a column of bad rows.
        """
        if not self.capabilities.bad_rows:
            raise UnsupportedError(
                "a table of this store keeps no bad rows: its rows and bad rows need one transaction, and a check of "
                "each row",
                received="badRows=table",
                valid="badRows=fail; badRows=table in an embedded store or PostgreSQL",
            )
        self.table(table).schema.check_keyed()
        name = table_name(table)
        try:
            there = self.table(name).schema
        except NotFoundError:
            self.create_table(name, COLUMNS, KEY, exist_ok=True)
        else:
            check_columns(name, there)

    def retry_bad_rows(self, table: str) -> RetriedRows:
        """Write the rows that a table has refused again, in one transaction; see `Write.bad_rows`.

        Rows that the table takes leave the table of bad rows. A row stays there with an error if it is refused again,
        or if the table has another row of its key than when it was refused.

        Args:
            table: the table.

        Raises:
            NotFoundError: the table or its table of bad rows does not exist.
            UnsupportedError: the store has no `Capabilities.bad_rows`.
        """
        raise UnsupportedError(
            "this store keeps no bad rows", received=repr(table), valid="an embedded store or a PostgreSQL database"
        )

    def _check_has_bad_rows(self, table: str) -> None:
        """Raise `NotFoundError` if a table or its table of bad rows does not exist."""
        self.table(table)
        try:
            self.table(table_name(table))
        except NotFoundError:
            raise NotFoundError(
                f"table {table!r} has no table of bad rows",
                received=f"no table {table_name(table)!r}",
                remedy="a stream or mirror into the table with badRows = 'table' creates it when it starts",
            ) from None

    def diagnose(self, table: str | None = None) -> list[Finding]:
        """Check the store or its service, and the rights of the user, for `headrace doctor`.

        Args:
            table: a table that should be followed.

        Raises:
            UnsupportedError: stores of this kind have no checks of tables.
        """
        if table is not None:
            raise UnsupportedError("doctor checks no tables of stores of this kind", received=f"--table {table}")
        return [Finding("Store", Status.OK, f"it can be opened, and shows {len(self.tables())} tables")]

    def disk(self) -> Disk | None:
        """Return the file system with the files of the store; None if another system keeps them."""
        return None

    def check(self, *, repair: bool = False) -> list[Finding]:
        """Check the invariants of the store's own data.

        Args:
            repair: repair what can be repaired without losing data.

        Raises:
            UnsupportedError: another system keeps the data and checks it.
        """
        raise UnsupportedError(
            "another system keeps the data of this store and checks it",
            received=self.url,
            remedy="headrace doctor --store … checks the settings and rights that headrace needs",
        )

    def query(self, sql: str, *, timeout_seconds: float | None = None) -> pa.Table:
        """Return the rows of a SELECT over the tables and queues of the store, in DuckDB's dialect.

        It reads and changes nothing else, see docs/load-and-query.md.

        Args:
            timeout_seconds: the maximum duration; None is no limit.

        Raises:
            SqlError: the statement is not one SELECT, or cannot be parsed or run.
            MissingDependencyError: DuckDB (``headrace[query]``) is not installed.
        """
        # The engine reads stores through this interface, so it cannot be imported above.
        engine: Any = import_module("headrace.inspect.querying.engine")
        with engine.open_query(self, sql, timeout_seconds=timeout_seconds) as reader:
            return reader.read_all()

    # -- tunnels -----------------------------------------------------------------------------------------

    def create_tunnel(
        self,
        table: str | Sequence[str],
        name: str,
        kind: KindName | TunnelKind = TunnelKind.BASE_AND_STREAM,
        *,
        start: str | Start = "latest",
        base_channels: int | None = None,
        **options: Any,
    ) -> Tunnel:
        """Subscribe to a table; ``options`` are those of `Capabilities.tunnel_options`.

        Args:
            table: a table, or a list of several for `create_tunnel_of_tables`.
            kind: BaseData, Stream or BaseAndStream.
            start: for a Stream tunnel: ``latest`` (new changes), ``earliest`` (all changes in the log) or a timestamp.
            base_channels: the number of channels for the base data; by its size if None.
        """
        raise self._no_tunnels()

    def create_tunnel_of_tables(
        self,
        tables: str | Sequence[str],
        name: str,
        kind: KindName | TunnelKind = TunnelKind.BASE_AND_STREAM,
        *,
        base_channels: int | None = None,
        **options: Any,
    ) -> Tunnel:
        """Subscribe to several tables as one; the name of the tunnel is unique among such tunnels.

        The batches of a streaming query are whole transactions of all the tables. The tunnel has the changes of one
        table, in one of the forms of `Capabilities.several_tables`, of which the first is the default: ``typed``, see
        `headrace.model.tables.several_tables`; or ``json``, with the columns ``schema``, ``table``, ``key`` and
        ``row``, of which the last two are JSON objects.

        Args:
            tables: the names of the tables, and patterns, as the store defines them.
            kind: BaseData, Stream (new changes) or BaseAndStream.
            base_channels: the number of channels for the base data of each table; by its size if None.
            options: see `create_tunnel`.

        Raises:
            UnsupportedError: the store has no such tunnels.
        """
        if not self.capabilities.tunnels:
            raise self._no_tunnels()
        raise UnsupportedError(
            "a tunnel of this store follows one table",
            received=f"{tables!r} in {self.url}",
            valid="an embedded store or a PostgreSQL database has tunnels of several tables",
            remedy="create a tunnel for each table",
        )

    def tunnel(
        self,
        id_or_name: str,
        table: str | None = None,
        columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None,
    ) -> Tunnel:
        """Return a tunnel by id, or by name. A name that several tables use requires ``table``.

        The name comes first here, because the table can be left out: ``store.tunnel("stats", table="orders")``.

        Args:
            columns: columns of the table that the caller declares, see `table`.
        """
        raise self._no_tunnels()

    def tunnels(self, table: str | None = None) -> list[Tunnel]:
        """Return all tunnels, or those of a table; an empty list if the store has no tunnels."""
        return []

    def drop_tunnel(self, id_or_name: str, table: str | None = None, *, missing_ok: bool = False) -> None:
        """Remove a tunnel with its positions and clients. Changes that it held are no longer kept for it."""
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

        The store fills the system columns `$timestamp` (timestamp or long, µs) and `$cumulative_data_weight` (long) if
        they are declared. With ``exist_ok``, an existing queue with the same columns is returned unchanged, even if its
        partitions and options differ.
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
        """Create a consumer, which can be registered for queues. With ``exist_ok``, an existing one is returned."""
        raise self._no_queues()

    def consumer(self, name: str) -> Consumer:
        """Return a consumer, or raise `NotFoundError`."""
        raise self._no_queues()

    def consumers(self) -> list[str]:
        """Return the names of all consumers, sorted."""
        raise self._no_queues()

    def drop_consumer(self, name: str, *, missing_ok: bool = False) -> None:
        """Remove a consumer with its registrations and offsets."""
        raise self._no_queues()

    def register_consumer(self, queue: str, consumer: str, *, vital: bool = False) -> Registration:
        """Register a consumer for a queue, or change whether it is vital."""
        raise self._no_queues()

    def unregister_consumer(self, queue: str, consumer: str) -> None:
        """Remove a registration, if it exists. The offsets of the consumer remain."""
        raise self._no_queues()

    def registrations(self, queue: str | None = None, consumer: str | None = None) -> list[Registration]:
        """Return the registrations of consumers for queues: all, or those of a queue or of a consumer."""
        raise self._no_queues()

    def create_producer(self, name: str, *, exist_ok: bool = False) -> Producer:
        """Create a producer. With ``exist_ok``, an existing one is returned."""
        raise self._no_queues()

    def producer(self, name: str) -> Producer:
        """Return a producer, or raise `NotFoundError`."""
        raise self._no_queues()

    def producers(self) -> list[str]:
        """Return the names of all producers, sorted."""
        raise self._no_queues()

    def drop_producer(self, name: str, *, missing_ok: bool = False) -> None:
        """Remove a producer with its sessions."""
        raise self._no_queues()

    # -- files ------------------------------------------------------------------------------------------

    def files(self) -> Files:
        """Return the files of the store.

        Raises:
            UnsupportedError: the store has no files, see `Capabilities.files`.
        """
        raise UnsupportedError(
            "this store has no files, so it cannot keep a checkpoint",
            received=self.url,
            remedy="use a checkpoint in a directory, or in a store with files",
        )

    def checkpoint_directory(self) -> str:
        """Return the directory of `files` with the checkpoints of streams that name none, in normal form."""
        return "/streams"

    # -- backups ----------------------------------------------------------------------------------------

    def back_up(self, directory: str | os.PathLike[str], *, progress: Progress | None = None) -> Backup:
        """Write one committed state of the whole store into a new directory, while writers and streams go on.

        `headrace.restore` makes a store of it. The directory appears when it is complete.

        Args:
            progress: is called with the number of bytes that are copied, and of all bytes.

        Raises:
            UnsupportedError: the store has no backups of headrace.
            AlreadyExistsError: the directory exists and is not empty.
            StoreError: the directory cannot be written.
        """
        raise UnsupportedError(
            "headrace cannot back up a store of this kind",
            received=self.url,
            remedy=f"use {self.capabilities.backup_tool}",
        )

    # -- publication, waiting ---------------------------------------------------------------------------

    @abstractmethod
    def publisher(self, job: str, sink: str = "") -> Publisher:
        """Return the publisher for one sink of a job."""

    def complete_batches(self, table: str) -> None:
        """Write batches of dead drivers into a table that are decided, and that the table lacks.

        Nothing is to be done in a store that changes all its tables in the transaction that decides a batch.
        """

    @abstractmethod
    def wait_for_change(self, timeout: float) -> bool:
        """Wait for a commit of any process to the store, at most ``timeout`` seconds; return whether there may be one.

        The call is cheap. A store that does not detect commits waits briefly and returns True.
        """

    def stays_open(self) -> bool:
        """Return whether the store may stay open, unused, until the next task of the process; otherwise it is closed.

        It is for stores whose opening takes longer than a small batch.
        """
        return False

    @abstractmethod
    def close(self) -> None:
        """Close the files and connections of this process. The next call of the store opens them again."""

    def _no_tunnels(self) -> UnsupportedError:
        return UnsupportedError(
            "tables of this store keep no changes, so they have no tunnels",
            received=self.url,
            remedy="let writers append to a queue (store.create_queue), and read it with a consumer"
            if self.capabilities.queues
            else "follow a table of another store",
        )

    def _no_queues(self) -> UnsupportedError:
        return UnsupportedError(
            "this store has no queues, consumers or producers",
            received=self.url,
            remedy=f"use {'tables and tunnels' if self.capabilities.tunnels else 'tables'}, or keep the queue in a "
            "store that has queues",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
