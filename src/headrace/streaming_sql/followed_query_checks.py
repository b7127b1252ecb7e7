"""Spark's view of a followed query: whether it is valid, its types, and whether the split has its meaning.

The original text is analysed over empty views with the scans' columns, so that stars do not contain ``__sign`` and
``__order``. Then the parts of the split are analysed. The operators of all plans must be known ones: an operator that
is not on the list, such as that of an aggregate which headrace does not know, is refused by its name.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import SqlError
from headrace.streaming_sql.language.followed_query import (
    ALIVE,
    GROUPS,
    KEEP,
    ORDER,
    SIGN,
    STATE,
    FollowedQuery,
    split_query,
    with_views,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_OPERATORS = frozenset(
    (
        "Project", "Filter", "Join", "SubqueryAlias", "View", "Union", "WithCTE", "CTERelationDef", "CTERelationRef",
        "ResolvedHint", "LocalRelation", "LogicalRDD", "Relation", "RelationV2", "OneRowRelation", "Range",
        "InMemoryRelation", "HiveTableRelation", "LogicalQueryStage", "DataSourceV2Relation", "Expand",
    )
)  # fmt: skip
_OF_THE_SESSION = re.compile(
    r"(?<![\w.`])(rand|randn|uuid|shuffle|now|localtimestamp|session_user|"
    r"current_(?:user|path|catalog|database|schema|timestamp|date|time))\("
)
_VARIABLE = re.compile(r"(?<![\w.`])variablereference\(([^)=]*)")
_NODE = re.compile(r"^[ :]*[+:]- '?([A-Za-z0-9]+)|^'?([A-Za-z0-9]+)")


@dataclass(frozen=True)
class CheckedQuery:
    """A followed query and the types that Spark gives it.

    Attributes:
        query: the query, split.
        schema: the output columns.
        rows: the columns of the rows SQL.
        groups: ``g0``… and ``s0``… of the view that the result SQL reads; None for a query without aggregates.
        time_zone: the session's time zone, on which the values of expressions can depend.
    """

    query: FollowedQuery
    schema: StructType
    rows: StructType
    groups: StructType | None
    time_zone: str


def read_followed_query(spark: SparkSession, text: str, scans: Mapping[str, StructType]) -> CheckedQuery:
    """Split and check a query.

    Args:
        text: Spark SQL, without the functions of the dialect.
        scans: for each followed scan its columns, without the columns of changes.

    Raises:
        SqlError: the query cannot be followed.
        AnalysisException, ParseException: the query is invalid, in Spark's words.
    """
    split_query(text, scans)  # Refusals by name precede Spark's messages.
    with _empty_views(spark, scans) as (plain, signed):
        columns: dict[str, set[str]] = {}

        def has_column(query: str, name: str) -> bool:
            if query not in columns:
                columns[query] = {column.lower() for column in spark.sql(with_views(query, signed)).columns}
            return name.lower() in columns[query]

        schema = spark.sql(with_views(text, plain)).schema
        query = split_query(text, scans, has_column)
        return _check(spark, text, query, schema, plain, signed)


def check_query(spark: SparkSession, text: str, query: FollowedQuery, scans: Mapping[str, StructType]) -> CheckedQuery:
    """Check a query that `split_query` has split; arguments and errors as for `read_followed_query`."""
    with _empty_views(spark, scans) as (plain, signed):
        return _check(spark, text, query, spark.sql(with_views(text, plain)).schema, plain, signed)


@contextmanager
def _empty_views(
    spark: SparkSession, scans: Mapping[str, StructType]
) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Create an empty view for each scan, without and with the sign and the order; yield their names by scan."""
    from pyspark.sql.types import ByteType, LongType, StructField, StructType

    own = [StructField(SIGN, ByteType(), nullable=False), StructField(ORDER, LongType(), nullable=False)]
    created: list[str] = []

    def view(schema: StructType) -> str:
        created.append(f"__headrace_{uuid.uuid4().hex}")
        spark.createDataFrame([], schema).createOrReplaceTempView(created[-1])
        return created[-1]

    try:
        plain = {name: view(schema) for name, schema in scans.items()}
        signed = {name: view(StructType([*schema.fields, *own])) for name, schema in scans.items()}
        yield plain, signed
    finally:
        for name in created:
            spark.catalog.dropTempView(name)


