"""``MERGE INTO`` as a stream: its checks, its explanation, and `merge`, the same in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.batches.sinks.targets import check_columns
from headrace.errors import OptionError, SchemaError, SqlError, UnsupportedError, shown
from headrace.following.jobs import FollowedJobs
from headrace.formats.option_checks import check_options, option_texts
from headrace.formats.registry import format_named, source_of
from headrace.model.tables.change_columns import ROW_KEY
from headrace.model.tables.changes import RowChange
from headrace.model.types import can_hold, type_name
from headrace.options.option import SINK
from headrace.ports import Queue
from headrace.spark.batch_tasks import publishing
from headrace.spark.default_checkpoint import given_checkpoint
from headrace.spark.own_source import check_no_feedback
from headrace.spark.query_start import BatchedStream
from headrace.spark.stream_arguments import checked_trigger, format_name
from headrace.stores.registry import open as open_store
from headrace.streaming_sql.catalog import Catalog
from headrace.streaming_sql.language.cursor import Cursor
from headrace.streaming_sql.language.lexer import quote_name, tokenize
from headrace.streaming_sql.language.merge_grammar import merge_body
from headrace.streaming_sql.language.merge_plan import PREIMAGE, MergePlan, plan_merge
from headrace.streaming_sql.language.merge_queries import MergeQueries
from headrace.streaming_sql.language.merge_statement import Merge, MergeAction
from headrace.streaming_sql.merging import MergeBatches, sql_over, sql_over_named
from headrace.streaming_sql.providers import is_headrace
from headrace.streaming_sql.scripts import fingerprint
from headrace.streaming_sql.secrets import secret_values
from headrace.streaming_sql.stream_kinds import DefinedStream, ReadyStream, StreamKind, analyzed_plan
from headrace.streaming_sql.stream_sinks import check_sink_options, sink_options
from headrace.streaming_sql.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class MergeStream(BatchedStream):
    """A MERGE that `start` starts. `merge` creates it."""

    df: DataFrame
    batches: MergeBatches
    rows_per_write: int | None = None

    def start(self) -> StreamingQuery:
        """Start the query.

        Raises:
            OptionError: Spark cannot write the checkpoint, or does not accept the trigger.
        """
        with open_store(self.store_url, **self.store_options) as store:
            # The absolute URL: tasks may have another working directory.
            url, identity = store.url, store.identity()
        location = self._location(self.df, url, [target.name for target in self.batches.targets])
        publish = publishing(
            url,
            self.store_options,
            identity,
            self.batches.targets,
            location,
            self.batches.stage,
            stateful=True,
            rows_per_write=self.rows_per_write,
        )
        return self._start(self.df, "update", location, publish)


def merge(
    spark: SparkSession,
    text: str,
    *,
    scans: Mapping[str, DataFrame],
    checkpoint: str | os.PathLike[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    name: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    format: str = "headrace",
    options: Mapping[str, str] | None = None,
) -> MergeStream:
    """Merge a stream into a table by a ``MERGE INTO`` statement. Each batch is published atomically and once.

    ::

        changes = spark.readStream.format("headrace").option("store", "shop").option("tunnel", "t").load()
        headrace.merge(
            spark,
            '''MERGE INTO copy t USING orders s ON t.id = s.id
               WHEN MATCHED AND s._change_type = 'delete' THEN DELETE
               WHEN MATCHED THEN UPDATE SET *
               WHEN NOT MATCHED AND s._change_type <> 'delete' THEN INSERT *''',
            scans={"orders": changes}, store="shop", checkpoint="checkpoints/copy",
        ).start()

    It is a text and not a chain of calls like ``DataFrame.mergeInto``: conditions as `Column` objects cannot be
    taken apart without Spark's internals, which Spark Connect does not have. docs/sql.md has the grammar.

    Args:
        text: the statement. The table that it names is a table of the store.
        scans: the streaming DataFrames that the statement names.
        checkpoint: the checkpoint location, as for `headrace.write_stream`; a stream with a name may leave it out.
        store: the store's path or URL.
        name: the query's name.
        trigger: as for Spark's ``trigger``.
        format: ``headrace``; or ``tablestore`` or ``yt``, with the store in the ``options`` of that format.
        options: further options of the format for writing streams.

    Returns:
        A stream; its ``start()`` returns Spark's ``StreamingQuery``.

    Raises:
        SqlError: the statement is not a MERGE that a stream can run.
        SchemaError: the values do not fit the columns of the table.
        UnsupportedError: the store has no transactions, and a repeated batch could give another result.
        OptionError: an option is missing or invalid.
        pyspark.errors.AnalysisException: Spark cannot resolve an expression.
    """
    if not isinstance(text, str):
        raise OptionError("a statement must be a text", received=shown(text), valid="MERGE INTO …")
    checkpoint_location = given_checkpoint(checkpoint, name)
    lexed = tokenize(text)
    tokens = lexed.tokens[:-1] if lexed.tokens and lexed.tokens[-1].is_symbol(";") else lexed.tokens
    if not tokens:
        raise SqlError("the statement is empty", valid="MERGE INTO …")
    body = merge_body(Cursor(text, lexed.text, tokens))
    given = option_texts(options, "merge")
    arguments = option_texts({"store": store, "table": str(body.target)}, "merge")
    provider = format_name(format)
    check_options(format_named(provider), [*given, *arguments], use=SINK, place=f"merge with format {provider}")
    frame = _source(spark, body, scans)
    ready = _checked(spark, body, frame, provider, {**given, **arguments})
    return replace(
        ready,
        checkpoint=checkpoint_location,
        name=name,
        trigger_options=None if trigger is None else checked_trigger(trigger),
    )


def _source(spark: SparkSession, body: Merge, scans: Mapping[str, DataFrame]) -> DataFrame:
    # A common table expression, so that views of the session keep their names.
    frames = {f"__headrace_merge_scan{index}_": frame for index, frame in enumerate(scans.values())}
    named = [f"{quote_name(scan)} AS (SELECT * FROM {frame})" for scan, frame in zip(scans, frames, strict=True)]
    definitions = f"WITH {', '.join(named)} " if named else ""
    return sql_over_named(spark, f"{definitions}SELECT * FROM {_relation(body.source.text, body)}", frames)


def _relation(source: str, body: Merge) -> str:
    return f"{source} AS {quote_name(body.source_alias)}"


def _checked(
    spark: SparkSession, body: Merge, frame: DataFrame, provider: str, options: Mapping[str, str]
) -> MergeStream:
    """Check a MERGE against its target; return it without name, trigger and checkpoint.

    Args:
        frame: the rows of the source.
        options: the options of the sink, with secrets.
    """
    if not frame.isStreaming:
        raise SqlError(
            "the source of this MERGE is not a stream", remedy="merge from a scan: CREATE SCAN … ON … USING STREAM"
        )
    source = source_of(provider, options)
    location = source.location
    if source.row_change() is not RowChange.PUT:
        raise OptionError(
            "the clauses of a MERGE say how rows are written",
            received=f"rowChange {source.row_change()}",
            remedy="leave out the option",
        )
    with location.open_store() as store:
        table = source.open_sink(store)
        if isinstance(table, Queue):
            raise SqlError(
                "a queue only appends rows, so that it cannot be the target of MERGE",
                received=table.name,
                remedy="INSERT INTO appends to it",
            )
        FollowedJobs(store).check_other(table.name, "this MERGE")
        check_no_feedback(frame.schema, store, table.name, "this MERGE")
        schema, capabilities = table.schema, store.capabilities
        row_key = [field.name for field in frame.schema if ROW_KEY in field.metadata]
        plan = plan_merge(body, schema, _different(frame.columns), row_key)
    if not capabilities.transactions and (obstacle := plan.replay_obstacle()) is not None:
        raise UnsupportedError(
            f"the store of {table.name!r} has no transactions, and a repeated batch of this MERGE could give "
            f"another result: {obstacle}",
            remedy="write values of the source only, the same ones in UPDATE and INSERT; or merge into a store with "
            "transactions",
        )
    queries = MergeQueries(
        plan,
        tuple(frame.columns),
        schema.primary_key,
        tuple(column.name for column in schema.attributes),
        repeatable=not capabilities.transactions,
    )
    batches = MergeBatches(queries, table.name, schema, location.columns)
    _check_types(spark, batches, frame)
    return MergeStream(
        df=frame,
        batches=batches,
        store_url=location.store_url,
        store_options=location.store_options,
        checkpoint=None,
        definition=fingerprint(body.text),
        rows_per_write=source.rows_per_write(lambda setting: spark.conf.get(setting, None)),
    )


def _different(columns: list[str]) -> list[str]:
    """Return column names, or raise `SqlError` if two are the same to Spark."""
    seen: set[str] = set()
    for column in columns:
        if column.lower() in seen:
            raise SqlError("the source has two columns of the same name", received=column, remedy="rename one: AS …")
        seen.add(column.lower())
    return columns


def _check_types(spark: SparkSession, batches: MergeBatches, frame: DataFrame) -> None:
    """Let Spark analyse all expressions, and compare their types with the target's."""
    queries, schema = batches.queries, batches.schema
    where = f"table {batches.table!r}"
    rows = spark.createDataFrame([], frame.schema)
    given = _arrow(sql_over(spark, queries.keys, rows).select([quote_name(name) for name in queries.key_columns]))
    named = [field.with_name(name) for field, name in zip(given, queries.key_names, strict=True)]
    check_columns(pa.schema(named), schema, where)
    looked_up = batches.empty_rows(spark, sql_over(spark, queries.keyed, rows).schema)
    types: dict[str, set[pa.DataType]] = {}
    for clause in (*queries.plan.matched, *queries.plan.not_matched):
        kept = queries.written if clause.action is MergeAction.UPDATE else ()
        for name in set(kept) - clause.values.keys():
            types.setdefault(name, set()).add(schema.column(name).type)
        if clause.values:
            columns = _arrow(sql_over(spark, partial(queries.expressions, clause), looked_up))
            check_columns(columns, schema, where)
            for field in columns:
                types.setdefault(field.name, set()).add(field.type)
    for name, found in types.items():
        _check_same_kind(name, found, schema.column(name).type)
    # Spark analyses a query when its columns are asked for.
    assert sql_over(spark, queries.decided, looked_up).columns


