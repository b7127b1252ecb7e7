"""The classes that Spark finds for the formats. Each connects a `Source` with Spark's readers and writers."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.datasource import DataSourceWriter as BatchWriter

from headrace.errors import UnsupportedError
from headrace.formats.headrace.source import HeadraceSource
from headrace.formats.option_checks import checked_by_spark
from headrace.formats.source import Source
from headrace.formats.tablestore.source import TablestoreSource
from headrace.formats.yt.source import YtSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class FormatDataSource(DataSource):
    """The data source of a format. Names of parameters (`schema`, `overwrite`) are part of Spark's interface.

    The readers are imported when they are used: Spark imports this module in each of its processes.
    """

    source_type: ClassVar[type[Source]]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.source = self.source_type(checked_by_spark(self.source_type.format, options))
        super().__init__(self.source.options)

    @classmethod
    def name(cls) -> str:
        return cls.source_type.format.name

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.source.schema())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from headrace.spark.queue_reader import QueueStreamReader
        from headrace.spark.stream_reader import TunnelStreamReader

        self.source.check_stream_read()
        reader = QueueStreamReader if self.source.reads_queues() else TunnelStreamReader
        return reader(self.source, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.batch_reader import FilteringTableReader, TableReader
        from headrace.spark.queue_batch import FilteringQueueReader, QueueReader

        self.source.check_batch_read()
        filters = self.source.settings.get("pushDownFilters")
        if self.source.reads_queues():
            return FilteringQueueReader(self.source, schema) if filters else QueueReader(self.source, schema)
        return FilteringTableReader(self.source, schema) if filters else TableReader(self.source, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from headrace.spark.native_sinks import BatchSink

        return BatchSink(self.source, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from headrace.spark.native_sinks import StreamSink

        if overwrite:
            raise UnsupportedError(
                "Spark cannot write in complete mode to a Python sink",
                remedy='use headrace.write_stream(df, …, mode="complete")',
            )
        return StreamSink(self.source, schema)


class HeadraceDataSource(FormatDataSource):
    """Format ``headrace``: tables, tunnels and queues of any store, with headrace's own option names."""

    source_type = HeadraceSource


class TablestoreDataSource(FormatDataSource):
    """Format ``tablestore``: the option names and columns of Tablestore's connector."""

    source_type = TablestoreSource


class YtDataSource(FormatDataSource):
    """Format ``yt``: the option names and columns of SPYT."""

    source_type = YtSource
