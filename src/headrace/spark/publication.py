"""`write_stream`: any streaming query, in any output mode, into tables and queues of a store, exactly once.

Spark's Python sinks take append mode only, so this goes through ``foreachBatch``: the batch's tasks stage their
rows in the store, and the driver publishes them in one transaction with the marker (job, batch id) and with the
progress of the consumers whose queues the batch read. A batch that runs again, after whatever crash, finds the
marker and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import LongType, StructField, StructType

from headrace.checkpoint_server.locations import checkpoint_text
from headrace.errors import OptionError
from headrace.formats.option_checks import check_options, option_texts
from headrace.formats.options import OPTIONS_OF, SINK, Location, Settings, locate
from headrace.ports import Queue, Staged
from headrace.spark.checkpoint import batch_content, clear_unfinished_start, query_id, queue_progress
from headrace.spark.checkpoint_location import refused_places, sink_checkpoint
from headrace.spark.outputs import ROWS_PER_WRITE, Output, Target, rows_per_write, stage
from headrace.spark.stream_arguments import checked_trigger, format_name, output_mode, triggered
from headrace.spark.workers import settle
from headrace.stores.registry import open as open_store
from headrace.tables.changes import RowChange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# Not a text: parsing one is a trip to the JVM in every batch.
_RECEIPT = StructType([StructField("id", LongType()), StructField("rows", LongType())])


@dataclass(frozen=True)
class StreamWriter:
    """A stream that is ready to start; `start` starts it."""

    df: DataFrame
    store_url: str
    outputs: tuple[Output, ...]
    mode: str
    checkpoint: str
    name: str | None = None
    trigger_options: Mapping[str, Any] | None = None
    store_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    rows_per_write: int | None = None
    columns: pa.Schema | None = None

    def trigger(self, **options: Any) -> StreamWriter:
        """Return the same stream with a trigger: ``processingTime="5 seconds"`` or ``availableNow=True``.

        Raises:
            OptionError: Spark knows no such trigger, or not exactly one is given.
        """
        return replace(self, trigger_options=checked_trigger(options))

    def start(self) -> StreamingQuery:
        """Check the columns of each output against its table or queue, and start the query.

        Raises:
            NotFoundError: no such store, table or queue.
            SchemaError: the columns do not fit.
            OptionError: Spark cannot write the checkpoint, or read the trigger.
        """
        complete = self.mode == "complete"
        targets = [output.target(complete=complete, columns=self.columns) for output in self.outputs]
        with open_store(self.store_url, **self.store_options) as store:
            for output, target in zip(self.outputs, targets, strict=True):
                target.check(store, _columns(self.df, output))
            # Absolute: the tasks may have another working directory.
            url = store.url
        checkpoint = sink_checkpoint(self.checkpoint, url, self.store_options, self.df.sparkSession)
        clear_unfinished_start(checkpoint)
        stream: DataStreamWriter = self.df.writeStream.outputMode(self.mode)
        stream = stream.option("checkpointLocation", checkpoint)
        if self.name:
            stream = stream.queryName(self.name)
        if self.trigger_options:
            stream = triggered(stream, self.trigger_options)
        with refused_places(self.checkpoint):
            return stream.foreachBatch(self._publish_batch(url, targets, checkpoint)).start()

    def _publish_batch(self, url: str, targets: Sequence[Target], checkpoint: str) -> Callable[[DataFrame, int], None]:
        outputs, most_rows = self.outputs, self.rows_per_write
        options = dict(self.store_options)
        sink = "+".join(sorted(target.name for target in targets))
        job: str | None = None

        def publish_batch(batch_df: DataFrame, batch: int) -> None:
            nonlocal job
            spark = batch_df.sparkSession

            def staged(rows: DataFrame, target: Target) -> list[Staged]:
                names = rows.columns

                def stage_rows(numbered: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                    import pyarrow as pa

                    given = (pa.RecordBatch.from_arrays(part.columns, names=names) for part in numbered)
                    with open_store(url, **options) as store:
                        receipts = stage(store, target, store.publisher(current, sink), batch, given, most_rows)
                    settle()
                    ids, counts = [receipt.id for receipt in receipts], [receipt.rows for receipt in receipts]
                    yield pa.RecordBatch.from_arrays(
                        [pa.array(ids, pa.int64()), pa.array(counts, pa.int64())], ["id", "rows"]
                    )

                # PySpark reads the names of the columns here as paths, with dots and back-ticks.
                numbered = rows.toDF(*(f"c{place}" for place in range(len(names))))
                receipts = numbered.mapInArrow(stage_rows, _RECEIPT).collect()
                return [Staged(receipt.id, receipt.rows) for receipt in receipts]

            with open_store(url, **options) as store:
                job = current = job or query_id(spark, checkpoint, store)
                publisher = store.publisher(current, sink)
                try:
                    with _computed_once(batch_df, len(outputs)) as given:
                        writes = [
                            target.write(staged(output.rows(given), target))
                            for output, target in zip(outputs, targets, strict=True)
                        ]
                    publisher.publish(
                        batch,
                        writes,
                        advances=queue_progress(checkpoint, batch, store.id, spark, store=store),
                        content=batch_content(checkpoint, batch, spark, store=store),
                    )
                except Exception:
                    publisher.discard(batch)
                    raise

        return publish_batch


@contextmanager
def _computed_once(batch: DataFrame, uses: int) -> Iterator[DataFrame]:
    """Keep a batch's rows while they are used more than once."""
    if uses == 1:
        yield batch
        return
    batch.persist()
    try:
        yield batch
    finally:
        batch.unpersist()


