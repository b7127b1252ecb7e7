"""Starting a streaming query whose batches a Python function writes into a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from headrace.ports import Store
from headrace.spark.batch_errors import with_short_errors
from headrace.spark.batch_tasks import LocatedSink, StreamBatches
from headrace.spark.checkpoint import clear_unfinished_start, is_connect
from headrace.spark.checkpoint_location import checkpoint_errors, sink_checkpoint
from headrace.spark.default_checkpoint import default_checkpoint, record_stream
from headrace.spark.executors import sent
from headrace.spark.stream_arguments import SinkArguments, checked_trigger, triggered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class BatchedStream:
    """What the streams that a Python function writes have in common.

    Attributes:
        arguments: where the stream writes, and how Spark runs it.
        definition: a text that is the same as long as the stream is the same; empty if it is unknown.
    """

    arguments: SinkArguments
    definition: str = field(default="", repr=False)

    def trigger(self, **options: Any) -> Self:
        """Return the stream with another trigger: ``processingTime="5 seconds"`` or ``availableNow=True``.

        Raises:
            OptionError: the trigger is unknown, or the number of triggers is not one.
        """
        return replace(self, arguments=replace(self.arguments, trigger=checked_trigger(options)))

    def _located(self, df: DataFrame, store: Store, writes: Sequence[str]) -> LocatedSink:
        """Return the sink as other processes find it.

        Args:
            store: the store of the sink.
            writes: the tables and queues that the stream writes.

        Raises:
            AlreadyExistsError: the default location has the checkpoint of another stream.
            UnsupportedError: the store of the checkpoint has no files.
        """
        address, checkpoint = self.arguments.store.of(store), self.arguments.checkpoint
        if checkpoint is None:
            checkpoint = default_checkpoint(store, self.arguments.name)
            record_stream(store, checkpoint, self.arguments.name, writes, self.definition)
        location = sink_checkpoint(checkpoint, address, df.sparkSession)
        return LocatedSink(address, location, self.arguments.rows_per_write)

    def _start(self, df: DataFrame, mode: str, batches: StreamBatches) -> StreamingQuery:
        """Start the query.

        Raises:
            OptionError: Spark cannot write the checkpoint, or does not accept the trigger.
        """
        location = batches.sink.checkpoint
        clear_unfinished_start(location)
        write = with_short_errors(batches)
        stream = df.writeStream.outputMode(mode).option("checkpointLocation", location)
        if self.arguments.name:
            stream = stream.queryName(self.arguments.name)
        if self.arguments.trigger:
            stream = triggered(stream, self.arguments.trigger)
        with checkpoint_errors(self.arguments.checkpoint or location):
            # Over Spark Connect, the function runs in a process of the server.
            return stream.foreachBatch(sent(write) if is_connect(df.sparkSession) else write).start()
