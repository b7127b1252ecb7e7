"""The stored form of a queue's rows, and the choice of their partitions. Without I/O.

A chunk of a queue has all columns except `$timestamp`, the time of the commit, which is added when rows are read. So
rows can be serialised before their commit, unless the queue has `$cumulative_data_weight`, which depends on the rows
before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.queues.columns import CUMULATIVE_DATA_WEIGHT, TABLET_INDEX, TIMESTAMP, QueueSchema, data_weights
from headrace.model.queues.validation import Route, chosen_partitions
from headrace.model.tables.schema import Column, RowSchema
from headrace.ports import Rows
from headrace.rows import to_arrow
from headrace.stores.embedded import chunks
from headrace.stores.embedded.chunks import Chunk, Message
from headrace.support.cached import cached_property

SYSTEM_COLUMN_WEIGHT = 8


@dataclass(frozen=True)
class Layout:
    """The columns of a queue in different places.

    Attributes:
        arrow: the schema of rows that readers get.
        accepted: the columns that writers can set, `$tablet_index` included.
        written: the schema of the columns that are stored unchanged.
        stored: the schema of the chunks.
    """

    schema: QueueSchema

    @cached_property
    def arrow(self) -> pa.Schema:
        return self.schema.arrow

    @cached_property
    def accepted(self) -> RowSchema:
        return RowSchema((*self.schema.written.columns, Column(TABLET_INDEX, pa.int64())))

    @cached_property
    def written(self) -> pa.Schema:
        return self.schema.written.arrow

    @cached_property
    def stored(self) -> pa.Schema:
        return pa.schema([field for field in self.arrow if field.name != TIMESTAMP])

    @property
    def has_weight(self) -> bool:
        """Whether the queue has `$cumulative_data_weight`."""
        return CUMULATIVE_DATA_WEIGHT in self.schema.names

    def weigh(self, rows: pa.RecordBatch, weight: int) -> tuple[pa.RecordBatch, int]:
        """Return the stored form of written rows, with cumulative weights, and the weight after the last of them.

        ``weight`` is the cumulative weight before the first row.
        """
        system_columns = len(self.arrow) - len(self.written)
        weights = weight + np.cumsum(data_weights(rows) + SYSTEM_COLUMN_WEIGHT * system_columns)
        columns = {**_columns(rows), CUMULATIVE_DATA_WEIGHT: pa.array(weights)}
        stored = pa.RecordBatch.from_arrays([columns[name] for name in self.stored.names], schema=self.stored)
        return stored, int(weights[-1])

    def rows(self, page: Sequence[Chunk], first: int, end: int) -> pa.RecordBatch:
        """Return the rows from index ``first`` to ``end`` (excluded) of chunks that contain them."""
        if not page:
            return pa.RecordBatch.from_pylist([], schema=self.arrow)
        batches = chunks.decode(self.stored, page)
        columns = _columns(batches[0] if len(batches) == 1 else pa.concat_batches(batches))
        if TIMESTAMP in self.schema.names:
            commits = chunks.commits_of(page)
            times = pa.array(np.repeat(commits[:, 2], commits[:, 0]))
            columns[TIMESTAMP] = times.view(self.schema.column(TIMESTAMP).type)
        rows = pa.RecordBatch.from_arrays([columns[name] for name in self.arrow.names], schema=self.arrow)
        return rows.slice(first - page[0].first, end - first)


@dataclass(frozen=True)
class PartitionRows:
    """Rows for one partition: as messages, or as written if the queue has cumulative weights.

    ``number`` None is the partition that has had the fewest rows at the commit.
    """

    number: int | None
    content: pa.RecordBatch | tuple[Message, ...]


def typed(rows: Rows, layout: Layout) -> pa.Table:
    """Return rows in the accepted columns of a queue and their exact types; see `headrace.rows.to_arrow`."""
    return to_arrow(rows, layout.accepted, columns="all")


def split(
    rows: pa.Table, layout: Layout, route: Route, upper: Sequence[int]
) -> list[tuple[int | None, pa.RecordBatch]]:
    """Divide typed rows among partitions, and keep their order in each; None is the partition with the fewest rows.

    Args:
        upper: for each partition the index of its next row.

    Raises:
        OptionError: a partition does not exist, or two options choose the partition.
    """
    found: list[tuple[int | None, pa.RecordBatch]] = []
    for batch in rows.combine_chunks().to_batches():
        written = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=layout.written)
        numbers = chosen_partitions(batch, route, upper)
        if isinstance(numbers, np.ndarray):
            found += _cut(written, numbers)
        elif batch.num_rows:
            found.append((numbers, written))
    return found


def _cut(rows: pa.RecordBatch, numbers: npt.NDArray[np.int64]) -> list[tuple[int | None, pa.RecordBatch]]:
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    if len(found) == 1:
        return [(int(found[0]), rows)]
    taken = rows.take(pa.array(order))
    ends = [*starts[1:].tolist(), len(numbers)]
    return [
        (number, taken.slice(start, end - start))
        for number, start, end in zip(found.tolist(), starts.tolist(), ends, strict=True)
    ]


def _columns(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(rows.schema.names, rows.columns, strict=True))
