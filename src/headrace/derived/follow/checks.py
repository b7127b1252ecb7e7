"""Spark's view of a followed query: whether it is valid, its types, and whether the split has its meaning.

The original text is analysed over empty views with the scans' columns, so that stars do not contain the sign and the
order. Then the parts of the split are analysed. The operators of all plans must be known ones: an operator that is not
on the list, such as that of an aggregate which headrace does not know, is refused by its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.derived.follow.determinism import check_deterministic
from headrace.derived.follow.empty_views import EmptyViews
from headrace.derived.follow.origins import Origin, Origins
from headrace.derived.follow.spark_names import SparkNames
from headrace.derived.follow.split import FollowedQuery, split_query, with_views
from headrace.derived.follow.text_settings import check_text_settings
from headrace.derived.own_names import ALIVE, GROUPS_VIEW, KEEP, ORDER, PREFIX, SIGN, STATE, is_own
from headrace.errors import SqlError
from headrace.spark.analysed_plans import analysed_plan, operators

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


@dataclass(frozen=True)
class CheckedQuery:
    """A followed query and the types that Spark gives it.

    Attributes:
        query: the query, split.
        schema: the output columns.
        rows: the columns of the rows SQL.
        groups: the columns of the view that the result SQL reads; None for a query without aggregates.
        origins: for each branch of a query without aggregates the scan and column of which each output column is a
            copy, or None.
        time_zone: the session's time zone, on which the values of expressions can depend.
    """

    query: FollowedQuery
    schema: StructType
    rows: StructType
    groups: StructType | None
    origins: tuple[tuple[Origin | None, ...], ...]
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
    check_text_settings(spark)
    for name, columns in scans.items():
        _refuse_own_names(f"scan {name}", columns)
    with EmptyViews(spark, scans) as views:
        query = split_query(text, scans, lambda with_, source: SparkNames(spark, views.plain, with_, source))
        return _check(spark, text, query, scans, views)


def _check(
    spark: SparkSession, text: str, query: FollowedQuery, scans: Mapping[str, StructType], views: EmptyViews
) -> CheckedQuery:
    from pyspark.sql.types import BinaryType, BooleanType, StructField, StructType

    time_zone = str(spark.conf.get("spark.sql.session.timeZone"))
    static = _static_columns(spark, query)
    plain = with_views(text, views.plain)
    schema = spark.sql(plain).schema
    plan = _check_operators(spark, plain, aggregates=1 if query.is_aggregate else 0)
    _check_names(schema)
    # Without a semicolon or a comment at its end.
    whole = query.tokens.render(0, len(query.tokens.tokens), [])
    check_deterministic(spark, with_views(views.without_static(whole, static), views.plain), plan)
    rows_sql = with_views(query.rows_sql, views.signed)
    rows = _analysed(spark, rows_sql)
    _check_operators(spark, rows_sql, aggregates=0)
    if query.result_sql is None or query.types_sql is None:
        _check_same(schema, rows, [*rows.names[:-2], SIGN, ORDER])
        origins = Origins(spark, query, scans, views)
        return CheckedQuery(
            query, schema, rows, None, tuple(origins.of(select, schema) for select in query.selects), time_zone
        )
    groups = _analysed(spark, with_views(query.types_sql, views.signed))
    _refuse_collations(rows)
    own = [StructField(ALIVE, BooleanType(), nullable=False), StructField(STATE, BinaryType())]
    result_sql = with_views(query.result_sql, {GROUPS_VIEW: views.view(StructType([*groups.fields, *own]))})
    result = _analysed(spark, result_sql)
    _check_operators(spark, result_sql, aggregates=0)
    _check_same(schema, result, [*result.names[:-2], KEEP, STATE])
    for item, column in zip(query.items, schema.names, strict=True):
        if item.name is not None and item.name.lower() != column.lower():
            raise SqlError(
                "Spark gives this column another name than its text", received=column, remedy="name it with AS"
            )
    return CheckedQuery(query, schema, rows, groups, (), time_zone)


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


def _static_columns(spark: SparkSession, query: FollowedQuery) -> dict[str, StructType]:
    """Return the columns of the static tables by name.

    Raises:
        SqlError: one of them is a stream, or has a column with a name of headrace.
    """
    from pyspark.errors import AnalysisException

    found: dict[str, StructType] = {}
    for name in query.others:
        try:
            table = spark.table(name)
            streaming = table.isStreaming
        except AnalysisException:
            # A name that needs quotes, or a path to files: no view of a stream.
            continue
        if streaming:
            raise SqlError(
                f"{name} is a stream, and a followed query joins static tables only",
                remedy="name the followed scan itself, or read the other table with USING BATCH",
            )
        _refuse_own_names(name, table.schema)
        found[name] = table.schema
    return found


def _refuse_own_names(relation: str, schema: StructType) -> None:
    own = [name for name in schema.names if is_own(name)]
    if own:
        raise SqlError(
            f"{relation} has a column whose name begins with {PREFIX}, as headrace's own columns do",
            received=", ".join(own),
            remedy="rename it, or make a view that renames it and has another name",
        )


def _check_operators(spark: SparkSession, sql: str, *, aggregates: int) -> str:
    """Raise `SqlError` for an operator that a followed query cannot have; return the analysed plan."""
    plan = analysed_plan(spark, sql)
    counts = Counter(operators(plan))
    found = counts.pop("Aggregate", 0)
    unknown = sorted(set(counts) - _OPERATORS)
    if unknown or found != aggregates:
        named = ", ".join(unknown) if unknown else f"{found} times Aggregate instead of {aggregates}"
        raise SqlError(
            "a followed query cannot have an operator of this query's plan",
            received=named,
            remedy="leave it out; aggregates that can be followed: count, sum, avg, min, max, count(DISTINCT …)",
        )
    return plan


def _check_names(schema: StructType) -> None:
    twice = [name for name, times in Counter(name.lower() for name in schema.names).items() if times > 1]
    if twice:
        raise SqlError("two output columns have one name", received=twice[0], remedy="name them with AS")


def _check_same(schema: StructType, found: StructType, names: Sequence[str]) -> None:
    """Raise `SqlError` unless columns have the types of the query's columns, and then the last two of ``names``."""
    types = [field.dataType.simpleString() for field in schema]
    others = [field.dataType.simpleString() for field in found][:-2]
    if types != others or found.names != list(names):
        raise SqlError(
            "the query's parts do not have the types of the query", received=f"{others}", valid=f"{types}",
            remedy="simplify the query: headrace cannot follow it exactly",
        )  # fmt: skip
