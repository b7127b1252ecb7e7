"""`write_stream`: writes a streaming query, in any output mode, into tables and queues of a store, exactly once.

Spark's Python sinks accept append mode only, so `write_stream` uses ``foreachBatch``. For each batch, the tasks stage
their rows and the driver publishes them, see `headrace.batches.sinks.batch_writer`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.batches.sinks.bad_rows import prepare, refuse_queue
from headrace.batches.sinks.feedback import put_into
from headrace.batches.sinks.jobs import TargetJobs
from headrace.batches.sinks.targets import TableTarget
from headrace.errors import OptionError
from headrace.formats.source import Source
from headrace.model.tables.changes import RowChange
from headrace.ports import Queue, Store
from headrace.spark.analysed_plans import refuse_table_rows
from headrace.spark.batch_tasks import PublishedBatches
from headrace.spark.batched_stream import BatchedStream, SinkArguments, output_mode, sink_of
from headrace.spark.outputs import Output, OutputRows
from headrace.spark.own_source import check_no_feedback
from headrace.spark.versions import arrow_schema
from headrace.support import notebooks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class StreamWriter(BatchedStream):
    """A stream that `start` starts. `write_stream` creates it."""

    df: DataFrame
    sink: Source = field(repr=False)
    mode: str
    outputs: tuple[Output, ...]
    """The user's outputs; none if the sink names the table or queue."""
    key: str | Sequence[str] | None = None
    row_change: RowChange | None = None

    def _repr_html_(self) -> str:
        # Without the addresses of the store and of the checkpoint, which can have a password.
        location = self.sink.location
        targets = ", ".join(str(each.table or each.queue) for each in self.outputs or [location])
        values = {"name": self.arguments.name, "writes": targets, "mode": self.mode}
        return notebooks.facts("Stream that is not started", values)

    def start(self) -> StreamingQuery:
        """Check the columns of each output against its table or queue, and start the query.

        Raises:
            NotFoundError: the store, a table or a queue does not exist.
            SchemaError: the columns do not fit.
            OptionError: no table or queue is named; a key is for a table, or a row change for a queue; the stream puts
                rows into the table that it reads; a mirror or a followed query fills a table; Spark cannot write the
                checkpoint, or does not accept the trigger.
        """
        with self.arguments.store.open() as store:
            rows = self._checked_rows(store)
            for target in rows.targets:
                prepare(store, target)
            sink = self._located(self.df, store, [target.name for target in rows.targets])
        return self._start(self.df, self.mode, PublishedBatches(sink, rows))

    def check(self) -> None:
        """Raise the errors of `start` about tables and queues, without changing the store."""
        with self.arguments.store.open() as store:
            self._checked_rows(store)

    def _checked_rows(self, store: Store) -> OutputRows:
        """Return the rows for the outputs, after checking each output against its table or queue."""
        outputs = self.outputs or (self._output(store),)
        kept = (self.arguments.name or "") if self.sink.keeps_bad_rows() else None
        rows = OutputRows(outputs, self.mode == "complete", self.sink.location.columns, kept)
        for output, target in zip(outputs, rows.targets, strict=True):
            target.check(store, _columns(self.df, output))
            if kept is not None:
                refuse_queue(target)
            if isinstance(target, TableTarget):
                if self.mode == "update":
                    # Each row replaces an earlier one.
                    store.table(target.name, self.sink.location.columns).schema.check_keyed()
                TargetJobs(store).check_other(target.name, "this stream")
        check_no_feedback(self.df, store, put_into(rows.targets), "this stream")
        return rows

    def _output(self, store: Store) -> Output:
        """Return the output for the table or queue that the sink names."""
        sink = self.sink.location.open(store)
        if isinstance(sink, Queue):
            key = self.key or self.sink.key_columns()
            return Output(queue=sink.name, key=key, row_change=self.row_change)
        return Output(table=sink.name, key=self.key, row_change=self.row_change or self.sink.row_change())


def _columns(df: DataFrame, output: Output) -> pa.Schema:
    """Return the columns of an output's rows."""
    if output.select is None:
        return arrow_schema(df.schema)
    # `select` may use operations that a streaming DataFrame does not have.
    return arrow_schema(output.rows(df.sparkSession.createDataFrame([], df.schema)).schema)