def _check(
    spark: SparkSession,
    text: str,
    query: FollowedQuery,
    schema: StructType,
    plain: Mapping[str, str],
    signed: Mapping[str, str],
) -> CheckedQuery:
    from pyspark.sql.types import BinaryType, BooleanType, StructField, StructType

    time_zone = str(spark.conf.get("spark.sql.session.timeZone"))
    _refuse_streams(spark, query)
    _check_operators(spark, with_views(text, plain), aggregates=1 if query.is_aggregate else 0)
    _check_names(schema)
    rows_sql = with_views(query.rows_sql, signed)
    rows = _analysed(spark, rows_sql)
    _check_operators(spark, rows_sql, aggregates=0)
    if query.result_sql is None or query.types_sql is None:
        _check_same(schema, StructType(rows.fields[:-2]))
        return CheckedQuery(query, schema, rows, None, time_zone)
    groups = _analysed(spark, with_views(query.types_sql, signed))
    _refuse_collations(rows)
    own = [StructField(ALIVE, BooleanType(), nullable=False), StructField(STATE, BinaryType())]
    view = f"__headrace_{uuid.uuid4().hex}"
    spark.createDataFrame([], StructType([*groups.fields, *own])).createOrReplaceTempView(view)
    try:
        result_sql = with_views(query.result_sql, {GROUPS: view})
        result = _analysed(spark, result_sql)
        _check_operators(spark, result_sql, aggregates=0)
    finally:
        spark.catalog.dropTempView(view)
    assert result.names[-2:] == [KEEP, STATE], "the result SQL ends with the column of HAVING and the state"
    _check_same(schema, StructType(result.fields[:-2]))
    for item, column in zip(query.items, schema.names, strict=True):
        if item.name is not None and item.name.lower() != column.lower():
            raise SqlError(
                "Spark gives this column another name than its text", received=column, remedy="name it with AS"
            )
    return CheckedQuery(query, schema, rows, groups, time_zone)


def _analysed(spark: SparkSession, sql: str) -> StructType:
    from pyspark.errors import AnalysisException, ParseException

    try:
        return spark.sql(sql).schema
    except (AnalysisException, ParseException) as error:
        raise SqlError(
            "the query cannot be split into rows and aggregates that can be followed",
            received=str(error).partition("\n")[0],
            remedy="outside of count, sum, avg, min and max write each group expression as in GROUP BY, in parentheses "
            "if it has operators, and no other column",
        ) from None


def _refuse_collations(rows: StructType) -> None:
    """Raise `SqlError` for texts whose equality or order is not that of their bytes."""
    for field in rows.fields:
        if " collate " in field.dataType.simpleString():
            raise SqlError(
                "a followed query cannot group or aggregate texts with a collation",
                received=field.dataType.simpleString(),
                remedy="write lower(…), or CAST(… AS STRING) COLLATE UTF8_BINARY",
            )


def _refuse_streams(spark: SparkSession, query: FollowedQuery) -> None:
    from pyspark.errors import AnalysisException

    for name in query.others:
        try:
            streaming = spark.table(name).isStreaming
        except AnalysisException:
            # A name that needs quotes, or a path to files: no view of a stream.
            continue
        if streaming:
            raise SqlError(
                f"{name} is a stream, and a followed query joins static tables only",
                remedy="name the followed scan itself, or read the other table with USING BATCH",
            )


def _check_operators(spark: SparkSession, sql: str, *, aggregates: int) -> None:
    explained = str(spark.sql(f"EXPLAIN EXTENDED {sql}").collect()[0][0])
    _, _, plan = explained.partition("== Analyzed Logical Plan ==\n")
    plan, _, _ = plan.partition("\n== Optimized Logical Plan ==")
    # The first line has the output columns.
    _, _, plan = plan.partition("\n")
    _refuse_session_values(plan)
    counts = Counter(operators(plan))
    found = counts.pop("Aggregate", 0)
    unknown = sorted(set(counts) - _OPERATORS)
    if unknown or found != aggregates:
        named = ", ".join(unknown) if unknown else f"{found} times Aggregate instead of {aggregates}"
        raise SqlError(
            "a followed query cannot have an operator of this query's plan",
            received=named,
            remedy="aggregates that can be followed: count, sum, avg, min, max, count(DISTINCT …)",
        )


def _refuse_session_values(plan: str) -> None:
    """Raise `SqlError` for a value of the session in a plan.

    The text need not show it: ``user`` can be a function, a function in SQL can call one, and a variable looks like a
    column.
    """
    found = _OF_THE_SESSION.search(plan)
    if found is not None:
        raise SqlError(
            "a followed query cannot have a function whose value for the same row changes",
            received=f"{found[1]}()",
            remedy="leave it out; `user` is such a function if no column has this name",
        )
    variable = _VARIABLE.search(plan)
    if variable is not None:
        raise SqlError(
            "a followed query cannot have a session variable: its batches run in another session, and its value can "
            "change",
            received=variable[1],
            remedy="write its value as a literal",
        )


def operators(plan: str) -> Iterator[str]:
    """Yield the names of the operators in the text of an analysed plan, except those below views.

    A line of a plan that a text with a line break inside of a literal begins is not an operator, and can look like one.
    Then the query is refused.
    """
    below: int | None = None
    for number, line in enumerate(plan.split("\n")):
        match = _NODE.match(line)
        if match is None or (number > 0 and match[1] is None):
            continue
        depth = match.start(1) if match[1] is not None else 0
        if below is not None and depth > below:
            continue
        name = str(match[1] or match[2])
        below = depth if name == "View" else None
        yield name


def _check_names(schema: StructType) -> None:
    twice = [name for name, times in Counter(name.lower() for name in schema.names).items() if times > 1]
    if twice:
        raise SqlError("two output columns have one name", received=twice[0], remedy="name them with AS")


def _check_same(schema: StructType, found: StructType) -> None:
    types = [field.dataType.simpleString() for field in schema]
    others = [field.dataType.simpleString() for field in found]
    if types != others:
        raise SqlError(
            "the query's parts do not have the types of the query", received=f"{others}", valid=f"{types}",
            remedy="simplify the query: headrace cannot follow it exactly",
        )  # fmt: skip
