"""`read_plan`: splits a query over followed scans, checks it, and lets Spark analyse its parts.

Spark says whether the query is valid, its types, and whether the split has its meaning. The original text is analysed
over empty views with the scans' columns, so that stars do not contain the sign and the order. Then the parts of the
split are analysed. The operators of all plans must be known ones: an operator that is not on the list, such as that of
an aggregate which headrace does not know, is refused by its name.

There are several ways to follow a query. What is an error in one of them, such as `NotSplit`, the next one may follow.
Users see the errors of the last one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headrace.derived.follow.analysis import EmptyViews, Origins, SparkNames
from headrace.derived.follow.determinism import check_deterministic
from headrace.derived.follow.gathered import (
    check_exact,
    gathered_query,
    gathering_of,
    grouped_query,
    joins_generators_alone,
    refuse_constructs,
)
from headrace.derived.follow.inner_queries import InnerQueries
from headrace.derived.follow.plan import FollowedPlan, groups_view
from headrace.derived.follow.refusals import NotSplit
from headrace.derived.follow.scans import FollowedScan
from headrace.derived.follow.settings import check_text_settings
from headrace.derived.follow.split import FollowedQuery, Grouping, split_query
from headrace.derived.gathering.arrangements import Gathering
from headrace.derived.gathering.signed_joins import signed_join
from headrace.derived.gathering.unique import unique_columns
from headrace.derived.own_names import (
    GROUPS_VIEW,
    KEEP,
    ORDER,
    SIGN,
    STATE,
    inner_groups,
    inner_table,
    output_column,
)
from headrace.derived.used_names import used_names
from headrace.errors import SchemaError, SqlError, UnsupportedError
from headrace.model.own_names import PREFIX, is_own
from headrace.model.types import type_name
from headrace.spark.analysed_plans import analysed_plan, operators
from headrace.spark.sql_errors import unlogged_errors
from headrace.spark.versions import arrow_schema
from headrace.sql_text.query_text import QueryText, with_views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_OPERATORS = frozenset(
    (
        "Project", "Filter", "Join", "SubqueryAlias", "View", "Union", "WithCTE", "CTERelationDef", "CTERelationRef",
        "ResolvedHint", "LocalRelation", "LogicalRDD", "Relation", "RelationV2", "OneRowRelation", "Range",
        "InMemoryRelation", "HiveTableRelation", "LogicalQueryStage", "DataSourceV2Relation", "Expand", "PipeOperator",
    )
)  # fmt: skip
# These need all rows that they are computed of, so a query with them runs over gathered rows.
_OF_SEVERAL_ROWS = frozenset(
    (
        "Aggregate", "Window", "Distinct", "Deduplicate", "Intersect", "Except", "Sort", "GlobalLimit", "LocalLimit",
        "Offset", "Generate", "LateralJoin", "Unpivot", "Tail",
    )
)  # fmt: skip
# These make several rows of one, whichever other rows there are.
_OF_ONE_ROW = frozenset(("Generate", "Unpivot"))
_OF_EQUAL_ROWS = frozenset(("Aggregate", "Distinct", "Deduplicate", "Intersect", "Except"))


def read_plan(
    spark: SparkSession, text: str, scans: Iterable[FollowedScan], columns: Sequence[str] | None = None
) -> FollowedPlan:
    """Split and check a query.

    Args:
        text: Spark SQL, without the functions of the dialect.
        columns: names for the output columns, by position; by default they have the names in the query.

    Raises:
        SqlError: the query cannot be followed.
        AnalysisException, ParseException: the query is invalid, in Spark's words.
    """
    check_text_settings(spark)
    known = {scan.name: scan for scan in scans}
    schemas = {name: scan.schema for name, scan in known.items()}
    for name, schema in schemas.items():
        _refuse_own_names(f"scan {name}", schema)
    # Parts of the query are tried, and Spark's error is then an answer. An error of the query itself is raised.
    with EmptyViews(spark, schemas) as views, unlogged_errors():
        checked = _read(spark, text, known, views)
    if columns is not None and len(columns) != len(checked.names):
        raise SqlError(
            "the column list and the query do not have the same number of columns",
            received=checked.names,
            valid=columns,
        )
    return checked if columns is None else checked.renamed(columns)


def _read(spark: SparkSession, text: str, scans: Mapping[str, FollowedScan], views: EmptyViews) -> FollowedPlan:
    """Return the plan of a query over signed rows, if it has one; else over gathered rows, with its groups or without.

    Raises:
        SqlError: it has none of these.
    """
    with suppress(SqlError, UnsupportedError):
        plan = _check(spark, text, split_query(text, scans, partial(SparkNames, spark, views.plain)), scans, views)
        plan.states(keeps_previous=False)
        return plan
    refuse_constructs(text)
    analysed = _analyse_text(spark, text, gathered_query(text, scans), views)
    if (queries := InnerQueries(text)).has_unnamed:
        # No batch reads the tables of a query that nothing names.
        text = queries.text
    plan = _gathered_plan(spark, text, scans, views, analysed)
    assert plan.gathering is not None
    if plan.gathering.reads_groups:
        with suppress(SqlError, UnsupportedError):
            return _InnerGroups(spark, scans, views, analysed, plan).read(text)
    return plan


def _gathered_plan(
    spark: SparkSession, text: str, scans: Mapping[str, FollowedScan], views: EmptyViews, analysed: _AnalysedText
) -> FollowedPlan:
    """Return the plan of a query over gathered rows, with its groups or without."""
    query = gathered_query(text, scans)
    whole = _check_gathered(spark, query, scans, views, analysed)
    with suppress(SqlError, UnsupportedError):
        kept = grouped_query(text, scans, partial(SparkNames, spark, views.plain))
        plan = _check_gathered(spark, kept, scans, views, analysed)
        plan.states(keeps_previous=False)
        return replace(plan, as_whole=whole)
    return whole


def _check(
    spark: SparkSession, text: str, query: FollowedQuery, scans: Mapping[str, FollowedScan], views: EmptyViews
) -> FollowedPlan:
    """Analyse a query and its parts, and check that the parts give the rows of the query."""
    time_zone = str(spark.conf.get("spark.sql.session.timeZone"))
    schema = _analyse_text(spark, text, query, views, _OPERATORS, aggregates=0 if query.groups is None else 1).schema
    read, names = tuple(scans[name] for name in query.scans), tuple(schema.names)
    rows_sql = with_views(query.rows_sql, views.signed)
    rows = _analysed(spark, rows_sql)
    _check_operators(spark, rows_sql)
    if query.groups is None:
        _check_same(schema, rows, [*rows.names[:-2], SIGN, ORDER], own=2)
        found = Origins(spark, query, {name: scan.schema for name, scan in scans.items()}, views)
        origins = tuple(found.of(select, schema) for select in query.selects)
        return FollowedPlan(read, names, query, schema, rows, None, origins, time_zone)
    types = _group_types(spark, query.groups, rows, views.signed)
    _check_results(spark, query.groups, schema, types, views)
    return FollowedPlan(read, names, query, schema, rows, types, (), time_zone)


class _AnalysedText(NamedTuple):
    """What Spark says about the text of a query.

    Attributes:
        schema: the output columns.
        plan: the text of the analysed plan.
        static: the columns of the static tables by name.
        tokens: the text.
    """

    schema: StructType
    plan: str
    static: Mapping[str, StructType]
    tokens: QueryText


def _analyse_text(
    spark: SparkSession,
    text: str,
    query: FollowedQuery,
    views: EmptyViews,
    known: frozenset[str] = _OPERATORS | _OF_SEVERAL_ROWS,
    *,
    aggregates: int = 0,
) -> _AnalysedText:
    """Analyse the text of a query, and check that it is deterministic.

    Args:
        known: the operators that the query can have, besides ``aggregates`` times Aggregate.
    """
    static = _static_columns(spark, query)
    plain = with_views(text, views.plain)
    schema = spark.sql(plain).schema
    plan = _check_operators(spark, plain, known, aggregates=aggregates)
    _check_names(schema)
    # Without a semicolon or a comment at its end.
    whole = query.tokens.render(0, len(query.tokens.tokens), [])
    check_deterministic(spark, with_views(views.without_static(whole, static), views.plain), plan)
    return _AnalysedText(schema, plan, static, query.tokens)


def _check_gathered(
    spark: SparkSession,
    query: FollowedQuery,
    scans: Mapping[str, FollowedScan],
    views: EmptyViews,
    analysed: _AnalysedText,
    *,
    inner: bool = False,
) -> FollowedPlan:
    """Analyse the rows and groups of a query that is evaluated as it is written, and find the rows over which.

    Args:
        analysed: the query; or the query in which it is an inner one, with the columns of the inner one.
        inner: it is an inner query, so that another one reads its groups.
    """
    schema, plan, static, tokens = analysed
    rows_sql = with_views(query.rows_sql, views.plain)
    rows = _analysed(spark, rows_sql)
    below = Counter(operators(analysed_plan(spark, rows_sql)))
    if _OF_EQUAL_ROWS & set(operators(plan)):
        _refuse_collations_in(plan, [scans[name].schema for name in query.scans])
    types = None
    if query.groups is not None:
        of_one_row = _OF_ONE_ROW | ({"LateralJoin"} if joins_generators_alone(query.rows_sql) else set())
        if (_OF_SEVERAL_ROWS - of_one_row) & below.keys():
            check_exact(query, [*(scans[name].schema for name in query.scans), *static.values()])
        types = _group_types(spark, query.groups, rows, views.plain)
        if not inner:
            _check_results(spark, query.groups, schema, types, views)
    else:
        _check_same(schema, rows, schema.names)
    read = tuple(scans[name] for name in query.scans)
    gathering = gathering_of(query, scans, static, below["Aggregate"], used_names(tokens))
    text = QueryText(query.rows_sql)
    unique = () if query.groups is not None else unique_columns(text, gathering.model, len(schema))
    gathering = replace(gathering, signed_sql=_signed_sql(spark, text, gathering, rows, views))
    time_zone = str(spark.conf.get("spark.sql.session.timeZone"))
    names = tuple(schema.names)
    return FollowedPlan(read, names, query, schema, rows, types, (), time_zone, gathering, unique=unique)


def _signed_sql(
    spark: SparkSession, text: QueryText, gathering: Gathering, rows: StructType, views: EmptyViews
) -> str | None:
    """Return the query for the rows that leave and that enter; None if one evaluation does not give these columns."""
    sql = signed_join(text, gathering.model, gathering.tables)
    if sql is not None:
        with suppress(SqlError):
            _check_same(rows, _analysed(spark, with_views(sql, views.signed)), [*rows.names, SIGN], own=1)
            return sql
    return None


def _group_types(spark: SparkSession, groups: Grouping, rows: StructType, of_scans: Mapping[str, str]) -> StructType:
    """Return the columns of the view that the result SQL reads, but its own."""
    types = _analysed(spark, with_views(groups.types_sql, of_scans))
    if any(" collate " in field.dataType.simpleString() for field in rows):
        raise NotSplit("groups of texts whose equality or order is not that of their bytes")
    return types


def _check_results(
    spark: SparkSession, groups: Grouping, schema: StructType, types: StructType, views: EmptyViews
) -> None:
    """Check that the result SQL gives the columns of the query."""
    result_sql = with_views(groups.result_sql, {GROUPS_VIEW: views.view(groups_view(types))})
    result = _analysed(spark, result_sql)
    _check_operators(spark, result_sql)
    _check_same(schema, result, [*result.names[:-2], KEEP, STATE], own=2)
    for item, column in zip(groups.items, schema.names, strict=True):
        if item.name is not None and item.name.lower() != column.lower():
            raise NotSplit(f"Spark gives column {column} another name than its text")


class _InnerGroups:
    """The groups of the inner queries of a query, which are kept as tables.

    An inner query with aggregates that headrace keeps by group is a followed query of its own, if it names no column of
    the queries around it. Its groups are kept in a table beside the target. The text around it reads this table, which
    changes only in the groups of changed rows.
    """

    def __init__(
        self,
        spark: SparkSession,
        scans: Mapping[str, FollowedScan],
        views: EmptyViews,
        analysed: _AnalysedText,
        written: FollowedPlan,
    ) -> None:
        self._spark = spark
        self._scans = dict(scans)
        self._views = views
        self._analysed = analysed
        self._written = written
        self._plans: dict[int, FollowedPlan] = {}

    def read(self, text: str) -> FollowedPlan:
        """Return the plan of a query that reads the groups of its inner queries; the plan as written without any."""
        queries = InnerQueries(text)
        queries.replace(self._read)
        text = queries.text
        plan = self._outer(text) if self._plans else self._written
        if plan.query.groups is None:
            # The groups at the end are those of an inner query, too: HAVING compares them with subqueries.
            queries.replace_last(self._read)
            plan = self._outer(queries.text) if queries.text != text else plan
        is_clear = self._written.gathering is not None and self._written.gathering.model is not None
        return self._written if is_clear and plan.gathering and plan.gathering.model is None else plan

    def _outer(self, text: str) -> FollowedPlan:
        plan = _gathered_plan(self._spark, text, self._scans, self._views, self._analysed)
        whole = None if plan.as_whole is None else self._with_inner(plan.as_whole)
        return replace(self._with_inner(plan), as_whole=whole)

    def _with_inner(self, plan: FollowedPlan) -> FollowedPlan:
        """Return the plan of the outer query with the plans of the inner queries that it reads."""
        assert plan.gathering is not None
        named, inner = set(plan.query.scans), dict[int, FollowedPlan]()
        for number, each in reversed(self._plans.items()):
            if inner_table(number) in named:
                named.update(each.query.scans)
                inner = {number: each, **inner}
        gatherings = {inner_table(number): each.gathering for number, each in inner.items() if each.gathering}
        written = self._written
        return replace(
            plan,
            scans=tuple(scan for scan in written.scans if scan.name in named),
            query=replace(plan.query, tokens=written.query.tokens, with_=(0, 0), others=written.query.others),
            gathering=plan.gathering.over(gatherings),
            inner=inner,
        )

    def _read(self, text: str) -> str | None:
        """Return the query over the groups of an inner query; None if they cannot be kept."""
        from pyspark.errors import AnalysisException, ParseException

        with suppress(SqlError, SchemaError, UnsupportedError, AnalysisException, ParseException):
            return self._kept(text)
        return None

    def _kept(self, text: str) -> str:
        spark, views = self._spark, self._views
        names_of = partial(SparkNames, spark, views.plain)
        query = grouped_query(text, self._scans, names_of, has_subqueries=True)
        assert query.groups is not None
        if not query.scans:
            raise NotSplit("an inner query that reads no followed scan is computed as it is written")
        sql = with_views(text, views.plain)
        analysed = self._analysed._replace(schema=spark.sql(sql).schema, plan=analysed_plan(spark, sql))
        plan = _check_gathered(spark, query, self._scans, views, analysed, inner=True)
        plan.states(keeps_previous=False)
        assert plan.group_types is not None
        number, types = len(self._plans) + 1, plan.group_types
        table = inner_table(number)
        for field in arrow_schema(types):
            # Raises SchemaError for a type that no table can have.
            type_name(field.type)
        views.add(table, types)
        # Under the names of the query, Spark would take a name that is left in an item as the alias of another item.
        numbered = [output_column(place) for place in range(len(analysed.schema))]
        _analysed(spark, with_views(query.groups.select(numbered, table), views.plain))
        select = query.groups.select(analysed.schema.names, table)
        _check_same(analysed.schema, _analysed(spark, with_views(select, views.plain)), analysed.schema.names)
        label, labels = inner_groups(number), query.groups.texts
        self._scans[table] = FollowedScan(table, types, query.groups.names, inner=True, label=label, labels=labels)
        self._plans[number] = plan
        return select


def _analysed(spark: SparkSession, sql: str) -> StructType:
    from pyspark.errors import AnalysisException, ParseException

    try:
        return spark.sql(sql).schema
    except (AnalysisException, ParseException) as error:
        raise NotSplit("Spark does not accept a part of the query", received=str(error).partition("\n")[0]) from None


def _refuse_collations_in(plan: str, schemas: Sequence[StructType]) -> None:
    """Raise `SqlError` for texts with a collation, of which equal ones differ: any of them would be the group's."""
    types = [field.dataType.simpleString() for schema in schemas for field in schema]
    found = next((each for each in (*types, plan) if re.search(r"\bcollate\b", each, re.IGNORECASE)), None)
    if found is not None:
        raise SqlError(
            "a followed query cannot group texts with a collation, or compare rows of them",
            received=found if found is not plan else "COLLATE in the query",
            remedy="write lower(…), or CAST(… AS STRING) COLLATE UTF8_BINARY in a view of the table",
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
                f"{name} is a stream of other rows than those of a table",
                remedy="give it as a scan with readAs = 'table', or read the table with USING BATCH",
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


def _check_operators(spark: SparkSession, sql: str, known: frozenset[str] = _OPERATORS, *, aggregates: int = 0) -> str:
    """Raise `SqlError` for an operator that a followed query cannot have; return the analysed plan."""
    plan = analysed_plan(spark, sql)
    counts = Counter(operators(plan))
    found = aggregates if "Aggregate" in known else counts.pop("Aggregate", 0)
    unknown = sorted(set(counts) - known)
    if unknown:
        raise SqlError(
            "a followed query cannot have an operator of this query's plan",
            received=", ".join(unknown),
            remedy="leave it out, or compute it in a batch",
        )
    if found != aggregates:
        raise NotSplit(f"{found} times Aggregate instead of {aggregates}")
    return plan


def _check_names(schema: StructType) -> None:
    twice = [name for name, times in Counter(name.lower() for name in schema.names).items() if times > 1]
    if twice:
        raise SqlError("two output columns have one name", received=twice[0], remedy="name them with AS")


def _check_same(schema: StructType, found: StructType, names: Sequence[str], *, own: int = 0) -> None:
    """Raise `NotSplit` unless columns have the names, and the types of the query's columns before ``own`` others."""
    types = [field.dataType.simpleString() for field in schema]
    others = [field.dataType.simpleString() for field in found][: len(found) - own]
    if types != others or found.names != list(names):
        raise NotSplit(f"parts with the types {others} of a query with the types {types}")
