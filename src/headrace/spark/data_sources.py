"""The data sources that Spark finds for the formats. They connect a `Source` with Spark's readers and writers."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.datasource import DataSourceWriter as BatchWriter
from pyspark.sql.types import StructType

from headrace.errors import UnsupportedError
from headrace.formats.format import Format
from headrace.formats.option_checks import checked_by_spark
from headrace.formats.registry import format_named, source_of
from headrace.spark import versions
from headrace.spark.executors import Sent

if TYPE_CHECKING:
    import pyarrow as pa


# Of each class that `data_source` makes.
_DESCRIPTION = """The data source of format ``{0}``, for a session that does not find it by the name of its module.

docs/options.md has the options. An unknown or invalid one is an `OptionError`.

Examples:
    >>> spark.dataSource.register(headrace.{1}DataSource)
"""


class FormatDataSource(Sent, DataSource):
    """The data source of a format. Names of parameters (`schema`, `overwrite`) are part of Spark's interface.

    The readers are imported when they are used: Spark imports this module in each of its processes.
    """

    format: ClassVar[Format]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.source = source_of(self.format.name, checked_by_spark(self.format, options))
        super().__init__(self.source.options)

    @classmethod
    def name(cls) -> str:
        return cls.format.name

    def schema(self) -> StructType:
        columns = self.source.schema()
        schema = versions.spark_schema(columns)
        _annotate(schema, columns)
        return schema

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from headrace.spark.old_streams import stream_reader
        from headrace.spark.stream_reader import StreamReader

        self.source.check_stream_read()
        return stream_reader(StreamReader(self.source, schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        self.source.check_batch_read()
        if self.source.settings.get("pushDownFilters"):
            versions.FILTERS.check()
            from headrace.spark.filtering_reader import FilteringBatchReader

            return FilteringBatchReader(self.source, schema)
        from headrace.spark.batch_reader import BatchReader

        return BatchReader(self.source, schema)

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


def _annotate(schema: StructType, columns: Iterable[pa.Field]) -> None:
    """Give Spark's columns the metadata of columns of Arrow, also inside structs."""
    for field, column in zip(schema.fields, columns, strict=True):
        field.metadata = {name.decode(): text.decode() for name, text in (column.metadata or {}).items()}
        if isinstance(field.dataType, StructType):
            _annotate(field.dataType, column.type)


def data_source(name: str) -> type[FormatDataSource]:
    """Return the class of a format's data source, for the attribute ``DefaultSource`` of the module ``pyspark_NAME``.

    Spark's processes find the class as this attribute.
    """
    attributes = {
        "__module__": f"pyspark_{name}",
        "__doc__": _DESCRIPTION.format(name, name.capitalize()),
        "format": format_named(name),
    }
    return type("DefaultSource", (FormatDataSource,), attributes)