def _columns(df: DataFrame, output: Output) -> pa.Schema:
    """Return the columns that an output will have."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if output.select is None:
        return to_arrow_schema(df.schema, timezone="UTC")
    # What selects from a batch need not work on a stream.
    return to_arrow_schema(output.rows(df.sparkSession.createDataFrame([], df.schema)).schema, timezone="UTC")


def write_stream(
    df: DataFrame,
    *,
    checkpoint: str | os.PathLike[str],
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
    """Write a streaming DataFrame into a table, a queue, or several of them, each batch at once and once.

    Where the DataFrame reads a queue of the same store by a consumer, the consumer stands at a batch's end from the
    moment on when the batch's rows are visible.

    Args:
        df: the query; its columns are matched to the table's or queue's by name. In rows for a queue, a column
            ``$tablet_index`` says which partition each row goes to.
        checkpoint: the checkpoint location: a directory, any URL that Spark can write, or ``headrace:///path`` for a
            directory in the sink's store; see docs/checkpoints.md, also for ``yt:///path``.
        store: the store's path or URL; ``table`` or ``queue`` names the table or queue in it.
        key: for a queue: the columns by whose values rows are spread over its partitions.
        outputs: several tables and queues of the store, written in one transaction for each batch, instead of
            ``table`` or ``queue``. Change them only where the last batch is complete: a batch that has to be
            repeated counts as published for the same outputs only.
        mode: ``append``, ``update`` or ``complete``. In complete mode each batch replaces a table's content; to a
            queue, which is a log, it appends the whole result once more.
        name: the query's name.
        row_change: ``put`` (default) replaces rows by key, ``update`` sets the cells that are not null, ``delete``
            removes the rows of the given keys.
        trigger: as for Spark's ``trigger``: ``{"processingTime": "5 seconds"}``, ``{"availableNow": True}``.
        format: ``headrace``; or ``tablestore`` or ``yt`` to give store and table in that format's ``options``.
        options: further options of the format, those that it has for writing streams.

    Returns:
        A `StreamWriter`; its ``start()`` gives Spark's ``StreamingQuery``.

    Raises:
        NotFoundError: no such store, table or queue.
        OptionError: an option is missing, wrong, or unknown to the format; or the checkpoint is no place for one.
    """
    format, mode = format_name(format), output_mode(mode)
    place = checkpoint_text(checkpoint)
    named = {"store": store, "table": table, "queue": queue}
    given, arguments = option_texts(options, "write_stream"), option_texts(named, "write_stream")
    check_options(format, [*given, *arguments], use=SINK, place=f"write_stream with format {format}")
    given |= arguments
    settings = Settings(OPTIONS_OF[format], given).check()
    location = locate(format, given)
    if not df.isStreaming:
        raise OptionError(
            "the DataFrame is not a stream",
            remedy=f'use df.write.format("{format}") for a batch, or read with readStream',
        )
    if outputs is None:
        outputs = [_output(location, format, settings, key, row_change)]
    elif not outputs or location.table or location.queue or key is not None or row_change is not None:
        raise OptionError(
            "outputs take the place of table, queue, key and row_change",
            remedy='write_stream(df, store=…, outputs=[headrace.Output(table="…"), headrace.Output(queue="…")])',
        )
    return StreamWriter(
        df,
        location.store_url,
        tuple(outputs),
        mode,
        place,
        name,
        None if trigger is None else checked_trigger(trigger),
        location.store_options,
        rows_per_write(format, settings, df.sparkSession.conf.get(ROWS_PER_WRITE, None)),
        location.columns,
    )


def _output(
    location: Location,
    provider: str,
    settings: Settings,
    key: str | Sequence[str] | None,
    row_change: str | RowChange | None,
) -> Output:
    """Return the one output that a location names, with what arguments and options say about it."""
    if location.table and location.queue:
        raise OptionError(
            "a stream with one output goes to a table or to a queue",
            received=f"table {location.table!r}, queue {location.queue!r}",
            remedy="name both in outputs=[headrace.Output(table=…), headrace.Output(queue=…)]",
        )
    with location.open_store() as store:
        sink = location.open(store)
    ours = provider != "tablestore"
    if isinstance(sink, Queue):
        return Output(queue=sink.name, key=key or (settings.get("keyColumns") if ours else None), row_change=row_change)
    row_change = row_change or settings.get("rowChange" if ours else "writer.row.change.type")
    return Output(table=sink.name, key=key, row_change=row_change)
