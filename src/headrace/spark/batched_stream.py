"""What `write_stream`, `follow`, `mirror` and `merge` have in common: their arguments, and the start of their queries.

A Python function writes the batches of such a query into a store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from headrace.errors import OptionError
from headrace.formats.option_checks import check_options, option_texts
from headrace.formats.registry import FORMATS, format_named, source_of
from headrace.formats.source import Source
from headrace.options.names import check_names
from headrace.options.option import SINK
from headrace.ports import Store
from headrace.spark import old_streams
from headrace.spark.batch_errors import with_short_errors
from headrace.spark.batch_tasks import LocatedSink, StreamBatches
from headrace.spark.checkpoint import clear_unfinished_start
from headrace.spark.checkpoint_location import checkpoint_errors, sink_checkpoint
from headrace.spark.connect import is_connect
from headrace.spark.default_checkpoint import default_checkpoint, given_checkpoint, record_stream
from headrace.spark.executors import sent
from headrace.stores.registry import StoreAddress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

OUTPUT_MODES = ("append", "update", "complete")
TRIGGERS = ("processingTime", "availableNow", "once", "continuous", "realTime")
"""The triggers of Spark. Spark rejects the last two for Python sources."""


@dataclass(frozen=True, kw_only=True)
class SinkArguments:
    """Where a stream writes, and how Spark runs it. Picklable. Its text shows no secret.

    Attributes:
        store: the address of the store.
        checkpoint: the checkpoint location; None for the default one.
        name: the query's name.
        trigger: the trigger; None for Spark's default.
        rows_per_write: the maximum number of rows in one write to the store; None is no limit.
    """

    store: StoreAddress
    # It can have a password.
    checkpoint: str | None = field(repr=False)
    name: str | None = None
    trigger: Mapping[str, Any] | None = None
    rows_per_write: int | None = None

    @classmethod
    def of(
        cls,
        sink: Source,
        spark: SparkSession,
        *,
        checkpoint: str | os.PathLike[str] | None,
        name: str | None,
        trigger: Mapping[str, Any] | None,
    ) -> Self:
        """Return the arguments of a stream into a sink.

        Raises:
            OptionError: an argument is invalid, both name and checkpoint are missing, or no option names a store.
        """
        return cls(
            checkpoint=given_checkpoint(checkpoint, name),
            store=sink.location.store,
            name=name,
            trigger=None if trigger is None else checked_trigger(trigger),
            rows_per_write=sink.rows_per_write(lambda setting: spark.conf.get(setting, None)),
        )


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
        """Return the sink as other processes find it, and record the stream in its checkpoint.

        Args:
            store: the store of the sink.
            writes: the tables and queues that the stream writes.

        Raises:
            AlreadyExistsError: the default location has the checkpoint of another stream.
            UnsupportedError: the store of the checkpoint has no files.
        """
        self._record(store, writes)
        return self._sink(df.sparkSession, store)

    def _record(self, store: Store, writes: Sequence[str], *, replace: bool = False) -> None:
        """Record the stream in its default checkpoint; with ``replace``, also if its definition was another one."""
        if self.arguments.checkpoint is None:
            location = default_checkpoint(store, self.arguments.name)
            record_stream(store, location, self.arguments.name, writes, self.definition, replace=replace)

    def _sink(self, spark: SparkSession, store: Store) -> LocatedSink:
        """Return the sink as other processes find it."""
        address, checkpoint = self.arguments.store.of(store), self.arguments.checkpoint
        if checkpoint is None:
            checkpoint = default_checkpoint(store, self.arguments.name)
        return LocatedSink(address, sink_checkpoint(checkpoint, address, spark), self.arguments.rows_per_write)

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
        trigger = self.arguments.trigger or {}
        if trigger:
            stream = triggered(stream, old_streams.trigger_of(trigger))
        with checkpoint_errors(self.arguments.checkpoint or location):
            # Over Spark Connect, the function runs in a process of the server.
            stream = stream.foreachBatch(sent(write) if is_connect(df.sparkSession) else write)
            return old_streams.started(stream.start, trigger)


def sink_of(function: str, format: object, options: Mapping[str, Any] | None, **named: object) -> Source:
    """Return the sink that the arguments of a function name; see `given_options`."""
    return source_of(_format_name(format), given_options(function, format, options, SINK, **named))


def given_options(
    function: str, format: object, options: Mapping[str, Any] | None, use: str, **named: object
) -> dict[str, str]:
    """Return the texts of the options of a format, and of the arguments that are options.

    Args:
        function: the name of the function, for messages.
        use: the use that the options are for.
        named: the arguments that are options; None means not set.

    Raises:
        OptionError: the format or an option is unknown, or a value is not a text, number or boolean.
    """
    name = _format_name(format)
    given, arguments = option_texts(options, function), option_texts(named, function)
    check_options(format_named(name), [*given, *arguments], use=use, place=f"{function} with format {name}")
    return given | arguments


def _format_name(given: object) -> str:
    return _one_of("format", given, tuple(FORMATS))


def output_mode(given: object) -> str:
    """Return an output mode in lower case."""
    return _one_of("mode", given, OUTPUT_MODES)


def _one_of(name: str, given: object, valid: tuple[str, ...]) -> str:
    if not isinstance(given, str) or given.lower() not in valid:
        raise OptionError(f"unknown value of {name}", received=repr(given)[:200], valid=valid)
    return given.lower()


def checked_trigger(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trigger: one name with its value.

    Raises:
        OptionError: the name is unknown, or the number of entries is not one.
    """
    if not isinstance(given, Mapping):
        raise OptionError(
            "a trigger must be a dict with one entry", received=type(given).__name__, valid='{"availableNow": True}'
        )
    check_names("a trigger", given, TRIGGERS)
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        raise OptionError("a trigger must have one entry", received=", ".join(named) or "none", valid=TRIGGERS)
    return named


def triggered(stream: DataStreamWriter, trigger: Mapping[str, Any]) -> DataStreamWriter:
    """Return a stream with a trigger.

    Raises:
        OptionError: Spark rejects the value of the trigger.
    """
    from pyspark.errors import PySparkException

    try:
        return stream.trigger(**trigger)
    except (PySparkException, ValueError, TypeError) as error:
        raise OptionError(
            "invalid trigger",
            received=repr(dict(trigger))[:200],
            valid='processingTime="5 seconds", or availableNow=True',
        ) from error