def _check_same_kind(column: str, found: set[pa.DataType], wanted: pa.DataType) -> None:
    """Raise `SchemaError` if Spark would convert the values of a column to a common type and change some."""
    given = [each for each in found if each != pa.null()]
    if all(can_hold(one, other) for one, other in permutations(given, 2)):
        return
    raise SchemaError(
        f"the values of column {column!r} have different types in the clauses",
        received=sorted(map(type_name, given)),
        valid=type_name(wanted),
        remedy=f"CAST(… AS {type_name(wanted)}) in each clause",
    )


def _arrow(frame: DataFrame) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema, timezone="UTC")


class MergeStreams(StreamKind):
    """``MERGE INTO``: rows of the target are put and deleted by key."""

    def __init__(self, spark: SparkSession, catalog: Catalog, tables: Tables) -> None:
        self._spark = spark
        self._catalog = catalog
        self._tables = tables

    def prepare(self, stream: DefinedStream) -> ReadyStream:
        ready, secrets = self._checked(stream)
        options = stream.options
        named = replace(ready, checkpoint=options.checkpoint, name=stream.name, trigger_options=options.trigger)
        return ReadyStream(named.start, secrets)

    def properties(self, stream: DefinedStream) -> list[tuple[str, str]]:
        ready, _ = self._checked(stream)
        plan, queries = ready.batches.queries.plan, ready.batches.queries
        keys = ", ".join(f"{name} = {key}" for name, key in zip(queries.key_names, plan.keys, strict=True))
        rows = [("key", keys)]
        rows += [("clause", _clause_text(clause.text, clause.values)) for clause in (*plan.matched, *plan.not_matched)]
        rows.append(("order", _order_text(plan)))
        rows.append(("target rows", f"looked up by key: {', '.join(plan.looked_up)}"))
        rows.append(("replay", _replay_text(queries)))
        return rows

    def plan(self, stream: DefinedStream) -> str:
        return analyzed_plan(self._spark, f"SELECT * FROM {self._relation(stream)}")

    def _relation(self, stream: DefinedStream) -> str:
        body = _merge(stream)
        return _relation(self._tables.rewritten(body.source), body)

    def _checked(self, stream: DefinedStream) -> tuple[MergeStream, frozenset[str]]:
        body, target, options = _merge(stream), stream.target, stream.options
        if target is None or not is_headrace(target.provider):
            raise SqlError(
                "the target of a MERGE in a stream must be a table of format headrace, tablestore or yt",
                received=str(body.target),
                remedy="CREATE TABLE … USING headrace OPTIONS (…) defines one",
            )
        if options.output_mode == "complete":
            raise OptionError(
                "a MERGE has no complete mode: the rows of a batch are changes",
                received=options.output_mode,
                valid="append, update",
            )
        if options.overwrite:
            raise OptionError("option overwrite has no effect: a MERGE follows changes", remedy="leave it out")
        given = stream.statement.options
        check_sink_options(stream.name, target, given, options)
        self._tables.create_views_for(body.using)
        frame = self._spark.sql(f"SELECT * FROM {self._relation(stream)}")
        target_options = sink_options(target, options)
        ready = _checked(self._spark, body, frame, target.provider.lower(), target_options)
        return ready, frozenset(secret_values(given) | secret_values(target_options))


def _merge(stream: DefinedStream) -> Merge:
    body = stream.statement.body
    assert isinstance(body, Merge)
    return body


def _clause_text(text: str, values: Mapping[str, str]) -> str:
    if not text.endswith("*"):
        return text
    return f"{text} ({', '.join(values) or 'no columns'})"


def _order_text(plan: MergePlan) -> str:
    if not plan.ordered:
        return "none: several rows of a key in a batch are an error"
    preimages = f"without {PREIMAGE}" if plan.drops_preimages else f"with {PREIMAGE}"
    last = f"the last change of each key in a batch, by _commit_version and position in the log, {preimages}"
    if not plan.row_key:
        return last
    return f"{last}; a source row ({', '.join(plan.row_key)}) that gives up a key does not delete one that takes it"


def _replay_text(queries: MergeQueries) -> str:
    if not queries.repeatable:
        return "a published batch is not merged again"
    return (
        "the store has no transactions: a repeated batch gives the same rows, because the clauses write values of the "
        "source only, the same ones in UPDATE and INSERT"
    )
