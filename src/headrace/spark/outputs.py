"""`Output`: a table or queue that `write_stream` writes; and the rows of a batch for all outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.batches.sinks.bad_rows import bad_rows_of
from headrace.batches.sinks.targets import QueueTarget, TableTarget, Target
from headrace.errors import OptionError
from headrace.model.tables.changes import RowChange
from headrace.spark.batch_tasks import BatchContent, BatchTasks, Receipts, all_receipts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Output:
    """A table or a queue that a stream writes, and the rows that are written there.

    Attributes:
        table: the table's name. Either this or ``queue`` is required.
        queue: the queue's name.
        select: a function that takes the rows of a batch, as a DataFrame that is not a stream, and returns the rows
            for this output. By default the output gets all rows.
        row_change: only for a table: ``put`` (default) replaces rows by key, ``update`` sets the cells that are not
            null, ``delete`` removes the rows with these keys.
        key: only for a queue: the column or columns whose values choose the partition of a row, see
            `headrace.ports.Queue.append`.

    Raises:
        OptionError: both or neither of table and queue, an argument of the other kind, or an invalid value.

    Examples:
        >>> changes = spark.readStream.format("headrace").options(store="shop", tunnel="stats").load()
        >>> large = store.create_table("large", {"id": "string", "price": "double"}, "id")
        >>> outputs = [
        ...     headrace.Output(table="large", select=lambda rows: rows.where("price > 5").select("id", "price")),
        ...     headrace.Output(queue="clicks", select=lambda rows: rows.selectExpr("id AS user", "'/' AS page")),
        ... ]
        >>> stream = headrace.write_stream(
        ...     changes, checkpoint="checkpoints/two", store="shop", outputs=outputs, trigger={"availableNow": True}
        ... )
        >>> stream.start().awaitTermination(60)
        True
        >>> [row["id"] for row in large]
        ['o1']
    """

    table: str | None = None
    queue: str | None = None
    select: Callable[[DataFrame], DataFrame] | None = None
    row_change: str | RowChange | None = None
    key: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if (self.table is None) == (self.queue is None):
            raise OptionError(
                "an output is either a table or a queue",
                received=f"table={self.table!r}, queue={self.queue!r}",
                remedy='headrace.Output(table="…") or headrace.Output(queue="…")',
            )
        if self.table is not None and self.key is not None:
            raise OptionError(
                f"key spreads rows over the partitions of a queue, and {self.table!r} is a table",
                remedy="leave out key: a table orders its rows by its primary key",
            )
        if self.queue is not None and self.row_change is not None:
            raise OptionError(
                f"row_change is an argument for tables, and queue {self.queue!r} only appends rows",
                remedy="leave out row_change",
            )
        if self.row_change is not None:
            RowChange.parse(self.row_change)
        if not all(isinstance(name, str) and name for name in _names(self.key)):
            raise OptionError("key names columns", received=repr(self.key)[:200], valid="a name, or a list of names")

    def target(
        self, *, complete: bool = False, columns: pa.Schema | None = None, bad_rows_of_stream: str | None = None
    ) -> Target:
        """Return the table or queue as a target.

        Args:
            complete: complete mode: each batch replaces the content of a table.
            columns: columns of the table that the user has declared.
            bad_rows_of_stream: the name of the stream, if rows that a table refuses go into a table beside it.
        """
        if self.queue is not None:
            return QueueTarget(self.queue, _names(self.key))
        assert self.table is not None
        change = RowChange.REPLACE_ALL if complete else RowChange.parse(self.row_change or RowChange.PUT)
        bad_rows = None if bad_rows_of_stream is None else bad_rows_of(self.table, bad_rows_of_stream)
        return TableTarget(self.table, change, columns, bad_rows=bad_rows)

    def rows(self, batch: DataFrame) -> DataFrame:
        """Return the rows of a batch for this output."""
        return batch if self.select is None else self.select(batch)


def _names(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    if columns is None:
        return ()
    if isinstance(columns, str):
        return (columns,)
    return tuple(columns) if isinstance(columns, Sequence) else (columns,)


@dataclass(frozen=True)
class OutputRows(BatchContent):
    """The rows of a batch for each output.

    Attributes:
        outputs: the outputs.
        complete, columns, bad_rows_of_stream: see `Output.target`.
    """

    rereads_published = True

    outputs: tuple[Output, ...]
    complete: bool
    columns: pa.Schema | None
    bad_rows_of_stream: str | None = None

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple(
            output.target(complete=self.complete, columns=self.columns, bad_rows_of_stream=self.bad_rows_of_stream)
            for output in self.outputs
        )

    def run(self, batch: DataFrame, tasks: BatchTasks) -> Receipts:
        with _computed_once(batch, len(self.outputs)) as rows:
            jobs = [tasks.stage_all(output.rows(rows), index) for index, output in enumerate(self.outputs)]
        return all_receipts(jobs)


@contextmanager
def _computed_once(batch: DataFrame, uses: int) -> Iterator[DataFrame]:
    """Persist the rows of a batch while several outputs use them."""
    if uses == 1:
        yield batch
        return
    batch.persist()
    try:
        yield batch
    finally:
        batch.unpersist()
