"""`merge`: a ``MERGE INTO`` as a stream, with its checks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.batches.sinks.jobs import TargetJobs
from headrace.batches.sinks.targets import check_columns
from headrace.derived.merge.batches import MergeRows, sql_over, sql_over_named
from headrace.derived.merge.plan import plan_merge
from headrace.derived.merge.queries import MergeQueries
from headrace.derived.merge.statement import Merge, MergeAction, merge_body
from headrace.derived.used_names import used_names
from headrace.errors import OptionError, SchemaError, SqlError, UnsupportedError, shown
from headrace.formats.source import Source
from headrace.model.own_names import PREFIX
from headrace.model.tables.change_columns import ROW_KEY
from headrace.model.tables.changes import RowChange
from headrace.model.types import can_hold, type_name
from headrace.ports import Queue
from headrace.spark.analysed_plans import passes_columns, plan_of
from headrace.spark.batch_tasks import PublishedBatches
from headrace.spark.batched_stream import BatchedStream, SinkArguments, sink_of
from headrace.spark.own_source import check_no_feedback
from headrace.spark.versions import arrow_schema
from headrace.sql_text.cursor import Cursor
from headrace.sql_text.lexer import fingerprint, quote_name, tokenize
from headrace.sql_text.query_text import QueryText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class MergeStream(BatchedStream):
    """A MERGE that `start` starts. `merge` creates it."""

    df: DataFrame
    rows: MergeRows

    def start(self) -> StreamingQuery:
        """Start the query.

        Raises:
            OptionError: Spark cannot write the checkpoint, or does not accept the trigger.
        """
        with self.arguments.store.open() as store:
            sink = self._located(self.df, store, [target.name for target in self.rows.targets])
        return self._start(self.df, "update", PublishedBatches(sink, self.rows))


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

    Examples:
        >>> copy = store.create_table("copies", {"id": "string", "price": "double"}, "id")
        >>> changes = spark.readStream.format("headrace").options(store="shop", tunnel="stats").load()
        >>> statement = '''MERGE INTO copies t USING orders s ON t.id = s.id
        ...     WHEN MATCHED AND s._change_type = 'delete' THEN DELETE
        ...     WHEN MATCHED THEN UPDATE SET price = s.price
        ...     WHEN NOT MATCHED AND s._change_type <> 'delete' THEN INSERT (id, price) VALUES (s.id, s.price)'''
        >>> stream = headrace.merge(
        ...     spark, statement, scans={"orders": changes}, store="shop", checkpoint="checkpoints/copies",
        ...     trigger={"availableNow": True},
        ... )
        >>> stream.start().awaitTermination(60)
        True
        >>> [row["id"] for row in copy]
        ['o1', 'o2']
    """
    if not isinstance(text, str):
        raise OptionError("a statement must be a text", received=shown(text), valid="MERGE INTO …")
    lexed = tokenize(text)
    tokens = lexed.tokens[:-1] if lexed.tokens and lexed.tokens[-1].is_symbol(";") else lexed.tokens
    if not tokens:
        raise SqlError("the statement is empty", valid="MERGE INTO …")
    body = merge_body(Cursor(text, lexed.text, tokens))
    sink = sink_of("merge", format, options, store=store, table=str(body.target))
    arguments = SinkArguments.of(sink, spark, checkpoint=checkpoint, name=name, trigger=trigger)
    return checked_merge(spark, body, _source(spark, body, scans), sink, arguments)


def _source(spark: SparkSession, body: Merge, scans: Mapping[str, DataFrame]) -> DataFrame:
    # A common table expression, so that views of the session keep their names.
    frames = {f"{PREFIX}merge_scan{index}_": frame for index, frame in enumerate(scans.values())}
    named = [f"{quote_name(scan)} AS (SELECT * FROM {frame})" for scan, frame in zip(scans, frames, strict=True)]
    definitions = f"WITH {', '.join(named)} " if named else ""
    return sql_over_named(spark, f"{definitions}SELECT * FROM {source_relation(body.source.text, body)}", frames)


def source_relation(source: str, body: Merge) -> str:
    """Return the relation of a FROM clause with the rows of the source."""
    return f"{source} AS {quote_name(body.source_alias)}"


def checked_merge(
    spark: SparkSession, body: Merge, frame: DataFrame, sink: Source, arguments: SinkArguments
) -> MergeStream:
    """Return the stream of a MERGE, after checking it against its target.

    Args:
        frame: the rows of the source.
    """
    if not frame.isStreaming:
        raise SqlError(
            "the source of this MERGE is not a stream", remedy="merge from a scan: CREATE SCAN … ON … USING STREAM"
        )
    location = sink.location
    if sink.row_change() is not RowChange.PUT:
        raise OptionError(
            "the clauses of a MERGE say how rows are written",
            received=f"rowChange {sink.row_change()}",
            remedy="leave out the option",
        )
    if sink.keeps_bad_rows():
        raise OptionError(
            "a MERGE keeps no bad rows: its clauses read the rows of the target, which would lack them",
            received="badRows=table",
            remedy="leave out option badRows",
        )
    with location.open_store() as store:
        table = sink.location.open(store)
        if isinstance(table, Queue):
            raise SqlError(
                "a queue only appends rows, so that it cannot be the target of MERGE",
                received=table.name,
                remedy="INSERT INTO appends to it",
            )
        TargetJobs(store).check_other(table.name, "this MERGE")
        check_no_feedback(frame, store, [table.name], "this MERGE")
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
    rows = MergeRows(queries, table.name, schema, location.columns, _used(body, frame, row_key))
    _check_types(spark, rows, frame)
    return MergeStream(arguments=arguments, definition=fingerprint(body.text), df=frame, rows=rows)


def _used(body: Merge, frame: DataFrame, row_key: Sequence[str]) -> str | None:
    """Return the names of the source's columns that a statement uses, as the setting `USED_COLUMNS`.

    None if it uses all, or reads the source through a query or DataFrame whose text it does not have.
    """
    if not passes_columns(plan_of(frame)):
        return None
    tokens = QueryText(body.text, strict=True)
    # In UPDATE SET * and INSERT *, a star is all columns, too.
    used = None if any(token.is_symbol("*") for token in tokens.tokens) else used_names(tokens)
    return None if used is None else json.dumps(sorted(used | {name.lower() for name in row_key}))


def _different(columns: list[str]) -> list[str]:
    """Return column names, or raise `SqlError` if two are the same to Spark."""
    seen: set[str] = set()
    for column in columns:
        if column.lower() in seen:
            raise SqlError("the source has two columns of the same name", received=column, remedy="rename one: AS …")
        seen.add(column.lower())
    return columns


def _check_types(spark: SparkSession, merged: MergeRows, frame: DataFrame) -> None:
    """Let Spark analyse all expressions, and compare their types with the target's."""
    queries, schema = merged.queries, merged.schema
    where = f"table {merged.table!r}"
    rows = spark.createDataFrame([], frame.schema)
    given = _arrow(sql_over(spark, queries.keys, rows).select([quote_name(name) for name in queries.key_columns]))
    named = [field.with_name(name) for field, name in zip(given, queries.key_names, strict=True)]
    check_columns(pa.schema(named), schema, where)
    looked_up = merged.empty_rows(spark, sql_over(spark, queries.keyed, rows).schema)
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
    return arrow_schema(frame.schema)