def write_stream(
    df: DataFrame,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    table: str | None = None,
    queue: str | None = None,
    key: str | Sequence[str] | None = None,
    outputs: Sequence[Output] | None = None,
    mode: str = "append",
    name: str | None = None,
    row_change: str | RowChange | None = None,
    trigger: Mapping[str, Any] | None = None,
    format: str = "headrace",
    options: Mapping[str, str] | None = None,
) -> StreamWriter:
    """Write a streaming DataFrame into one or several tables and queues. Each batch is published atomically and once.

    If the DataFrame reads a queue of the same store with a consumer, the consumer's offset advances in the transaction
    that publishes the batch.

    Args:
        df: the query. Its columns are matched with the columns of the table or queue by name. In rows for a queue, a
            column ``$tablet_index`` is the partition of the row.
        checkpoint: the checkpoint location: a directory, any URL that Spark can write, or ``headrace:///path`` for a
            directory in the sink's store; see docs/checkpoints.md, also for ``yt:///path`` and
            ``postgresql:///path``. A stream with a name may leave it out: the sink's store then keeps the checkpoint
            under this name, if it has files.
        store: the store's path or URL. ``table`` or ``queue`` is a table or queue of this store.
        key: only for a queue: the columns whose values choose the partition of a row.
        outputs: several tables and queues of the store, written in one transaction for each batch, instead of
            ``table`` or ``queue``. Change the outputs of a query only after its last batch is complete: a repeated
            batch is recognized as published only if the outputs are the same.
        mode: ``append``, ``update`` or ``complete``. In complete mode each batch replaces the content of a table. A
            queue is a log: each batch appends the complete result to it.
        name: the query's name.
        row_change: ``put`` (default) replaces rows by key, ``update`` sets the cells that are not null, ``delete``
            removes the rows with these keys.
        trigger: as for Spark's ``trigger``: ``{"processingTime": "5 seconds"}``, ``{"availableNow": True}``.
        format: ``headrace``; or ``tablestore`` or ``yt``, with store and table in the ``options`` of that format.
        options: further options of the format for writing streams.

    Returns:
        A `StreamWriter`; its ``start()`` returns Spark's ``StreamingQuery``.

    Raises:
        OptionError: an option is missing, invalid, or unknown to the format; ``outputs`` has a table twice; the
            checkpoint is not a valid location; or both name and checkpoint are missing.

    Examples:
        >>> changes = spark.readStream.format("headrace").options(store="shop", tunnel="stats").load()
        >>> copy = store.create_table("copies", {"id": "string", "price": "double"}, "id")
        >>> stream = headrace.write_stream(
        ...     changes.select("id", "price"),
        ...     checkpoint="checkpoints/copies",
        ...     store="shop",
        ...     table="copies",
        ...     trigger={"availableNow": True},
        ... )
        >>> stream.start().awaitTermination(60)
        True
        >>> [row["id"] for row in copy]
        ['o1', 'o2']
    """
    mode = output_mode(mode)
    source = sink_of("write_stream", format, options, store=store, table=table, queue=queue)
    arguments = SinkArguments.of(source, df.sparkSession, checkpoint=checkpoint, name=name, trigger=trigger)
    location = source.location
    if not df.isStreaming:
        raise OptionError(
            "the DataFrame is not a stream",
            remedy=f'use df.write.format("{source.format.name}") for a batch, or read with readStream',
        )
    if outputs is not None:
        if not outputs or location.table or location.queue or key is not None or row_change is not None:
            raise OptionError(
                "outputs cannot be combined with table, queue, key or row_change, and must not be empty",
                remedy='write_stream(df, store=…, outputs=[headrace.Output(table="…"), headrace.Output(queue="…")])',
            )
        _check_tables_once(outputs)
    change = None if row_change is None else RowChange.parse(row_change)
    # Last, because it asks Spark.
    refuse_table_rows(df, "the DataFrame")
    return StreamWriter(
        arguments=arguments, df=df, sink=source, mode=mode, outputs=tuple(outputs or ()), key=key, row_change=change
    )


def _check_tables_once(outputs: Sequence[Output]) -> None:
    """Raise `OptionError` if two outputs write one table: the order of their changes would be undefined."""
    tables = [output.table for output in outputs if output.table is not None]
    repeated = sorted({table for table in tables if tables.count(table) > 1})
    if repeated:
        raise OptionError(
            "outputs have a table twice",
            received=", ".join(map(repr, repeated)),
            valid="one output for each table",
            remedy="combine the rows for a table in the select function of one output, for example with union",
        )
