"""The store of a Tablestore instance: its tables and tunnels, and publications through the meta table."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import AlreadyExistsError, NotFoundError
from headrace.model.existing import already_exists, other_columns
from headrace.model.own_names import of_users
from headrace.model.tables.column_limits import check_columns, check_key_types
from headrace.model.tables.conditions import OPERATORS
from headrace.model.tables.schema import TableSchema, parse_columns
from headrace.model.tunnels.validation import Named, check_new, find, microseconds
from headrace.model.tunnels.values import Start, StartKind, TunnelKind
from headrace.model.types import COMMON_KEY_TYPES
from headrace.options.names import check_names
from headrace.ports import Capabilities, Publisher, Store, Table, Tunnel
from headrace_tablestore.store.connection import TablestoreConnection
from headrace_tablestore.store.meta_table import DEFAULT_NAME, MetaTable
from headrace_tablestore.store.publication.publisher import TablestorePublisher
from headrace_tablestore.store.tables import stored_tables
from headrace_tablestore.store.tables.table import TablestoreTable
from headrace_tablestore.store.tables.write_options import WriteOptions
from headrace_tablestore.store.tables.writing import Writer
from headrace_tablestore.store.tunnels.batches import TablestoreBatches
from headrace_tablestore.store.tunnels.service import TunnelService
from headrace_tablestore.store.tunnels.tunnel import DEFAULT_CLIENT, TablestoreTunnel
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire import tunnel_pb2 as tunnel_pb
from headrace_tablestore.wire.limits import MAX_DEFINED_COLUMNS
from headrace_tablestore.wire.signatures import Credentials

_MOMENT = 0.5


class TablestoreStore(Store):
    """Tables, tunnels and publications in an instance of Tablestore.

    It can be pickled, with the access key. No message contains the secret of the key.

    Args:
        endpoint: ``http(s)://host[:port]``.
        instance: the name of the instance.
        credentials: the access key.
        region: signs requests by version 4, for this region.
        meta_table: the table for batches and publications; the first write creates it.
        client: the client name in reads of tunnels without a connected client.
        write_options: options of writes.
    """

    capabilities = Capabilities(
        backup_tool="the backup of Tablestore in Cloud Backup (Alibaba Cloud)",
        transactions=False,
        whole_rows=False,
        pre_images=False,
        add_columns=False,
        queues=False,
        predicates=frozenset(OPERATORS),
        column_types=("boolean", "byte", "short", "int", "long", "float", "double", "string", "binary"),
        key_types=(*COMMON_KEY_TYPES, "byte", "short", "int"),
        not_null=False,
        tells_rows=False,
        rewinds=False,
        trims=False,
    )

    def __init__(
        self,
        endpoint: str,
        instance: str,
        credentials: Credentials,
        *,
        region: str | None = None,
        meta_table: str = DEFAULT_NAME,
        client: str = DEFAULT_CLIENT,
        write_options: WriteOptions | None = None,
    ) -> None:
        self.connection = TablestoreConnection(endpoint, instance, credentials, region=region)
        self.writer = Writer(self.connection, write_options or WriteOptions())
        self.meta = MetaTable(self.connection, meta_table)
        self._service = TunnelService(self.connection)
        self._client = client
        self.url = f"tablestore+{self.connection.endpoint}/{instance}"
        self.id = self.url

    def __repr__(self) -> str:
        return f"TablestoreStore({self.url!r})"

    # -- tables -------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        """Return the sorted names of all tables except the meta table."""
        names = self.connection.call("ListTable", pb.ListTableRequest(), pb.ListTableResponse).table_names
        return sorted(name for name in names if name != self.meta.name)

    def create_table(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        primary_key: str | Sequence[str],
        *,
        exist_ok: bool = False,
        **options: Any,
    ) -> Table:
        schema = TableSchema.of(columns, primary_key)
        check_columns(schema, self.capabilities.max_columns)
        check_key_types(schema, "Tablestore", self.capabilities.key_types)
        schema = stored_tables.with_long_keys(schema)
        try:
            stored_tables.create(self.connection, name, schema, options)
        except AlreadyExistsError:
            if not exist_ok:
                raise already_exists(name, self.url) from None
            self._check_same(name, schema)
        return self.table(name, schema.arrow)

    def _check_same(self, name: str, schema: TableSchema) -> None:
        """Raise `SchemaError` unless a table is equal to a new table with these columns."""
        there = self.table(name).schema
        wanted = schema.attributes[:MAX_DEFINED_COLUMNS]
        found = {column.name: column.type for column in there.columns}
        same = {column.name: stored_tables.wire_type(column.type) for column in wanted} | {
            name: schema.column(name).type for name in schema.primary_key
        }
        if found != same or there.primary_key != schema.primary_key:
            raise other_columns(f"table {name!r}", schema, there)

    def table(self, name: str, columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None) -> TablestoreTable:
        return TablestoreTable(self.connection, self.writer, name, parse_columns(columns or {}))

    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        try:
            stored_tables.described(self.connection, name)
            for tunnel in self.tunnels(name):
                self.drop_tunnel(tunnel.id, name, missing_ok=True)
            self.connection.call("DeleteTable", pb.DeleteTableRequest(table_name=name), pb.DeleteTableResponse)
        except NotFoundError:
            if not missing_ok:
                raise NotFoundError("no such table", received=repr(name), valid=of_users(self.tables())) from None

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
        """Subscribe to a table; see `headrace.ports.Store.create_tunnel`. The service divides base data itself."""
        wanted = TunnelKind.parse(kind)
        if not isinstance(table, str):
            return self.create_tunnel_of_tables(table, name, wanted)
        check_names("a tunnel of this store", options, self.capabilities.tunnel_options)
        begin = start if isinstance(start, Start) else Start.parse(start)
        handle = self.table(table)
        check_new(name, wanted, begin, base_channels)
        config = None
        if begin.timestamp is not None:
            config = tunnel_pb.StreamTunnelConfig(start_offset=microseconds(begin.timestamp) * 1000)
        elif wanted is TunnelKind.STREAM:
            earliest = begin.kind is StartKind.EARLIEST
            config = tunnel_pb.StreamTunnelConfig(flag=tunnel_pb.EARLIEST if earliest else tunnel_pb.LATEST)
        tunnel_id = self._service.create(table, name, wanted, start=config)
        return self._tunnel(self._find(tunnel_id, table), handle)

    def tunnel(
        self,
        id_or_name: str,
        table: str | None = None,
        columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None,
    ) -> Tunnel:
        info = self._find(id_or_name, table)
        return self._tunnel(info, self.table(info.table_name, columns))

    def tunnels(self, table: str | None = None) -> list[Tunnel]:
        handles = {} if table is None else {table: self.table(table)}
        infos = self._listed(table)
        for name in sorted({info.table_name for info in infos} - handles.keys()):
            # A table may be dropped, with its tunnels, while others are listed.
            with contextlib.suppress(NotFoundError):
                handles[name] = self.table(name)
        return [self._tunnel(info, handles[info.table_name]) for info in infos if info.table_name in handles]

    def drop_tunnel(self, id_or_name: str, table: str | None = None, *, missing_ok: bool = False) -> None:
        try:
            info = self._find(id_or_name, table)
            self._service.delete(info.table_name, info.tunnel_name)
            TablestoreBatches(self.meta, info.tunnel_id).forget_all()
        except NotFoundError:
            if not missing_ok:
                raise

    def _listed(self, table: str | None) -> list[tunnel_pb.TunnelInfo]:
        """Return the tunnels of one or all tables, the oldest first."""
        infos: Sequence[tunnel_pb.TunnelInfo] = self._service.tunnels(table)
        return sorted(infos, key=lambda info: (info.create_time, info.tunnel_id))

    def _find(self, id_or_name: str, table: str | None) -> tunnel_pb.TunnelInfo:
        tunnels = self._listed(table)
        return find(tunnels, lambda info: Named(info.tunnel_id, info.tunnel_name, info.table_name), id_or_name, table)

    def _tunnel(self, info: tunnel_pb.TunnelInfo, table: Table) -> Tunnel:
        return TablestoreTunnel(self._service, self.meta, table, info, self._client)

    # -- the rest -----------------------------------------------------------------------------------

    def publisher(self, job: str, sink: str = "") -> Publisher:
        return TablestorePublisher(self.connection, self.table, self.writer, self.meta, job, sink)

    def wait_for_change(self, timeout: float) -> bool:
        """Wait a moment and return True: the service does not report commits."""
        time.sleep(max(0.0, min(timeout, _MOMENT)))
        return True

    def close(self) -> None:
        self.connection.close()
