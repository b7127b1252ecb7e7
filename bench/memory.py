"""A source of Arrow batches in memory and a sink that discards them, to measure the time of Spark itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from bench.measure import orders
from headrace.model.tables.change_columns import CHANGE_COLUMNS

_BATCH_ROWS = 65_536
_PARTITIONS = 2


@cache
def _batch(*, changes: bool) -> pa.RecordBatch:
    """Return a batch of orders, with change columns for a comparison with a tunnel."""
    data = orders(0, _BATCH_ROWS).combine_chunks().to_batches()[0]
    fields, columns = [pa.field(field.name, field.type) for field in data.schema], list(data.columns)
    if changes:
        numbers = np.arange(_BATCH_ROWS)
        fields += list(CHANGE_COLUMNS)
        columns += [pa.array(["insert"] * _BATCH_ROWS), pa.array(numbers), pa.array(numbers)]
    schema = pa.schema(fields)
    return pa.RecordBatch.from_arrays([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


class _MemoryReader(DataSourceStreamReader):
    def __init__(self, rows: int, *, changes: bool, tuples: bool) -> None:
        self.rows, self.changes, self.tuples = rows, changes, tuples

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        return {"rows": self.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition((end["rows"] - start["rows"]) // _PARTITIONS) for _ in range(_PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        batch = _batch(changes=self.changes)
        left = partition.value
        while left > 0:
            part = batch.slice(0, left)
            left -= part.num_rows
            if self.tuples:
                yield from zip(*(column.to_pylist() for column in part.columns), strict=True)
            else:
                yield part


class MemorySource(DataSource):
    """Delivers ``rows`` rows in one batch, as Arrow or as Python ``tuples``, optionally with change columns."""

    @classmethod
    def name(cls) -> str:
        return "bench_memory"

    def _is(self, option: str) -> bool:
        return bool(self.options.get(option) == "true")

    def schema(self) -> StructType:
        return from_arrow_schema(_batch(changes=self._is("changes")).schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _MemoryReader(int(self.options["rows"]), changes=self._is("changes"), tuples=self._is("tuples"))


class _MemoryWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            _ = batch.nbytes
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        return

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        return


class MemorySink(DataSource):
    """Discards Arrow batches."""

    @classmethod
    def name(cls) -> str:
        return "bench_sink"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _MemoryWriter()
