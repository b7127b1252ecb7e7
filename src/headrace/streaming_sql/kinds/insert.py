"""``INSERT INTO`` over streams: into a store, into another format, or into one of Spark's own tables."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.errors import OptionError, SqlError
from headrace.spark import old_streams
from headrace.spark.analysed_plans import refuse_table_rows
from headrace.spark.checkpoint import clear_unfinished_start
from headrace.spark.checkpoint_location import checkpoint, checkpoint_errors
from headrace.spark.sql_errors import order_errors
from headrace.spark.write_stream import StreamWriter, write_stream
from headrace.sql_text.lexer import fingerprint
from headrace.streaming_sql.kinds.kind import DefinedStream, ReadyStream, StreamKind
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.providers import is_headrace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


class InsertStreams(StreamKind):
    """``INSERT INTO``: Spark's streaming query writes its result."""

    def prepare(self, stream: DefinedStream) -> ReadyStream:
        frame, target_options = self._checked(stream)

        def start() -> StreamingQuery:
            with order_errors(str(stream.statement.body.target)):
                return _start(stream, frame, target_options)

        return stream.ready(start, target_options)

    def properties(self, stream: DefinedStream) -> list[tuple[str, str]]:
        frame, target_options = self._checked(stream)
        if (into_store := _into_store(stream, frame, target_options)) is not None:
            into_store.check()
        return [("output mode", stream.options.output_mode)]

    def _checked(self, stream: DefinedStream) -> tuple[DataFrame, Mapping[str, str]]:
        """Return the rows of a stream and the options of its sink, after checking the statement."""
        insert = stream.statement.body
        assert isinstance(insert, st.Insert)
        target_options = stream.sink_options()
        frame = self._tables.query(insert)
        if not frame.isStreaming:
            raise SqlError(
                f"stream {stream.name} reads no stream",
                remedy="select from a scan: CREATE SCAN … ON … USING STREAM",
            )
        refuse_table_rows(frame, f"stream {stream.name}")
        if stream.options.overwrite:
            raise OptionError(
                f"option overwrite of stream {stream.name} has no effect: it follows no table",
                remedy="leave it out; with outputMode 'complete' each batch replaces the rows of the target",
            )
        return frame, target_options


def _into_store(stream: DefinedStream, frame: DataFrame, target_options: Mapping[str, str]) -> StreamWriter | None:
    """Return the stream into a table or queue of a store; None for another target."""
    options, target = stream.options, stream.target
    if target is None or not is_headrace(target.provider):
        return None
    into_store = write_stream(
        frame,
        checkpoint=options.checkpoint,
        mode=options.output_mode,
        name=stream.name,
        trigger=options.trigger,
        format=target.provider.lower(),
        options=target_options,
    )
    return replace(into_store, definition=fingerprint(stream.statement.body.text))


def _start(stream: DefinedStream, frame: DataFrame, target_options: Mapping[str, str]) -> StreamingQuery:
    options, target, body = stream.options, stream.target, stream.statement.body
    if (into_store := _into_store(stream, frame, target_options)) is not None:
        return into_store.start()
    # Such a stream cannot leave it out, see `Streams`.
    assert options.checkpoint is not None
    location = checkpoint(options.checkpoint, spark=frame.sparkSession)
    writer = frame.writeStream if target is None else frame.writeStream.format(target.provider)
    writer = writer.options(**(options.sink if target is None else target_options)).outputMode(options.output_mode)
    with checkpoint_errors(location):
        clear_unfinished_start(location)
        writer = writer.queryName(stream.name).option("checkpointLocation", location)
        writer = writer.trigger(**old_streams.trigger_of(options.trigger))
        start = writer.start if target is not None else functools.partial(writer.toTable, str(body.target))
        return old_streams.started(start, options.trigger)
