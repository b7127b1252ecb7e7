"""`FollowedPlan`: a query over followed scans, split and checked, and its rules for the key of the target.

Spark says whether the query is valid, its types, and whether the split has its meaning. The original text is analysed
over empty views with the scans' columns, so that stars do not contain the sign and the order. Then the parts of the
split are analysed. The operators of all plans must be known ones: an operator that is not on the list, such as that of
an aggregate which headrace does not know, is refused by its name.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from headrace.derived.follow.analysis import EmptyViews, Origin, Origins, SparkNames
from headrace.derived.follow.determinism import check_deterministic
from headrace.derived.follow.gathered import check_exact, gathered_query, gathering_of
from headrace.derived.follow.scans import FollowedScan
from headrace.derived.follow.settings import check_text_settings
from headrace.derived.follow.split import FollowedQuery, Grouping, split_query
from headrace.derived.gathering.arrangements import Gathering
from headrace.derived.gathering.unique import unique_columns
from headrace.derived.own_names import ALIVE, GROUPS_VIEW, KEEP, ORDER, SIGN, STATE, STATE_DDL, value_column
from headrace.derived.state.aggregates import Aggregate
from headrace.derived.state.group_states import GroupStates
from headrace.errors import SchemaError, SqlError, UnsupportedError
from headrace.model.own_names import PREFIX, is_own
from headrace.spark.analysed_plans import analysed_plan, operators
from headrace.spark.versions import arrow_schema
from headrace.sql_text.lexer import quote_name, tokenize
from headrace.sql_text.query_text import QueryText, with_views

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

# In other zones the clocks go back once a year, and an hour's texts repeat.
_FIXED_ZONE = re.compile(r"(Etc/)?(UTC|GMT|UCT|Zulu)|Z|(UTC|GMT)?[+-]\d{1,2}(:?\d{2}){0,2}", re.IGNORECASE)
# The names of columns are a part of the fingerprint, which is computed from tokens.
_NOT_A_TOKEN = re.compile(r"[`'\"]|--|/[/*]")
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
_OF_EQUAL_ROWS = frozenset(("Aggregate", "Distinct", "Deduplicate", "Intersect", "Except"))


@dataclass(frozen=True)
class FollowedPlan:
    """A query over followed scans, as its batches run it.

    Attributes:
        scans: the followed scans that it reads.
        names: the names of the output columns.
        query: the query, split.
        schema: the output columns.
        rows: the columns of the rows SQL.
        group_types: the columns of the view that the result SQL reads; None for a query without aggregates.
        origins: for each branch of a query without aggregates the scan and column of which each output column is a
            copy, or None.
        time_zone: the session's time zone, on which the values of expressions can depend.
        gathering: how the rows are found over which the rows SQL is evaluated; None if it runs over signed rows.
        as_whole: the plan of the same query over gathered rows without its groups, for a target whose key does not have
            all columns of GROUP BY; None if there is none.
        unique: positions of output columns that are unique in the result of a query over gathered rows without groups;
            empty if none are certain.
    """

    scans: tuple[FollowedScan, ...]
    names: tuple[str, ...]
    query: FollowedQuery
    schema: StructType
    rows: StructType
    group_types: StructType | None
    origins: tuple[tuple[Origin | None, ...], ...]
    time_zone: str
    gathering: Gathering | None = None
    as_whole: FollowedPlan | None = None
    unique: tuple[int, ...] = ()

    @classmethod
    def read(
        cls, spark: SparkSession, text: str, scans: Iterable[FollowedScan], columns: Sequence[str] | None = None
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
        with EmptyViews(spark, schemas) as views:
            checked = _read(spark, text, known, views)
        if columns is not None and len(columns) != len(checked.names):
            raise SqlError(
                "the column list and the query do not have the same number of columns",
                received=checked.names,
                valid=columns,
            )
        return checked if columns is None else checked.renamed(columns)

    def renamed(self, names: Sequence[str]) -> FollowedPlan:
        """Return the plan with other names of output columns, by position."""
        whole = None if self.as_whole is None else self.as_whole.renamed(names)
        return replace(self, names=tuple(names), as_whole=whole)

    def for_key(self, table: str, primary_key: Sequence[str]) -> FollowedPlan:
        """Return the plan for a target with a primary key.

        Raises:
            SchemaError: see `check_key`.
        """
        try:
            self.check_key(table, primary_key)
        except SchemaError:
            if self.as_whole is None:
                raise
            return self.as_whole
        return self

    @property
    def output(self) -> pa.Schema:
        """The output columns."""
        import pyarrow as pa

        types = arrow_schema(self.schema)
        return pa.schema([field.with_name(name) for name, field in zip(self.names, types, strict=True)])

    @property
    def fingerprint(self) -> str:
        """A hash of the meaning of the query: texts with other spaces or comments have the same."""
        query, groups = self.query, self.query.groups
        names = (quote_name(name) if _NOT_A_TOKEN.search(name) else name for name in self.names)
        texts = [query.rows_sql, "" if groups is None else groups.result_sql, ", ".join(names)]
        if self.gathering is not None:
            texts.append(self.gathering.definition)
        words = [" ".join(token.text for token in tokenize(text).tokens) for text in texts]
        types = "" if self.group_types is None else self.group_types.simpleString()
        kept = [] if groups is None else [f"{each.kind} {each.arguments}" for each in groups.aggregates]
        return hashlib.sha256("\n".join((*words, types, *kept)).encode()).hexdigest()

    def states(self, *, keeps_previous: bool) -> GroupStates | None:
        """Return the state of the query's groups; None for a query without aggregates.

        Raises:
            UnsupportedError: an aggregate cannot be kept for the types of its arguments.
        """
        import pyarrow as pa

        groups = self.query.groups
        if groups is None or self.group_types is None:
            return None
        types = arrow_schema(self.group_types)
        rows = arrow_schema(self.rows)
        aggregates = [
            Aggregate(
                each.kind,
                each.arguments,
                tuple(rows.field(name).type for name in each.arguments),
                types.field(value_column(number)).type,
                each.text,
            )
            for number, each in enumerate(groups.aggregates)
        ]
        keys = pa.schema([types.field(name) for name in groups.names])
        return GroupStates(keys, aggregates, keeps_previous=keeps_previous)

    def check_key(self, table: str, primary_key: Sequence[str]) -> None:
        """Check that each row of the result has its own key in the target, which does not change.

        Raises:
            SchemaError: the primary key has a column that can change, or lacks one.
        """
        if self.query.groups is None:
            # Which rows of a gathered query have one key is checked in each batch.
            if self.gathering is None:
                self._check_scan_keys(table, primary_key)
        else:
            self._check_groups(self.query.groups, table, primary_key)

    def _check_groups(self, groups: Grouping, table: str, primary_key: Sequence[str]) -> None:
        items = dict(zip(self.names, groups.items, strict=True))
        # The output columns that copy a group expression.
        copies = {item.group: name for name, item in reversed(items.items()) if item.group is not None}
        covered = set()
        for name in primary_key:
            item = items[name]
            if not item.always:
                raise SchemaError(
                    f"key column {name!r} of table {table!r} is not a column of GROUP BY as it is",
                    valid=[name for name, item in items.items() if item.group is not None]
                    or "a constant, such as 'all' AS key",
                    remedy="put the whole expression into GROUP BY, or use a target with another primary key",
                )
            if item.as_text:
                self._check_text(name, str(item.group))
            covered.add(item.group)
        shown = [
            copies.get(group, f"expression {place} of GROUP BY, which the select list lacks")
            for place, group in enumerate(groups.names, 1)
            if group not in covered
        ]
        if shown:
            raise SchemaError(
                f"the primary key of table {table!r} does not contain each group expression, so groups would overwrite "
                "each other",
                received=f"({', '.join(primary_key)})",
                valid=f"also {', '.join(shown)}",
                remedy="use a target whose primary key has all columns of GROUP BY",
            )

    def _check_text(self, name: str, group: str) -> None:
        """Raise `SchemaError` if two values of a group expression can have the same text."""
        from pyspark.sql import types

        assert self.group_types is not None
        exact = (types.StringType, types.IntegralType, types.DecimalType, types.BooleanType, types.DateType)
        kind = self.group_types[group].dataType
        if isinstance(kind, types.StructType):
            # The group is a window. The item is its start or its end.
            kind = kind.fields[0].dataType
        fixed = isinstance(kind, types.TimestampNTZType) or _FIXED_ZONE.fullmatch(self.time_zone)
        if isinstance(kind, exact) or (isinstance(kind, types.TimestampType | types.TimestampNTZType) and fixed):
            return
        zone = f", session time zone {self.time_zone}" if isinstance(kind, types.TimestampType) else ""
        raise SchemaError(
            f"two groups can have the same text in key column {name!r}",
            received=f"CAST({kind.simpleString()} AS STRING){zone}",
            valid="texts of strings, integers, decimals, booleans and dates; of timestamps in time zone UTC",
            remedy="put the whole CAST into GROUP BY, or set spark.sql.session.timeZone to UTC",
        )

    def _check_scan_keys(self, table: str, primary_key: Sequence[str]) -> None:
        query = self.query
        branch = None if query.branch_column is None else self.names[query.branch_column]
        if branch is not None and branch not in primary_key:
            raise SchemaError(
                f"the primary key of table {table!r} does not distinguish the branches of UNION ALL",
                received=f"({', '.join(primary_key)})",
                valid=f"also {branch}",
            )
        for select, origins in zip(query.selects, self.origins, strict=True):
            scan = next(scan for scan in self.scans if scan.name == select.scan)
            copied = {origin for name, origin in zip(self.names, origins, strict=True) if name in primary_key}
            missing = [column for column in scan.key if (scan.name, column) not in copied]
            if missing:
                raise SchemaError(
                    f"the primary key of table {table!r} does not contain the key of scan {scan.name!r}, so its rows "
                    "would overwrite each other",
                    received=f"({', '.join(primary_key)})",
                    valid=f"also {', '.join(missing)}, selected as it is",
                    remedy="select the key columns of the scan into key columns of the target; with USING or NATURAL, "
                    f"where a plain name can be the column of another table, write {scan.name}.{missing[0]}, or the "
                    "alias of the scan; or GROUP BY the key of the target",
                )


def _read(spark: SparkSession, text: str, scans: Mapping[str, FollowedScan], views: EmptyViews) -> FollowedPlan:
    """Return the plan of a query over signed rows, if it has one; else over gathered rows, with its groups or without.

    Raises:
        SqlError: it has none of these.
    """

    def names_of(with_: str, from_: str) -> SparkNames:
        return SparkNames(spark, views.plain, with_, from_)

    # What a way cannot follow, the next one may: the last error is the one to show.
    with suppress(SqlError, UnsupportedError):
        plan = _check(spark, text, split_query(text, scans, names_of), scans, views)
        plan.states(keeps_previous=False)
        return plan
    query = gathered_query(text, scans, names_of, keeps_groups=False)
    analysed = _analyse_text(spark, text, query, views)
    whole = _check_gathered(spark, query, scans, views, analysed)
    with suppress(SqlError, UnsupportedError):
        kept = gathered_query(text, scans, names_of, keeps_groups=True)
        plan = _check_gathered(spark, kept, scans, views, analysed)
        plan.states(keeps_previous=False)
        return replace(plan, as_whole=whole)
    return whole


def _check(
    spark: SparkSession, text: str, query: FollowedQuery, scans: Mapping[str, FollowedScan], views: EmptyViews
) -> FollowedPlan:
    """Analyse a query and its parts, and check that the parts give the rows of the query."""
    time_zone = str(spark.conf.get("spark.sql.session.timeZone"))
    static = _static_columns(spark, query)
    plain = with_views(text, views.plain)
    schema = spark.sql(plain).schema
    plan = _check_operators(spark, plain, aggregates=0 if query.groups is None else 1)
    _check_names(schema)
    read, names = tuple(scans[name] for name in query.scans), tuple(schema.names)
    # Without a semicolon or a comment at its end.
    whole = query.tokens.render(0, len(query.tokens.tokens), [])
    check_deterministic(spark, with_views(views.without_static(whole, static), views.plain), plan)
    rows_sql = with_views(query.rows_sql, views.signed)
    rows = _analysed(spark, rows_sql)
    _check_operators(spark, rows_sql)
    if query.groups is None:
        _check_same(schema, rows, [*rows.names[:-2], SIGN, ORDER])
        found = Origins(spark, query, {name: scan.schema for name, scan in scans.items()}, views)
        origins = tuple(found.of(select, schema) for select in query.selects)
        return FollowedPlan(read, names, query, schema, rows, None, origins, time_zone)
    types = _check_groups(spark, query.groups, schema, rows, views, views.signed)
    return FollowedPlan(read, names, query, schema, rows, types, (), time_zone)


class _AnalysedText(NamedTuple):
    """What Spark says about the text of a query that is evaluated as it is written.

    Attributes:
        schema: the output columns.
        plan: the text of the analysed plan.
        static: the columns of the static tables by name.
    """

    schema: StructType
    plan: str
    static: Mapping[str, StructType]


def _analyse_text(spark: SparkSession, text: str, query: FollowedQuery, views: EmptyViews) -> _AnalysedText:
    """Analyse the text of a query over gathered rows, and check that it is deterministic."""
    static = _static_columns(spark, query)
    plain = with_views(text, views.plain)
    schema = spark.sql(plain).schema
    plan = _check_operators(spark, plain, _OPERATORS | _OF_SEVERAL_ROWS)
    _check_names(schema)
    whole = query.tokens.render(0, len(query.tokens.tokens), [])
    check_deterministic(spark, with_views(views.without_static(whole, static), views.plain), plan)
    return _AnalysedText(schema, plan, static)


def _check_gathered(
    spark: SparkSession,
    query: FollowedQuery,
    scans: Mapping[str, FollowedScan],
    views: EmptyViews,
    analysed: _AnalysedText,
) -> FollowedPlan:
    """Analyse the rows and groups of a query that is evaluated as it is written, and find the rows over which."""
    schema, plan, static = analysed
    rows_sql = with_views(query.rows_sql, views.plain)
    rows = _analysed(spark, rows_sql)
    below = Counter(operators(analysed_plan(spark, rows_sql)))
    if _OF_EQUAL_ROWS & set(operators(plan)):
        _refuse_collations_in(plan, [scans[name].schema for name in query.scans])
    types = None
    if query.groups is not None:
        if _OF_SEVERAL_ROWS & below.keys():
            check_exact(query, [*(scans[name].schema for name in query.scans), *static.values()])
        types = _check_groups(spark, query.groups, schema, rows, views, views.plain)
    read = tuple(scans[name] for name in query.scans)
    gathering = gathering_of(query, scans, static, below["Aggregate"])
    text = QueryText(query.rows_sql)
    unique = () if query.groups is not None else unique_columns(text, gathering.model, len(schema))
    time_zone = str(spark.conf.get("spark.sql.session.timeZone"))
    names = tuple(schema.names)
    return FollowedPlan(read, names, query, schema, rows, types, (), time_zone, gathering, unique=unique)


def _check_groups(
    spark: SparkSession,
    groups: Grouping,
    schema: StructType,
    rows: StructType,
    views: EmptyViews,
    of_scans: Mapping[str, str],
) -> StructType:
    """Check the groups of a query, and return the columns of the view that the result SQL reads, but its own."""
    from pyspark.sql.types import BooleanType, DataType, StructField, StructType

    types = _analysed(spark, with_views(groups.types_sql, of_scans))
    _refuse_collations(rows)
    own = [StructField(ALIVE, BooleanType(), nullable=False), StructField(STATE, DataType.fromDDL(STATE_DDL))]
    result_sql = with_views(groups.result_sql, {GROUPS_VIEW: views.view(StructType([*types.fields, *own]))})
    result = _analysed(spark, result_sql)
    _check_operators(spark, result_sql)
    _check_same(schema, result, [*result.names[:-2], KEEP, STATE])
    for item, column in zip(groups.items, schema.names, strict=True):
        if item.name is not None and item.name.lower() != column.lower():
            raise SqlError(
                "Spark gives this column another name than its text", received=column, remedy="name it with AS"
            )
    return types


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
    if unknown or found != aggregates:
        named = ", ".join(unknown) if unknown else f"{found} times Aggregate instead of {aggregates}"
        raise SqlError(
            "a followed query cannot have an operator of this query's plan",
            received=named,
            remedy="leave it out, or compute it in a batch",
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
