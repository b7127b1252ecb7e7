"""The rows of a table of a store as a DataFrame, which tasks read by the connection of the query.

A reader of format ``headrace`` would look the store up again by options, which not all sessions have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.model.tables.conditions import KeyRange
from headrace.spark.arrow_functions import map_in_arrow
from headrace.spark.executors import task_store
from headrace.spark.versions import arrow_schema
from headrace.stores.registry import StoreAddress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def stored_rows(
    spark: SparkSession,
    store: StoreAddress,
    table: str,
    ranges: Sequence[KeyRange],
    columns: Sequence[str],
    schema: StructType,
) -> DataFrame:
    """Return rows of a table that nothing else writes.

    Args:
        store: the address of the table's store.
        ranges: ranges of keys, each of which a task reads.
        columns: the columns to read.
        schema: their names and types in the result.
    """
    types, read = arrow_schema(schema), list(columns)

    def in_task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with task_store(store) as opened:
            for number in (each for part in numbers for each in part.column(0).to_pylist()):
                with opened.table(table).scan(read, keys=ranges[number]) as rows:
                    for part in rows:
                        yield from pa.Table.from_batches([part]).rename_columns(types.names).cast(types).to_batches()

    numbers = spark.range(0, len(ranges), 1, numPartitions=len(ranges))
    return map_in_arrow(numbers, in_task, schema)
