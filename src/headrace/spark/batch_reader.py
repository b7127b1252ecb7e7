"""Batch reads of tables and queues: `BatchReader` binds a `BatchRead` to Spark's interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.formats.source import Source
from headrace.model.tables.conditions import Predicate
from headrace.spark.executors import Sent
from headrace.spark.stream_reader import PlannedTask
from headrace.spark.versions import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(Sent, DataSourceReader):
    """A table, or queues, as a batch source. It chooses the read with the store that it opens to plan the tasks."""

    def __init__(self, source: Source, schema: StructType) -> None:
        self._source = source
        self._schema = schema
        self._predicates: list[Predicate] = []

    def partitions(self) -> Sequence[InputPartition]:
        with self._source.open_store() as store:
            read = self._source.batch(store)
            tasks = read.tasks(store, arrow_schema(self._schema), self._predicates)
            address = self._source.location.store.of(store)
        return [PlannedTask(task, read, address) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without partitions, Spark calls this with None.
        if isinstance(partition, PlannedTask):
            yield from partition.rows(self._schema, self._predicates)
