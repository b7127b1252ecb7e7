"""The embedded store: one directory, no server, safe for many processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import NotFoundError, SchemaError
from headrace.ports import Capabilities, Files, Publisher, Table, Tunnel
from headrace.ports.arguments import flag, text
from headrace.stores.embedded import catalog
from headrace.stores.embedded.connection import Database
from headrace.stores.embedded.files import EmbeddedFiles
from headrace.stores.embedded.publication.publisher import EmbeddedPublisher
from headrace.stores.embedded.queues.queue_store import QueueStore
from headrace.stores.embedded.tables import stored_tables
from headrace.stores.embedded.tables.table import EmbeddedTable
from headrace.stores.embedded.tunnels import stored_tunnels
from headrace.stores.embedded.tunnels.tunnel import EmbeddedTunnel
from headrace.tables.conditions import OPERATORS
from headrace.tables.options import TableOptions
from headrace.tables.schema import TableSchema
from headrace.tunnels.validation import Named, find
from headrace.tunnels.values import Start, TunnelKind


class EmbeddedStore(QueueStore):
    """Tables, queues, tunnels and publications in one SQLite database.

    Args:
        directory: where the store lives.
        create: make the store if it is not there.
        synchronous: ``full``, ``normal`` or ``off``, see `headrace.stores.embedded.connection.Database`.
    """

    capabilities = Capabilities(
        transactions=True,
        whole_rows=True,
        pre_images=True,
        add_columns=True,
        split_partitions=True,
        queues=True,
        predicates=frozenset(OPERATORS),
        files=True,
    )

    def __init__(self, directory: str | os.PathLike[str], *, create: bool = False, synchronous: str = "full") -> None:
        create, synchronous = flag(create, "create"), text(synchronous, "option synchronous")
        self._database = Database(Path(directory), create=create, synchronous=synchronous)
        self._seen = threading.local()
        self.url = self._database.directory.as_uri()
        self.id = self._database.store_id()

    def __repr__(self) -> str:
        return f"EmbeddedStore({str(self._database.directory)!r})"

    @property
    def database(self) -> Database:
        """The database beneath, for endpoints that keep what only they know of in tables of their own."""
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
                f"table {name!r} is there with other columns or another key",
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
        table: str,
        name: str,
        kind: str | TunnelKind = TunnelKind.BASE_AND_STREAM,
        *,
        start: str | Start = "latest",
        base_channels: int | None = None,
    ) -> Tunnel:
        begin = start if isinstance(start, Start) else Start.parse(start)
        tunnel_id = stored_tunnels.create(
            self._database, self.table(table), name, TunnelKind.parse(kind), begin, base_channels
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
        found = self._database.query(
            "SELECT o.name, o.id, t.id, t.name, t.kind, t.created FROM tunnel t JOIN object o ON o.id = t.object"
            " WHERE ?1 IS NULL OR o.name = ?1 ORDER BY t.created, t.id",
            (table,),
        )
        return [
            EmbeddedTunnel(
                self._database,
                EmbeddedTable(self._database, table_name),
                object_id,
                tunnel_id,
                name,
                TunnelKind(kind),
                created,
            )
            for table_name, object_id, tunnel_id, name, kind, created in found
        ]

    def drop_tunnel(self, id_or_name: str, table: str | None = None, *, missing_ok: bool = False) -> None:
        with self._database.write() as connection:
            try:
                tunnel = self.tunnel(id_or_name, table)
            except NotFoundError:
                if missing_ok:
                    return
                raise
            stored_tunnels.drop(connection, tunnel.id)

    # -- the rest -----------------------------------------------------------------------------------

    def files(self) -> Files:
        return EmbeddedFiles(self._database)

    def publisher(self, job: str, sink: str = "") -> Publisher:
        return EmbeddedPublisher(self._database, job, sink)

    def wait_for_change(self, timeout: float) -> bool:
        """See `headrace.ports.Store.wait_for_change`; what this thread itself commits does not count.

        The first call of a thread returns at once.
        """
        seen: int | None = getattr(self._seen, "version", None)
        self._seen.version = self._database.wait_for_change(timeout, seen)
        return bool(self._seen.version != seen)

    def close(self) -> None:
        self._database.close()
        self._seen.__dict__.clear()


def _shown(schema: TableSchema) -> str:
    columns = ", ".join(
        f"{column.name} {column.type}{'' if column.nullable else ' not null'}" for column in schema.columns
    )
    return f"{columns}; key {', '.join(schema.primary_key)}"
