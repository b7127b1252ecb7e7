"""The embedded store: one directory, no server, safe for many processes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import NotFoundError, OptionError, SchemaError
from headrace.model.findings import Finding
from headrace.model.queues.columns import QueueSchema
from headrace.model.queues.validation import changed_options
from headrace.model.queues.values import QueueOptions
from headrace.model.tables.bad_rows import table_name
from headrace.model.tables.conditions import OPERATORS
from headrace.model.tables.options import TableOptions
from headrace.model.tables.schema import TableSchema
from headrace.model.tables.several_tables import schema_of
from headrace.model.tunnels.validation import Named, check_start_of_several, find
from headrace.model.tunnels.values import Start, StartKind, TunnelKind
from headrace.options.names import check_names
from headrace.ports import (
    Capabilities,
    Consumer,
    Disk,
    Files,
    Producer,
    Publisher,
    Queue,
    Registration,
    RetriedRows,
    Store,
    Table,
    Tunnel,
)
from headrace.ports.arguments import flag, text
from headrace.ports.backups import Backup, Progress
from headrace.stores.embedded import backup, catalog
from headrace.stores.embedded.catalog import ObjectKind
from headrace.stores.embedded.checks.store import check_store
from headrace.stores.embedded.connection import Database, SeenVersion, stamp
from headrace.stores.embedded.diagnosis import diagnose
from headrace.stores.embedded.files import EmbeddedFiles
from headrace.stores.embedded.publication.bad_rows import retry
from headrace.stores.embedded.publication.publisher import EmbeddedPublisher
from headrace.stores.embedded.queues import consumers, stored_queues
from headrace.stores.embedded.queues.consumers import EmbeddedConsumer
from headrace.stores.embedded.queues.producers import EmbeddedProducer
from headrace.stores.embedded.queues.queue import EmbeddedQueue
from headrace.stores.embedded.tables import stored_tables
from headrace.stores.embedded.tables.table import EmbeddedTable
from headrace.stores.embedded.tunnels import stored_tunnels
from headrace.stores.embedded.tunnels.tunnel import EmbeddedTunnel
from headrace.stores.shared.several_tables import SeveralTables
from headrace.support import failpoints


class EmbeddedStore(Store):
    """Tables, queues, tunnels and publications in one SQLite database.

    It can be pickled, and its tables and queues too. Another process of the machine opens the same store.

    Args:
        directory: the directory of the store.
        create: create the store if it does not exist.
        synchronous: ``full``, ``normal`` or ``off``, see `headrace.stores.embedded.connection.Database`.
    """

    capabilities = Capabilities(
        transactions=True,
        whole_rows=True,
        pre_images=True,
        add_columns=True,
        alters=True,
        bad_rows=True,
        queues=True,
        predicates=frozenset(OPERATORS),
        markers=True,
        files=True,
        several_tables=("typed",),
    )

    def __init__(self, directory: str | os.PathLike[str], *, create: bool = False, synchronous: str = "full") -> None:
        create, synchronous = flag(create, "create"), text(synchronous, "option synchronous")
        self._database = Database(Path(directory), create=create, synchronous=synchronous)
        self._seen = SeenVersion()
        self.url = self._database.directory.as_uri()
        self.id = self._database.store_id()

    def __repr__(self) -> str:
        return f"EmbeddedStore({str(self._database.directory)!r})"

    def instance(self) -> str:
        return f"{self.id} on {self._database.file_identity()}"

    @property
    def database(self) -> Database:
        """The SQLite database. The endpoints keep their own tables in it."""
        return self._database

    # -- tables -------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        return self._names("table")

    def create_table(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        primary_key: str | Sequence[str],
        *,
        exist_ok: bool = False,
        **options: Any,
    ) -> Table:
        catalog.check_name(name, "table")
        schema = TableSchema.of(columns, primary_key)
        settings = stored_tables.table_options(TableOptions(), **options)
        with self._database.write() as connection:
            taken = catalog.is_taken(connection, name, "table", exist_ok=exist_ok)
            if not taken:
                stored_tables.create(connection, name, schema, settings)
        table = EmbeddedTable(self._database, name)
        if taken and table.schema != schema:
            raise SchemaError(
                f"table {name!r} exists with other columns or another key",
                received=_shown(schema),
                valid=_shown(table.schema),
            )
        return table

    def table(self, name: str, columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None) -> Table:
        self._find(name, "table")
        return EmbeddedTable(self._database, name)

    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        with self._database.write() as connection:
            object_id = catalog.find_to_drop(connection, name, "table", missing_ok=missing_ok)
            if object_id is not None:
                stored_tunnels.drop_all(connection, object_id)
                stored_tables.drop(connection, object_id)

    # -- tunnels ------------------------------------------------------------------------------------

    def create_tunnel(
        self,
        table: str | Sequence[str],
        name: str,
        kind: str | TunnelKind = TunnelKind.BASE_AND_STREAM,
        *,
        start: str | Start = "latest",
        base_channels: int | None = None,
        **options: Any,
    ) -> Tunnel:
        begin = start if isinstance(start, Start) else Start.parse(start)
        if not isinstance(table, str):
            check_start_of_several(begin)
            return self.create_tunnel_of_tables(table, name, kind, base_channels=base_channels, **options)
        check_names("a tunnel of this store", options, self.capabilities.tunnel_options)
        tunnel_id = stored_tunnels.create(
            self._database, [self.table(table)], name, TunnelKind.parse(kind), begin, base_channels
        )
        return self.tunnel(tunnel_id)

    def create_tunnel_of_tables(
        self,
        tables: str | Sequence[str],
        name: str,
        kind: str | TunnelKind = TunnelKind.BASE_AND_STREAM,
        *,
        base_channels: int | None = None,
        **options: Any,
    ) -> Tunnel:
        """Subscribe to several tables in the order of their commits.

        Args:
            tables: the names of the tables; a text has them separated by commas.
            base_channels: the number of channels for the base data of each table; by its size if None.
        """
        check_names("a tunnel of this store", options, self.capabilities.tunnel_options)
        names = [each.strip() for each in tables.split(",")] if isinstance(tables, str) else tables
        # Each once, like a table that several patterns of PostgreSQL match.
        followed = [self.table(each) for each in dict.fromkeys(names)]
        if not followed:
            raise OptionError("a tunnel needs tables", received=repr(tables), valid="the names of one table or several")
        schema_of({table.name: table.schema for table in followed})
        tunnel_id = stored_tunnels.create(
            self._database, followed, name, TunnelKind.parse(kind), Start(StartKind.LATEST), base_channels, several=True
        )
        return self.tunnel(tunnel_id)

    def tunnel(
        self,
        id_or_name: str,
        table: str | None = None,
        columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None,
    ) -> Tunnel:
        return find(
            self._tunnels(table),
            lambda tunnel: Named(tunnel.id, tunnel.name, tunnel.table.name),
            id_or_name,
            table,
        )

    def tunnels(self, table: str | None = None) -> list[Tunnel]:
        if table is not None:
            self._find(table, "table")
        return list(self._tunnels(table))

    def _tunnels(self, table: str | None) -> list[EmbeddedTunnel]:
        """Return all tunnels, or those that follow a table, also together with others."""
        found = self._database.query(
            "SELECT t.object, t.id, t.name, t.kind, t.created, json_group_array(o.name ORDER BY s.seq) FROM tunnel t"
            " LEFT JOIN tunnel_table s ON s.tunnel = t.id JOIN object o ON o.id = ifnull(s.object, t.object)"
            " GROUP BY t.id HAVING ?1 IS NULL OR max(o.name = ?1) ORDER BY t.created, t.id",
            (table,),
        )
        return [
            EmbeddedTunnel(
                self._database,
                self._followed(object_id, json.loads(tables)),
                object_id,
                tunnel_id,
                name,
                TunnelKind(kind),
                created,
            )
            for object_id, tunnel_id, name, kind, created, tables in found
        ]

    def _followed(self, object_id: int, names: list[str]) -> Table:
        """Return the table of a tunnel, as the tunnel shows its rows."""
        tables = [EmbeddedTable(self._database, name) for name in names]
        if object_id != stored_tunnels.SEVERAL:
            return tables[0]
        return SeveralTables(
            ",".join(names),
            lambda: schema_of({table.name: table.schema for table in tables}),
            lambda: [table.describe().options for table in tables],
            lambda name, _: name in names,
            lambda others: ",".join(name for name in names if name not in others),
        )

    def drop_tunnel(self, id_or_name: str, table: str | None = None, *, missing_ok: bool = False) -> None:
        with self._database.write() as connection:
            try:
                tunnel = self.tunnel(id_or_name, table)
            except NotFoundError:
                if missing_ok:
                    return
                raise
            stored_tunnels.drop(connection, tunnel.id)

    # -- queues -------------------------------------------------------------------------------------

    def create_queue(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        *,
        partitions: int = 1,
        exist_ok: bool = False,
        **options: Any,
    ) -> Queue:
        catalog.check_name(name, "queue")
        schema = QueueSchema.of(columns)
        settings = changed_options(QueueOptions(), options)
        with self._database.write() as connection:
            taken = catalog.is_taken(connection, name, "queue", exist_ok=exist_ok)
            if not taken:
                stored_queues.create(connection, name, schema, settings, partitions)
        queue = EmbeddedQueue(self._database, name)
        if taken and queue.schema != schema:
            raise SchemaError(
                f"queue {name!r} exists with other columns",
                received=_shown(schema),
                valid=_shown(queue.schema),
            )
        return queue

    def queue(self, name: str) -> Queue:
        self._find(name, "queue")
        return EmbeddedQueue(self._database, name)

    def queues(self) -> list[str]:
        return self._names("queue")

    def drop_queue(self, name: str, *, missing_ok: bool = False) -> None:
        with self._database.write() as connection:
            queue_id = catalog.find_to_drop(connection, name, "queue", missing_ok=missing_ok)
            if queue_id is not None:
                stored_queues.drop(connection, queue_id)

    # -- consumers ----------------------------------------------------------------------------------

    def create_consumer(self, name: str, *, exist_ok: bool = False) -> Consumer:
        self._create_plain_object(name, "consumer", exist_ok)
        return EmbeddedConsumer(self._database, name)

    def consumer(self, name: str) -> Consumer:
        self._find(name, "consumer")
        return EmbeddedConsumer(self._database, name)

    def consumers(self) -> list[str]:
        return self._names("consumer")

    def drop_consumer(self, name: str, *, missing_ok: bool = False) -> None:
        self._drop_plain_object(name, "consumer", missing_ok, ("registration", "consumer_offset"))

    def register_consumer(self, queue: str, consumer: str, *, vital: bool = False) -> Registration:
        with self._database.write() as connection:
            return consumers.register(connection, queue, consumer, vital=vital)

    def unregister_consumer(self, queue: str, consumer: str) -> None:
        with self._database.write() as connection:
            consumers.unregister(connection, queue, consumer)

    def registrations(self, queue: str | None = None, consumer: str | None = None) -> list[Registration]:
        with self._database.read() as connection:
            return consumers.registrations(connection, queue=queue, consumer=consumer)

    # -- producers ----------------------------------------------------------------------------------

    def create_producer(self, name: str, *, exist_ok: bool = False) -> Producer:
        self._create_plain_object(name, "producer", exist_ok)
        return EmbeddedProducer(self._database, name)

    def producer(self, name: str) -> Producer:
        self._find(name, "producer")
        return EmbeddedProducer(self._database, name)

    def producers(self) -> list[str]:
        return self._names("producer")

    def drop_producer(self, name: str, *, missing_ok: bool = False) -> None:
        self._drop_plain_object(name, "producer", missing_ok, ("producer_session",))

    # -- files, backups, publication, waiting ------------------------------------------------------------------

    def files(self) -> Files:
        return EmbeddedFiles(self._database)

    def diagnose(self, table: str | None = None) -> list[Finding]:
        return diagnose(self._database) if table is None else super().diagnose(table)

    def disk(self) -> Disk:
        usage = shutil.disk_usage(self._database.directory)
        return Disk(usage.free, usage.total)

    def check(self, *, repair: bool = False) -> list[Finding]:
        return check_store(self._database, repair=flag(repair, "repair"))

    def back_up(self, directory: str | os.PathLike[str], *, progress: Progress | None = None) -> Backup:
        return backup.back_up(self._database, Path(directory), progress)

    def publisher(self, job: str, sink: str = "") -> Publisher:
        return EmbeddedPublisher(self._database, job, sink)

    def retry_bad_rows(self, table: str) -> RetriedRows:
        self._check_has_bad_rows(table)
        written, bad = (EmbeddedTable(self._database, name) for name in (table, table_name(table)))
        with self._database.write() as connection:
            retried = retry(connection, written, bad, *stamp(connection))
        failpoints.reach("published")
        return retried

    def wait_for_change(self, timeout: float) -> bool:
        """See `headrace.ports.Store.wait_for_change`; commits of this thread do not count.

        The first call of a thread returns immediately.
        """
        return self._database.wait_for_change(timeout, self._seen)

    def close(self) -> None:
        self._database.close()
        self._seen.__dict__.clear()

    # -- names --------------------------------------------------------------------------------------

    def _names(self, kind: ObjectKind) -> list[str]:
        with self._database.read() as connection:
            return catalog.names(connection, kind)

    def _find(self, name: str, kind: ObjectKind) -> int:
        with self._database.read() as connection:
            return catalog.find(connection, name, kind)

    def _create_plain_object(self, name: str, kind: ObjectKind, exist_ok: bool) -> None:
        """Create a consumer or producer, which has no SQLite tables of its own."""
        catalog.check_name(name, kind)
        with self._database.write() as connection:
            if not catalog.is_taken(connection, name, kind, exist_ok=exist_ok):
                catalog.create(connection, name, kind)

    def _drop_plain_object(self, name: str, kind: ObjectKind, missing_ok: bool, tables: tuple[str, ...]) -> None:
        """Drop a consumer or producer, and the rows that refer to it in these SQLite tables."""
        with self._database.write() as connection:
            object_id = catalog.find_to_drop(connection, name, kind, missing_ok=missing_ok)
            if object_id is not None:
                for table in tables:
                    connection.execute(f"DELETE FROM {table} WHERE {kind} = ?", (object_id,))
                catalog.drop(connection, object_id)


def _shown(schema: TableSchema | QueueSchema) -> str:
    columns = ", ".join(
        f"{column.name} {column.type}{'' if column.nullable else ' not null'}" for column in schema.columns
    )
    return f"{columns}; key {', '.join(schema.primary_key)}" if isinstance(schema, TableSchema) else columns
