"""The kinds of streams, by the statement in ``CREATE STREAM``: how each is checked, started and explained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from headrace.errors import OptionError, SqlError
from headrace.options.secrets import secret_values
from headrace.spark.analysed_plans import refuse_table_rows
from headrace.spark.sql_errors import order_errors
from headrace.sql_text.lexer import fingerprint
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.stream_options import StreamOptions
from headrace.streaming_sql.stream_sinks import check_sink_options, sink_options, start_query
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

    @abstractmethod
    def prepare(self, stream: DefinedStream) -> ReadyStream:
        """Check a stream before it is recorded in the workspace."""

    @abstractmethod
    def properties(self, stream: DefinedStream) -> list[tuple[str, str]]:
        """Return the properties in ``EXPLAIN STREAM`` that only this kind has, after checking the stream."""

    @abstractmethod
    def plan(self, stream: DefinedStream) -> str:
        """Return Spark's plan of the stream's query."""


class InsertStreams(StreamKind):
    """``INSERT INTO``: Spark's streaming query writes its result."""

    def __init__(self, spark: SparkSession, catalog: Catalog, tables: Tables) -> None:
        self._spark = spark
        self._catalog = catalog
        self._tables = tables

    def prepare(self, stream: DefinedStream) -> ReadyStream:
        insert, options, target = _insert(stream), stream.options, stream.target
        given = stream.statement.options
        check_sink_options(stream.name, target, given, options)
        frame = self._tables.query(insert)
        if not frame.isStreaming:
            raise SqlError(
                f"stream {stream.name} reads no stream",
                remedy="select from a scan: CREATE SCAN … ON … USING STREAM",
            )
        refuse_table_rows(frame, f"stream {stream.name}")
        if options.overwrite:
            raise OptionError(
                f"option overwrite of stream {stream.name} has no effect: it follows no table",
                remedy="leave it out; with outputMode 'complete' each batch replaces the rows of the target",
            )
        target_options = sink_options(target, options)
        text = fingerprint(insert.text)

        def start() -> StreamingQuery:
            table = str(insert.target)
            with order_errors(table):
                return start_query(self._spark, stream.name, frame, table, target, options, target_options, text)

        return ReadyStream(start, frozenset(secret_values(given) | secret_values(target_options)))

    def properties(self, stream: DefinedStream) -> list[tuple[str, str]]:
        check_sink_options(stream.name, stream.target, stream.statement.options, stream.options)
        return [("output mode", stream.options.output_mode)]

    def plan(self, stream: DefinedStream) -> str:
        return analyzed_plan(self._spark, self._tables.rewritten(stream.statement.body.reads))


def analyzed_plan(spark: SparkSession, query: str) -> str:
    """Return Spark's analyzed plan of a query in Spark SQL."""
    text = spark.sql(f"EXPLAIN EXTENDED {query}").collect()[0][0]
    # Spark optimizes a streaming plan again for each batch, so only the analyzed plan is meaningful.
    _, _, plan = str(text).partition("== Analyzed Logical Plan ==\n")
    plan, _, _ = plan.partition("== Optimized Logical Plan ==")
    return plan.strip()


def _insert(stream: DefinedStream) -> st.Insert:
    body = stream.statement.body
    assert isinstance(body, st.Insert)
    return body
