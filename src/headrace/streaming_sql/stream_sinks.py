"""Starting the query of a stream: into a store, into another format, or into one of Spark's own tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.options.option import SINK
from headrace.spark.checkpoint import clear_unfinished_start
from headrace.spark.checkpoint_location import checkpoint as spark_checkpoint
from headrace.spark.checkpoint_location import checkpoint_errors
from headrace.streaming_sql.catalog import TableDefinition
from headrace.streaming_sql.format_options import check_given, options_for_use
from headrace.streaming_sql.providers import is_headrace
from headrace.streaming_sql.stream_options import KNOWN, StreamOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def check_sink_options(
    name: str, target: TableDefinition | None, given: Mapping[str, str], options: StreamOptions
) -> None:
    """Raise `OptionError` for options that neither the stream nor its sink knows. Spark's sinks check their own.

    Args:
        given: the options of the statement, before environment variables are replaced.
    """
    if target is not None and is_headrace(target.provider):
        own = {option: value for option, value in given.items() if option in options.sink}
        place = f"stream {name} into format {target.provider}"
        check_given(target.provider, own, use=SINK, more=KNOWN, place=place)


def sink_options(target: TableDefinition | None, options: StreamOptions) -> dict[str, str]:
    """Return the options of the sink: those of the target table, overridden by those of the stream."""
    if target is None:
        return {}
    return options_for_use(target.provider, target.resolved_options(options.sink), SINK)


def start_query(
    spark: SparkSession,
    name: str,
    frame: DataFrame,
    table: str,
    target: TableDefinition | None,
    options: StreamOptions,
    target_options: Mapping[str, str],
    definition: str,
) -> StreamingQuery:
    """Start the query of a stream.

    Args:
        table: the name of the table that the stream writes.
        target: its definition in the workspace; None for one of Spark's own tables.
        target_options: the options of the sink, see `sink_options`.
        definition: a text that is the same as long as the query is the same.
    """
    if target is not None and is_headrace(target.provider):
        return _into_store(frame, target.provider, target_options, name, options, definition)
    # Such a stream cannot leave it out, see `Streams`.
    assert options.checkpoint is not None
    location = spark_checkpoint(options.checkpoint, spark=spark)
    if target is None:
        writer = frame.writeStream.options(**options.sink).outputMode(options.output_mode)
        with checkpoint_errors(location):
            return _configured(writer, name, location, options).toTable(table)
    writer = frame.writeStream.format(target.provider).options(**target_options).outputMode(options.output_mode)
    with checkpoint_errors(location):
        return _configured(writer, name, location, options).start()


def _into_store(
    frame: DataFrame,
    provider: str,
    target_options: Mapping[str, str],
    name: str,
    options: StreamOptions,
    definition: str,
) -> StreamingQuery:
    from headrace.spark.write_stream import write_stream

    stream = write_stream(
        frame,
        checkpoint=options.checkpoint,
        mode=options.output_mode,
        name=name,
        trigger=options.trigger,
        format=provider.lower(),
        options=target_options,
    )
    return replace(stream, definition=definition).start()


def _configured(writer: DataStreamWriter, name: str, location: str, options: StreamOptions) -> DataStreamWriter:
    """Return a writer with the name, the checkpoint and the trigger of a stream."""
    clear_unfinished_start(location)
    return writer.queryName(name).option("checkpointLocation", location).trigger(**options.trigger)
