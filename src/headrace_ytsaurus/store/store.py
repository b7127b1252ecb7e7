"""The store of a YTsaurus cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import NotFoundError, OptionError, UnsupportedError
from headrace.model.existing import already_exists, other_columns
from headrace.model.queues.columns import TIMESTAMP, QueueSchema
from headrace.model.queues.values import QueueOptions
from headrace.model.tables.column_limits import check_columns, check_key_types
from headrace.model.tables.conditions import OPERATORS
from headrace.model.tables.schema import TableSchema
from headrace.model.types import type_name
from headrace.ports import Capabilities, Files, Publisher, Registration, Store
from headrace.ports.files import normal_path
from headrace.support.cached import cached_property
from headrace_ytsaurus.store import catalog
from headrace_ytsaurus.store.catalog import CONSUMER, PRODUCER, QUEUE, TABLE, TIMESTAMP_TYPE, Names
from headrace_ytsaurus.store.connection import Address, YtConnection
from headrace_ytsaurus.store.failures import YtExistsError, YtNotFoundError, translated
from headrace_ytsaurus.store.files import YtFiles
from headrace_ytsaurus.store.publication.progress import keeper_of
from headrace_ytsaurus.store.publication.publisher import YtPublisher
from headrace_ytsaurus.store.queues import registrations
from headrace_ytsaurus.store.queues.consumers import YtConsumer
from headrace_ytsaurus.store.queues.options import config_of
from headrace_ytsaurus.store.queues.producers import YtProducer
from headrace_ytsaurus.store.queues.queue import YtQueue
from headrace_ytsaurus.store.schemas import KEY_TYPES, queue_schema, table_schema
from headrace_ytsaurus.store.tables.table import YtTable, check_options

_MOMENT = 0.2
_MOST_PARTITIONS = 1000
# A row of a dynamic table has at most 1,024 values, including those that headrace adds.
_MAX_COLUMNS = 1000


class YtStore(Store):
    """Queues, consumers, producers, sorted tables and files of a YTsaurus cluster.

    It can be pickled, with the token. No message contains the token.

    Args:
        address: the cluster.
        directory: the path of Cypress for names that are not paths; headrace's own data is below it.
        url: the URL of the store, with the directory.
    """

    capabilities = Capabilities(
        backup_tool="the command create_table_backup of YTsaurus, which copies dynamic tables at one timestamp",
        transactions=True,
        whole_rows=True,
        pre_images=False,
        add_columns=False,
        queues=True,
        predicates=frozenset(OPERATORS),
        column_types=(
            *("boolean", "byte", "short", "int", "long", "float", "double", "string", "binary"),
            *("date", "timestamp", "timestamp_ntz", "decimal(10,2)", "decimal(12,2)"),
        ),
        key_types=KEY_TYPES,
        tells_rows=False,
        rewinds=False,
        trims=False,
        files=True,
        tunnels=False,
        row_times=False,
        max_columns=_MAX_COLUMNS,
        rows_at_once=100_000,
    )

    def __init__(self, address: Address, directory: str, url: str) -> None:
        self.url = url
        self._connection = YtConnection(address)
        self._names = Names(directory)

    def __repr__(self) -> str:
        return f"YtStore({self.url!r})"

    @cached_property
    def id(self) -> str:
        """The name of the cluster and the directory; it does not depend on the proxy."""
        return f"yt:{registrations.cluster_name(self._connection)}:{self._names.directory}"

    def instance(self) -> str:
        """See `headrace.ports.Store.instance`. All local clusters of `headrace serve` have the same name."""
        return f"{self.id} on {self._connection.attribute('//sys', 'id')}"

    # -- tables -------------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        return catalog.of_kind(self._connection, self._names, TABLE)

    def create_table(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        primary_key: str | Sequence[str],
        *,
        exist_ok: bool = False,
        **options: Any,
    ) -> YtTable:
        schema = TableSchema.of(columns, primary_key)
        check_columns(schema, self.capabilities.max_columns)
        check_key_types(schema, "YTsaurus", self.capabilities.key_types)
        check_options(options)
        if not schema.attributes:
            raise UnsupportedError(
                "a table of YTsaurus needs a column besides its key", received=schema.names, remedy="add a column"
            )
        value = table_schema(schema, binary_strings=self._connection.address.binary_strings)
        attributes = {"dynamic": True, "schema": value}
        if not self._create(name, TABLE, "table", attributes, exist_ok=exist_ok):
            table = self.table(name)
            _check_same(name, table.schema, schema)
            return table
        return self.table(name)

    def table(self, name: str, columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None) -> YtTable:
        return YtTable(self._connection, self._names, name)

    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        self._drop(name, TABLE, missing_ok=missing_ok)

    # -- queues -------------------------------------------------------------------------------------------

    def create_queue(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        *,
        partitions: int = 1,
        exist_ok: bool = False,
        **options: Any,
    ) -> YtQueue:
        schema = QueueSchema.of(columns)
        check_columns(schema, self.capabilities.max_columns)
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= _MOST_PARTITIONS:
            raise OptionError(f"a queue has 1 to {_MOST_PARTITIONS} partitions", received=repr(partitions))
        _, config = config_of(QueueOptions(), options)
        value = queue_schema(schema, binary_strings=self._connection.address.binary_strings)
        attributes: dict[str, Any] = {"dynamic": True, "schema": value, "tablet_count": partitions}
        if options:
            attributes["auto_trim_config"] = config
        if TIMESTAMP in schema.names:
            attributes[TIMESTAMP_TYPE] = type_name(schema.column(TIMESTAMP).type)
        if not self._create(name, QUEUE, "table", attributes, exist_ok=exist_ok):
            queue = self.queue(name)
            _check_same(name, queue.schema, schema)
            return queue
        return self.queue(name)

    def queue(self, name: str) -> YtQueue:
        return YtQueue(self._connection, self._names, name)

    def queues(self) -> list[str]:
        return catalog.of_kind(self._connection, self._names, QUEUE)

    def drop_queue(self, name: str, *, missing_ok: bool = False) -> None:
        """Remove a queue with its registrations, and its offsets and sessions in registered consumers and producers."""
        try:
            path = catalog.find(self._connection, self._names, name, QUEUE).path
        except NotFoundError:
            if missing_ok:
                return
            raise
        for consumer, _ in registrations.of_queue(self._connection, path):
            self._unregister(path, consumer)
            registrations.forget_queue(self._connection, consumer, path)
        for producer in self.producers():
            registrations.forget_queue(self._connection, self._names.path(producer), path)
        self._drop(name, QUEUE, missing_ok=missing_ok)

    # -- consumers and producers ----------------------------------------------------------------------------

    def create_consumer(self, name: str, *, exist_ok: bool = False) -> YtConsumer:
        self._create(name, CONSUMER, "queue_consumer", {}, exist_ok=exist_ok)
        return self.consumer(name)

    def consumer(self, name: str) -> YtConsumer:
        return YtConsumer(self._connection, self._names, name)

    def consumers(self) -> list[str]:
        return catalog.of_kind(self._connection, self._names, CONSUMER)

    def drop_consumer(self, name: str, *, missing_ok: bool = False) -> None:
        try:
            path = catalog.find(self._connection, self._names, name, CONSUMER).path
        except NotFoundError:
            if missing_ok:
                return
            raise
        for queue, _, _ in registrations.listed(self._connection, None, path):
            self._unregister(queue, path)
        self._drop(name, CONSUMER, missing_ok=missing_ok)

    def register_consumer(self, queue: str, consumer: str, *, vital: bool = False) -> Registration:
        queue_path = catalog.find(self._connection, self._names, queue, QUEUE).path
        consumer_path = catalog.find(self._connection, self._names, consumer, CONSUMER).path
        if not vital:
            self._unregister_keeper(queue_path, consumer_path)
        registrations.register(self._connection, queue_path, consumer_path, vital=vital)
        return Registration(queue, consumer, vital)

    def unregister_consumer(self, queue: str, consumer: str) -> None:
        queue_path = catalog.find(self._connection, self._names, queue, QUEUE).path
        consumer_path = catalog.find(self._connection, self._names, consumer, CONSUMER).path
        self._unregister(queue_path, consumer_path)

    def _unregister(self, queue: str, consumer: str) -> None:
        self._unregister_keeper(queue, consumer)
        with translated("unregister a consumer"):
            self._connection.client.unregister_queue_consumer(queue, consumer)

    def _unregister_keeper(self, queue: str, consumer: str) -> None:
        """Unregister the keeper, which keeps the rows of a consumer's batches."""
        # Also if it is not listed: a keeper that is not listed yet would keep rows forever.
        with translated("unregister a keeper"):
            self._connection.client.unregister_queue_consumer(queue, keeper_of(self._names, consumer))

    def registrations(self, queue: str | None = None, consumer: str | None = None) -> list[Registration]:
        queue_path = None if queue is None else catalog.find(self._connection, self._names, queue, QUEUE).path
        consumer_path = (
            None if consumer is None else catalog.find(self._connection, self._names, consumer, CONSUMER).path
        )
        asked: list[tuple[str | None, str | None]] = [(queue_path, consumer_path)]
        if queue is None and consumer is None:
            # Registrations of other directories do not belong to the store.
            asked = [(self._names.path(name), None) for name in self.queues()]
            asked += [(None, self._names.path(name)) for name in self.consumers()]
        listed = {one for pair in asked for one in registrations.listed(self._connection, *pair)}
        found = [
            Registration(self._names.name(there), self._names.name(reader), vital)
            for there, reader, vital in listed
            if not self._names.is_state(reader)
        ]
        return sorted(found, key=lambda one: (one.queue, one.consumer))

    def create_producer(self, name: str, *, exist_ok: bool = False) -> YtProducer:
        self._create(name, PRODUCER, "queue_producer", {}, exist_ok=exist_ok)
        return self.producer(name)

    def producer(self, name: str) -> YtProducer:
        return YtProducer(self._connection, self._names, name)

    def producers(self) -> list[str]:
        return catalog.of_kind(self._connection, self._names, PRODUCER)

    def drop_producer(self, name: str, *, missing_ok: bool = False) -> None:
        self._drop(name, PRODUCER, missing_ok=missing_ok)

    # -- files, publication, waiting ------------------------------------------------------------------------

    def files(self) -> Files:
        return YtFiles(self._connection, self._names)

    def checkpoint_directory(self) -> str:
        # A user cannot create nodes at the root of a cluster.
        return normal_path(f"{self._names.state}/streams")

    def publisher(self, job: str, sink: str = "") -> Publisher:
        return YtPublisher(self._connection, self._names, job, sink)

    def wait_for_change(self, timeout: float) -> bool:
        """Wait a moment and return True: the cluster does not report commits."""
        time.sleep(max(0.0, min(timeout, _MOMENT)))
        return True

    def close(self) -> None:
        """Keep the connections of threads open: a new connection needs several requests."""

    # -- making and dropping ----------------------------------------------------------------------------------

    def _create(self, name: str, kind: str, node_type: str, attributes: Mapping[str, Any], *, exist_ok: bool) -> bool:
        """Create and mount a node; return whether it was created.

        Raises:
            AlreadyExistsError: the name is taken by another kind, or ``exist_ok`` is not set.
        """
        path = self._names.path(name)
        client = self._connection.client
        try:
            with translated(f"create {kind} {name!r}"):
                client.create(node_type, path, recursive=True, attributes=dict(attributes))
        except YtExistsError:
            catalog.find_other(self._connection, self._names, name, kind)
            if not exist_ok:
                raise already_exists(name, self.url, f"a {kind}") from None
            return False
        with translated(f"mount {path}"):
            client.mount_table(path, sync=True)
        return True

    def _drop(self, name: str, kind: str, *, missing_ok: bool) -> None:
        try:
            path = catalog.find(self._connection, self._names, name, kind).path
            with translated(f"drop {kind} {name!r}"):
                self._connection.client.remove(path)
        except (NotFoundError, YtNotFoundError):
            if not missing_ok:
                raise


def _check_same(name: str, there: TableSchema | QueueSchema, wanted: TableSchema | QueueSchema) -> None:
    """Raise `SchemaError` unless a table or queue has these columns, in any order, and this key."""
    if _described(there) != _described(wanted):
        raise other_columns(repr(name), wanted, there)


def _described(schema: TableSchema | QueueSchema) -> tuple[Any, ...]:
    columns = {column.name: (type_name(column.type), column.nullable) for column in schema.columns}
    return columns, schema.primary_key
