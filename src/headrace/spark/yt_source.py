"""The data source format `yt`: queries written for SPYT, over the queues and tables of any store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader

from headrace.errors import UnsupportedError
from headrace.spark.options import YT_OPTIONS, Settings
from headrace.spark.sources import QueueDataSource, nullable, splits
from headrace.tables.changes import RowChange
from headrace.tables.conditions import KeyRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.feeds.queue_columns import AddressColumns
    from headrace.ports import Table
    from headrace.tables.change_columns import Shape

TABLET_COLUMN, ROW_COLUMN = "__spyt_streaming_src_tablet_index", "__spyt_streaming_src_row_index"


class YtDataSource(QueueDataSource):
    """Format ``yt``: the option names and columns of SPYT (docs/options.md). Names of tables and queues are paths."""

    @classmethod
    def name(cls) -> str:
        return "yt"

    @classmethod
    def make_settings(cls, options: Mapping[str, str]) -> Settings:
        return Settings(YT_OPTIONS, options)

    def opaque_composites(self) -> bool:
        return not self.settings.get("parsing_type_v3")

    def queue_names(self) -> tuple[str, ...]:
        # A path says nothing about what is there.
        return ()

    def consumer_name(self) -> str | None:
        name: str | None = self.settings.get("consumer_path")
        return name

    def address_columns(self) -> AddressColumns:
        from headrace.feeds.queue_columns import PARTITION, QUEUE_NAME, ROW_INDEX, AddressColumns

        service = {TABLET_COLUMN: PARTITION, ROW_COLUMN: ROW_INDEX}
        path = self.settings.get("source_path_column") or self.settings.get("sourcePathColumn")
        return AddressColumns(
            service if self.settings.get("include_service_columns") else {}, {path: QUEUE_NAME} if path else {}
        )

    def names_tunnel(self) -> bool:
        return False

    def tunnel_name(self) -> str:
        raise UnsupportedError("format yt reads queues as streams", remedy="read the tunnel with format headrace")

    def shape(self, table: Table, wanted: StructType | None) -> Shape:
        raise UnsupportedError("format yt reads queues as streams", remedy="read the tunnel with format headrace")

    def row_change(self) -> RowChange:
        change: RowChange = self.settings.get("rowChange")
        return change

    def table_columns(self, table: Table) -> pa.Schema:
        import pyarrow as pa

        from headrace.rows.to_reader import opaque_type

        columns = nullable(table.schema.arrow)
        if not self.opaque_composites():
            return columns
        return pa.schema([pa.field(field.name, opaque_type(field.type)) for field in columns])

    def splits(self, table: Table) -> list[KeyRange]:
        return splits(table, self.settings.get("splits"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self.settings.need("consumer_path", " for a stream")
        return super().streamReader(schema)
