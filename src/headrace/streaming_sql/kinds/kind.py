"""The kinds of streams, by the statement in ``CREATE STREAM``: how each is checked, started and explained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from headrace.derived.mirror.statement import Mirror
from headrace.errors import OptionError, SqlError
from headrace.formats.source import Source
from headrace.options.secrets import secret_values
from headrace.spark.batched_stream import SinkArguments
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.format_options import check_sink_options, sink_options
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.stream_options import StreamOptions
from headrace.streaming_sql.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class DefinedStream:
    """A stream as its statement defines it.

    Attributes:
        statement: the statement.
        options: its options, with the values of environment variables.
        target: the definition of the table that it writes; None for one of Spark's own tables.
        checkpoint: the checkpoint location, also the default one.
    """

    statement: st.CreateStream
    options: StreamOptions
    target: TableDefinition | None
    checkpoint: str

    @property
    def name(self) -> str:
        return str(self.statement.name)

    def sink_options(self) -> dict[str, str]:
        """Return the options of the sink: those of the target, overridden by those of the stream.

        Raises:
            OptionError: neither the stream nor the sink knows an option.
        """
        if self.options.schema_change is not None and not isinstance(self.statement.body, Mirror):
            raise OptionError(
                f"option schemaChange of stream {self.name} has no effect: it is no mirror", remedy="leave it out"
            )
        check_sink_options(self.name, self.target, self.statement.options, self.options)
        return sink_options(self.target, self.options)

    def arguments(self, spark: SparkSession, sink: Source) -> SinkArguments:
        """Return the arguments of the stream into a sink."""
        options = self.options
        return SinkArguments.of(sink, spark, checkpoint=options.checkpoint, name=self.name, trigger=options.trigger)

    def ready(self, start: Callable[[], StreamingQuery], *options: Mapping[str, str]) -> ReadyStream:
        """Return the stream with its start, and the secrets in its options and in others."""
        found = (secret_values(each) for each in (self.statement.options, *options))
        return ReadyStream(start, frozenset().union(*found))


@dataclass(frozen=True)
class ReadyStream:
    """A stream whose statement is checked.

    Attributes:
        start: starts its query.
        secrets: texts that messages and the workspace must not contain.
    """

    start: Callable[[], StreamingQuery]
    secrets: frozenset[str] = field(repr=False)


class StreamKind(ABC):
    """The streams of one kind of statement."""

    table_read: ClassVar[str] = "batch read"
    """How a stream reads a table that it names without a scan."""

    def __init__(self, spark: SparkSession, catalog: Catalog, tables: Tables) -> None:
        self._spark = spark
        self._catalog = catalog
        self._tables = tables

    def check_replaceable(self, stream: DefinedStream) -> None:
        """Raise `SqlError` if a stream of this kind cannot get another text while it keeps its checkpoint."""
        raise SqlError(
            "only a stream that follows tables can be replaced: the state of others is Spark's",
            received=f"CREATE OR REPLACE STREAM {stream.name}",
            remedy=f"DROP STREAM {stream.name}, and CREATE STREAM; with another checkpointLocation if the new query "
            "does not fit the state of the old one",
        )

    def change(self, stream: DefinedStream) -> list[tuple[str, str]]:
        """Return what a new text of a stream changes, as properties; see `check_replaceable`."""
        self.check_replaceable(stream)
        return []

    @abstractmethod
    def prepare(self, stream: DefinedStream) -> ReadyStream:
        """Check a stream before it is recorded in the workspace."""

    @abstractmethod
    def properties(self, stream: DefinedStream) -> list[tuple[str, str]]:
        """Return the properties in ``EXPLAIN STREAM`` that only this kind has, after checking the stream."""

    def plan(self, stream: DefinedStream) -> str:
        """Return the plan of the stream's query: Spark's, unless the kind has another one."""
        return self._analyzed_plan(self._tables.rewritten(stream.statement.body.reads))

    def _analyzed_plan(self, query: str) -> str:
        """Return Spark's analyzed plan of a query in Spark SQL."""
        text = self._spark.sql(f"EXPLAIN EXTENDED {query}").collect()[0][0]
        # Spark optimizes a streaming plan again for each batch, so only the analyzed plan is meaningful.
        _, _, plan = str(text).partition("== Analyzed Logical Plan ==\n")
        plan, _, _ = plan.partition("== Optimized Logical Plan ==")
        return plan.strip()
