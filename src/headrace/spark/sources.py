"""The data source formats `headrace` and `tablestore`: options in, readers and writers out (`yt`: see yt_source).

Spark pickles these objects to its workers and makes new ones as it likes, so they hold options and nothing
else; parameter names (`schema`, `overwrite`) are part of Spark's interface.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.datasource import DataSourceWriter as BatchWriter

from headrace.cached import cached_property
from headrace.errors import OptionError, SchemaError, UnsupportedError
from headrace.spark.option_checks import checked_by_spark
from headrace.spark.options import (
    HEADRACE_OPTIONS,
    TABLESTORE_OPTIONS,
    Location,
    Settings,
    find_queue,
    locate,
    with_default_store,
)
from headrace.tables.changes import RowChange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.feeds.queue_columns import AddressColumns, QueueShape
    from headrace.ports import Consumer, Queue, Store, Table, Tunnel
    from headrace.tables.change_columns import Shape
    from headrace.tables.conditions import KeyRange


class _StoreDataSource(DataSource):
    """What the formats share: tables, tunnels, and sinks. What they differ in is the names of options and columns."""

    settings: Settings

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(with_default_store(self.name(), checked_by_spark(self.name(), options)))
        self.settings = self.make_settings(self.options).check()

    @classmethod
    @abstractmethod
    def make_settings(cls, options: Mapping[str, str]) -> Settings: ...

    @abstractmethod
    def tunnel_name(self) -> str:
        """Return the tunnel's name or id, or raise `OptionError`."""

    @abstractmethod
    def row_change(self) -> RowChange: ...

    @abstractmethod
    def table_columns(self, table: Table) -> pa.Schema:
        """Return the columns of a batch read without a schema of the user's."""

    @abstractmethod
    def shape(self, table: Table, wanted: StructType | None) -> Shape:
        """Return the rows of a tunnel's stream, reduced to the wanted columns."""

    @abstractmethod
    def splits(self, table: Table) -> list[KeyRange]:
        """Return the key ranges that the tasks of a batch read of a table have."""

    @abstractmethod
    def names_tunnel(self) -> bool: ...

    def __getstate__(self) -> dict[str, Any]:
        # The cached location needs no trip; nothing here holds a connection.
        return {"options": dict(self.options)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).__init__(self, state["options"])

    @cached_property
    def location(self) -> Location:
        return locate(self.name(), self.options)

    def open_store(self) -> Store:
        return self.location.open_store()

    @abstractmethod
    def open_table(self, store: Store) -> Table:
        """Return the table that the options name, or raise `NotFoundError`."""

    def open_tunnel(self, store: Store) -> Tunnel:
        return store.tunnel(self.tunnel_name(), self.location.table, self.location.columns)

    def open_sink(self, store: Store) -> Table | Queue:
        """Return what the format writes to.

        Raises:
            NotFoundError: there is neither a table nor a queue of that name.
        """
        return self.location.open(store)

    def key_columns(self) -> tuple[str, ...] | None:
        """Return the columns whose values choose the partition of a sink queue; None if the store chooses."""
        return None

    def schema(self) -> StructType:
        # Spark asks the same for streams and batches; a tunnel tells that a stream is meant.
        from pyspark.sql.pandas.types import from_arrow_schema

        with self.open_store() as store:
            if self.names_tunnel():
                return from_arrow_schema(self.shape(self.open_tunnel(store).table, None).schema)
            return from_arrow_schema(self.table_columns(self.open_table(store)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from headrace.spark.stream_reader import TunnelStreamReader

        return TunnelStreamReader(self, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.batch_reader import FilteringTableReader, TableReader

        return FilteringTableReader(self, schema) if self.settings.get("pushDownFilters") else TableReader(self, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from headrace.spark.native_sinks import BatchSink

        return BatchSink(self, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from headrace.spark.native_sinks import StreamSink

        if overwrite:
            raise UnsupportedError(
                "Spark cannot write in complete mode to a Python sink",
                remedy='use headrace.write_stream(df, …, mode="complete")',
            )
        return StreamSink(self, schema)


class QueueDataSource(_StoreDataSource):
    """A format that reads queues as well."""

    @abstractmethod
    def queue_names(self) -> tuple[str, ...]:
        """Return the names that the options give as those of queues."""

    @abstractmethod
    def consumer_name(self) -> str | None: ...

    @abstractmethod
    def address_columns(self) -> AddressColumns:
        """Return the columns that stand beside those of a queue."""

    def opaque_composites(self) -> bool:
        """Tell whether composite columns are given as binary ones."""
        return False

    def key_columns(self) -> tuple[str, ...] | None:
        columns: tuple[str, ...] | None = self.settings.get("keyColumns")
        return columns

    def open_table(self, store: Store) -> Table:
        return self.location.open_table(store)

    def open_queues(self, store: Store) -> list[Queue]:
        """Return the queues that are to be read; none if a table or a tunnel is meant."""
        names, name = self.queue_names(), self.location.table
        if not names and name is not None and not self.names_tunnel():
            # Only queues have consumers.
            queue = store.queue(name) if self.consumer_name() is not None else find_queue(store, name)
            return [] if queue is None else [queue]
        return [store.queue(name) for name in names]

    def open_consumer(self, store: Store) -> Consumer | None:
        name = self.consumer_name()
        return None if name is None else store.consumer(name)

    def queue_shape(self, queues: list[Queue], wanted: StructType | None) -> QueueShape:
        """Return the rows of queues, reduced to the wanted columns."""
        from pyspark.sql.pandas.types import to_arrow_schema

        from headrace.feeds.queue_columns import QueueShape, common_schema

        return QueueShape(
            common_schema(queues).arrow,
            self.address_columns(),
            opaque=self.opaque_composites(),
            wanted=None if wanted is None else to_arrow_schema(wanted, timezone="UTC"),
        )

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        with self.open_store() as store:
            queues = self.open_queues(store)
            return from_arrow_schema(self.queue_shape(queues, None).schema) if queues else super().schema()

    def reads_queues(self) -> bool:
        """Tell whether the options mean queues."""
        with self.open_store() as store:
            return bool(self.open_queues(store))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from headrace.spark.queue_reader import QueueStreamReader

        return QueueStreamReader(self, schema) if self.reads_queues() else super().streamReader(schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.queue_batch import FilteringQueueReader, QueueReader

        if not self.reads_queues():
            return super().reader(schema)
        return FilteringQueueReader(self, schema) if self.settings.get("pushDownFilters") else QueueReader(self, schema)


class HeadraceDataSource(QueueDataSource):
    """Format ``headrace``: tables, tunnels and queues of any store, in headrace's own words (docs/options.md)."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    @classmethod
    def make_settings(cls, options: Mapping[str, str]) -> Settings:
        return Settings(HEADRACE_OPTIONS, options)

    def names_tunnel(self) -> bool:
        return bool(self.settings.get("tunnel"))

    def reader(self, schema: StructType) -> DataSourceReader:
        if self.names_tunnel():
            raise OptionError(
                "a tunnel is read as a stream, and this is a batch read",
                remedy="use spark.readStream, or leave out option tunnel to read the table",
            )
        return super().reader(schema)

    def tunnel_name(self) -> str:
        return self.settings.need("tunnel", " for a stream")

    def queue_names(self) -> tuple[str, ...]:
        named, several = self.settings.get("queue"), self.settings.get("queues")
        return several or ((named,) if named else ())

    def consumer_name(self) -> str | None:
        name: str | None = self.settings.get("consumer")
        return name

    def address_columns(self) -> AddressColumns:
        from headrace.feeds.queue_columns import PARTITION, QUEUE_NAME, ROW_INDEX, AddressColumns

        address = {"_queue": QUEUE_NAME, "_partition": PARTITION, "_row_index": ROW_INDEX}
        path = self.settings.get("sourcePathColumn")
        return AddressColumns(
            {}, (address if self.settings.get("includeRowAddress") else {}) | ({path: QUEUE_NAME} if path else {})
        )

    def row_change(self) -> RowChange:
        change: RowChange = self.settings.get("rowChange")
        return change

    def table_columns(self, table: Table) -> pa.Schema:
        return nullable(table.schema.arrow)

    def shape(self, table: Table, wanted: StructType | None) -> Shape:
        from headrace.tables.change_columns import ChangeShape

        names = None if wanted is None else wanted.fieldNames()
        return ChangeShape(table.schema, names, pre_images=self.settings.get("preImages"))

    def splits(self, table: Table) -> list[KeyRange]:
        return splits(table, self.settings.get("splits"))


class TablestoreDataSource(_StoreDataSource):
    """Format ``tablestore``: the option names and columns of the vendor's connector (docs/tablestore.md)."""

    @classmethod
    def name(cls) -> str:
        return "tablestore"

    @classmethod
    def make_settings(cls, options: Mapping[str, str]) -> Settings:
        return Settings(TABLESTORE_OPTIONS, options)

    def open_table(self, store: Store) -> Table:
        return store.table(self.settings.need("table.name"), self.location.columns)

    def names_tunnel(self) -> bool:
        return bool(self.settings.get("tunnel.id"))

    def tunnel_name(self) -> str:
        return self.settings.need("tunnel.id", " for a stream")

    def row_change(self) -> RowChange:
        change: RowChange = self.settings.get("writer.row.change.type")
        return change

    def table_columns(self, table: Table) -> pa.Schema:
        from headrace.tables.change_columns import checked_catalog, parse_catalog

        if self.settings.get("search.index.name") or str(self.settings.get("compute.mode")).lower() == "search":
            raise UnsupportedError(
                "this store has no search index",
                remedy="leave out search.index.name and compute.mode=Search: filters are evaluated by the table scan",
            )
        if not self.settings.get("catalog"):
            return nullable(table.schema.arrow)
        return checked_catalog(parse_catalog(self.settings.need("catalog")), table.schema)

    def shape(self, table: Table, wanted: StructType | None) -> Shape:
        from headrace.tables.change_columns import TablestoreShape, checked_catalog, parse_catalog

        catalog = checked_catalog(parse_catalog(self.settings.need("catalog", " for a stream")), table.schema)
        shape = TablestoreShape(table.schema, catalog)
        if wanted is not None and wanted.fieldNames() != shape.schema.names:
            raise SchemaError(
                "a stream of format tablestore has the columns that option catalog makes",
                received=wanted.fieldNames(),
                valid=shape.schema.names,
                remedy="leave out .schema(…) and select columns instead",
            )
        return shape

    def splits(self, table: Table) -> list[KeyRange]:
        return splits(
            table, None, most=self.settings.get("max.split.count"), size=self.settings.get("split.size.mbs") << 20
        )


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with every field nullable, as Spark has the columns of a data source."""
    import pyarrow as pa

    return pa.schema([pa.field(field.name, field.type) for field in schema])


ROWS_PER_SPLIT = 500_000
BYTES_PER_SPLIT = 100 << 20
MOST_SPLITS = 1000


def splits(table: Table, count: int | None, *, most: int = MOST_SPLITS, size: int = BYTES_PER_SPLIT) -> list[KeyRange]:
    """Return the key ranges that the tasks of a batch read have.

    Args:
        count: how many they are to be; by the size of the table if None: by its rows, where the store tells how many
            it has, and otherwise by its bytes.
        most: at most so many, if the size decides.
        size: bytes of each.
    """
    if count is not None:
        return table.splits(count)
    rows = table.describe().rows
    if rows is None:
        return table.splits(most, size=size)
    return table.splits(min(most, 1 + rows // ROWS_PER_SPLIT))
