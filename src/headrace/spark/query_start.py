"""Starting a streaming query whose batches a Python function writes into a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from headrace.spark.batch_errors import with_short_errors
from headrace.spark.checkpoint import clear_unfinished_start, is_connect
from headrace.spark.checkpoint_location import checkpoint_errors, sink_checkpoint
from headrace.spark.default_checkpoint import claim, default_checkpoint
from headrace.spark.executors import sent
from headrace.spark.stream_arguments import checked_trigger, triggered
from headrace.stores.registry import StoreAddress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

BatchFunction: TypeAlias = "Callable[[DataFrame, int], None]"
"""The function of ``foreachBatch``: the rows of a batch, and its id."""


@dataclass(frozen=True, kw_only=True)
class BatchedStream:
    """What the streams that a Python function writes have in common.

    Attributes:
        store: the address of the store that the stream writes.
        checkpoint: the checkpoint location, as the user wrote it; None for the default one.
        name: the query's name.
        definition: a text that is the same as long as the stream is the same; empty if it is unknown.
        trigger_options: the trigger; None for Spark's default.
    """

    store: StoreAddress
    # It can have a password.
    checkpoint: str | None = field(repr=False)
    name: str | None = None
    definition: str = field(default="", repr=False)
    trigger_options: Mapping[str, Any] | None = None

    def trigger(self, **options: Any) -> Self:
        """Return the stream with another trigger: ``processingTime="5 seconds"`` or ``availableNow=True``.

        Raises:
            OptionError: the trigger is unknown, or the number of triggers is not one.
        """
        return replace(self, trigger_options=checked_trigger(options))

    def _location(self, df: DataFrame, address: StoreAddress, writes: Sequence[str]) -> str:
        """Return the checkpoint location as Spark has it.

        Args:
            address: the absolute address of the store.
            writes: the tables and queues that the stream writes.

        Raises:
            AlreadyExistsError: the default location has the checkpoint of another stream.
            UnsupportedError: the store of the checkpoint has no files.
        """
        checkpoint = self.checkpoint
        if checkpoint is None:
            with address.open() as store:
                checkpoint = default_checkpoint(store, self.name)
                claim(store, checkpoint, self.name, writes, self.definition)
        return sink_checkpoint(checkpoint, address, df.sparkSession)

    def _start(self, df: DataFrame, mode: str, location: str, write: BatchFunction) -> StreamingQuery:
        """Start the query.

        Args:
            location: the checkpoint location as Spark has it.
            write: writes each batch. Spark Connect pickles it.

        Raises:
            OptionError: Spark cannot write the checkpoint, or does not accept the trigger.
        """
        clear_unfinished_start(location)
        write = with_short_errors(write)
        stream = df.writeStream.outputMode(mode).option("checkpointLocation", location)
        if self.name:
            stream = stream.queryName(self.name)
        if self.trigger_options:
            stream = triggered(stream, self.trigger_options)
        with checkpoint_errors(self.checkpoint or location):
            # Over Spark Connect, the function runs in a process of the server.
            return stream.foreachBatch(sent(write) if is_connect(df.sparkSession) else write).start()
