"""Functions over Arrow record batches in Spark's tasks, for columns of any name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from headrace.spark.executors import sent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ArrowFunction: TypeAlias = "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]"
"""From the rows of a task to rows of the result, both with the names of their columns."""


def map_in_arrow(rows: DataFrame, function: ArrowFunction, schema: StructType) -> DataFrame:
    """Return the rows that a function makes of the rows of each task.

    Args:
        schema: the names and types of the result.
    """
    from pyspark.sql.types import StructField, StructType

    names = rows.columns
    # mapInArrow parses column names as paths, with dots and back-ticks.
    plain = StructType([StructField(f"c{place}", field.dataType) for place, field in enumerate(schema)])

    def in_task(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        named = (pa.RecordBatch.from_arrays(part.columns, names=names) for part in parts)
        for part in function(named):
            yield pa.RecordBatch.from_arrays(part.columns, names=plain.names)

    renamed = rows.toDF(*(f"c{place}" for place in range(len(names))))
    return renamed.mapInArrow(sent(in_task), plain).toDF(*schema.names)
