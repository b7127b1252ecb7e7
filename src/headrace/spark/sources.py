"""The data source formats `headrace` and `tablestore`: options in, readers and writers out.

Spark pickles these objects to its workers and makes new ones as it likes, so they hold options and nothing
else; parameter names (`schema`, `overwrite`) are part of Spark's interface.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, MutableMapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.datasource import DataSourceWriter as BatchWriter

from headrace.errors import OptionError, SchemaError, UnsupportedError
from headrace.model import RowChange
from headrace.spark.options import HEADRACE_OPTIONS, TABLESTORE_OPTIONS, Location, Settings, locate

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.feeds.shapes import Shape
    from headrace.ports import Store, Table, Tunnel


class _StoreDataSource(DataSource):
    """What both formats share: everything but the names of options and the columns of a stream."""

    settings: Settings

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.settings = self.make_settings(dict(options))

    @classmethod
    @abstractmethod
    def make_settings(cls, options: Mapping[str, str]) -> Settings: ...

    @abstractmethod
    def tunnel_name(self) -> str: ...

    @abstractmethod
    def row_change(self) -> RowChange: ...

    @abstractmethod
    def table_columns(self, table: Table) -> pa.Schema:
        """Return the columns of a batch read without a schema of the user's."""

    @abstractmethod
    def shape(self, table: Table, wanted: StructType | None) -> Shape:
        """Return the rows of a stream, reduced to the wanted columns."""

    @abstractmethod
    def splits(self, table: Table) -> int: ...

    def __getstate__(self) -> dict[str, Any]:
        # The cached location needs no trip; nothing here holds a connection.
        return {"options": dict(self.options)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).__init__(self, state["options"])

    @cached_property
    def location(self) -> Location:
        return locate(self.name(), self.options)

    def open_store(self) -> Store:
        from headrace.opening import open as open_store

        return open_store(self.location.store_url, **self.store_options())

    def store_options(self) -> dict[str, Any]:
        return {"synchronous": self.settings.get("synchronous")}

    def open_table(self, store: Store) -> Table:
        if self.location.table is None:
            raise OptionError("option table is missing", valid=store.tables(), remedy='name one, or load("name")')
        return store.table(self.location.table)

    def open_tunnel(self, store: Store) -> Tunnel:
        return store.tunnel(self.tunnel_name(), self.location.table)

    def schema(self) -> StructType:
        # Spark asks the same for streams and batches; a tunnel tells that a stream is meant.
        from pyspark.sql.pandas.types import from_arrow_schema

        with self.open_store() as store:
            if self.is_stream():
                return from_arrow_schema(self.shape(self.open_tunnel(store).table, None).schema)
            return from_arrow_schema(self.table_columns(self.open_table(store)))

    @abstractmethod
    def is_stream(self) -> bool: ...

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from headrace.spark.stream_reader import TunnelStreamReader

        return TunnelStreamReader(self, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.batch_reader import FilteringTableReader, TableReader

        return FilteringTableReader(self, schema) if self.settings.get("pushDownFilters") else TableReader(self, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from headrace.spark.writers import TableBatchWriter

        return TableBatchWriter(self, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from headrace.spark.writers import TableStreamWriter

        if overwrite:
            raise UnsupportedError(
                "Spark cannot write in complete mode to a Python sink",
                remedy='use headrace.write_stream(df, …, mode="complete")',
            )
        return TableStreamWriter(self, schema)


class HeadraceDataSource(_StoreDataSource):
    """Format ``headrace``: tables and tunnels of any store, in headrace's own words (docs/options.md)."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    @classmethod
    def make_settings(cls, options: Mapping[str, str]) -> Settings:
        return Settings(HEADRACE_OPTIONS, options)

    def is_stream(self) -> bool:
        return bool(self.settings.get("tunnel"))

    def tunnel_name(self) -> str:
        return self.settings.need("tunnel", " for a stream")

    def row_change(self) -> RowChange:
        change: RowChange = self.settings.get("rowChange")
        return change

    def table_columns(self, table: Table) -> pa.Schema:
        return nullable(table.schema.arrow)

    def shape(self, table: Table, wanted: StructType | None) -> Shape:
        from headrace.feeds.shapes import ChangeShape

        names = None if wanted is None else wanted.fieldNames()
        return ChangeShape(table.schema, names, pre_images=self.settings.get("preImages"))

    def splits(self, table: Table) -> int:
        count: int | None = self.settings.get("splits")
        return count or _default_splits(table)


class TablestoreDataSource(_StoreDataSource):
    """Format ``tablestore``: the option names and columns of the vendor's connector (docs/tablestore.md)."""

    @classmethod
    def name(cls) -> str:
        return "tablestore"

    @classmethod
    def make_settings(cls, options: Mapping[str, str]) -> Settings:
        return Settings(TABLESTORE_OPTIONS, options)

    def is_stream(self) -> bool:
        return bool(self.settings.get("tunnel.id"))

    def tunnel_name(self) -> str:
        return self.settings.need("tunnel.id", " for a stream")

    def row_change(self) -> RowChange:
        change: RowChange = self.settings.get("writer.row.change.type")
        return change

    def table_columns(self, table: Table) -> pa.Schema:
        from headrace.feeds.shapes import checked_catalog, parse_catalog

        if self.settings.get("search.index.name") or str(self.settings.get("compute.mode")).lower() == "search":
            raise UnsupportedError(
                "this store has no search index",
                remedy="leave out search.index.name and compute.mode=Search: filters are evaluated by the table scan",
            )
        if not self.settings.get("catalog"):
            return nullable(table.schema.arrow)
        return checked_catalog(parse_catalog(self.settings.need("catalog")), table.schema)

    def shape(self, table: Table, wanted: StructType | None) -> Shape:
        from headrace.feeds.shapes import TablestoreShape, checked_catalog, parse_catalog

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

    def splits(self, table: Table) -> int:
        described = table.describe()
        by_size = sum(partition.log_bytes for partition in described.partitions) // (
            int(self.settings.get("split.size.mbs")) << 20
        )
        return max(1, min(int(self.settings.get("max.split.count")), max(by_size, _default_splits(table))))


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with every field nullable, as Spark has the columns of a data source."""
    import pyarrow as pa

    return pa.schema([pa.field(field.name, field.type) for field in schema])


_ROWS_PER_SPLIT = 500_000


def _default_splits(table: Table) -> int:
    return 1 + table.describe().rows // _ROWS_PER_SPLIT
