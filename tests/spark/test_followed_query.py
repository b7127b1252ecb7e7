"""The parts of a split query give what Spark gives for the query itself, over the rows that are left."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.functions import PandasUDFType, pandas_udf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from headrace.derived.follow.items import AggregateCall
from headrace.derived.follow.plan import FollowedPlan
from headrace.derived.follow.planning import read_plan
from headrace.derived.follow.scans import FollowedScan
from headrace.derived.own_names import ALIVE, GROUPS_VIEW, KEEP, ORDER, SIGN, STATE
from headrace.spark.versions import arrow_schema
from headrace.sql_text.query_text import with_views
from tests.spark.following import INTERPRETED

SCHEMA = (
    StructType()
    .add("id", LongType(), nullable=False)
    .add("user", StringType())
    .add("price", DoubleType())
    .add("cost", DecimalType(10, 2))
    .add("k", IntegerType())
    .add("ts", TimestampType())
    .add("place", StructType().add("city", StringType()).add("zone", StructType().add("n", IntegerType())))
    .add("tags", ArrayType(IntegerType()))
    .add("day", DateType())
)
OTHER = StructType().add("id", LongType(), nullable=False).add("user", StringType()).add("k", IntegerType())


def at(minute: int) -> datetime.datetime:
    return datetime.datetime(2026, 3, 1, 10, minute, 30)


def order(id_: int, user: str | None, price: float | None, k: int | None, minute: int) -> tuple[Any, ...]:
    cost = None if price is None else Decimal(str(price))
    place = None if k is None else {"city": f"c{k % 2}", "zone": {"n": k}}
    tags = None if k is None else [k, k + 1]
    return (id_, user, price, cost, k, at(minute), place, tags, datetime.date(2026, 3, 1 + minute % 2))


CURRENT = [
    order(1, "ann", 1.5, 1, 0),
    order(2, "ann", None, 2, 1),
    order(3, "bob", 4.0, 3, 7),
    order(4, None, 2.5, None, 12),
    order(5, "bob", -1.0, 3, 13),
    order(6, "eve", 8.25, 2, 13),
]
# Rows that were added and removed: a group without rows, values that their groups no longer have, a k of 0.
GONE = [order(7, "zoe", 100.0, 0, 40), order(8, "ann", 99.0, 77, 0), order(9, None, 5.0, 1, 12)]
OTHERS = [(1, "ann", 5), (2, "dan", None)]
PEOPLE = [("ann", "A", 1), ("bob", "B", 2), ("ann", "AA", 3)]

QUERIES = [
    "SELECT * FROM orders_now",
    "SELECT id, user, price * 2 AS p2 FROM orders_now WHERE price > 2",
    "SELECT o.*, upper(o.user) u FROM orders_now o WHERE k IS NOT NULL",
    "SELECT * EXCEPT (tags), k + 1 AS next, next * 2 AS more FROM `orders_now`",
    "SELECT o.id, name FROM orders_now o JOIN people p ON o.user = p.user",
    "SELECT o.*, name, user AS u FROM orders_now o LEFT JOIN (SELECT user, name FROM people) p USING (user)",
    "SELECT p.*, o.id FROM people p, orders_now AS o WHERE p.user = o.user AND p.k < 3",
    "SELECT * FROM orders_now o LEFT SEMI JOIN people p ON o.user = p.user",
    "SELECT id FROM orders_now o LEFT ANTI JOIN (SELECT user AS u FROM people WHERE k > 0) p ON o.user = p.u",
    "SELECT id, n FROM (SELECT id, place.zone.n AS n, user FROM orders_now WHERE k > 0) x WHERE n < 3",
    "WITH a AS (SELECT * FROM orders_now), b(i, u) AS (SELECT id, user FROM a) SELECT b.* FROM b WHERE u > 'a'",
    "SELECT id, 'o' AS source, user FROM orders_now UNION ALL SELECT id, 'p', user FROM others_now",
    "SELECT user, count(*) AS n, sum(price) AS s, avg(price) AS a FROM orders_now GROUP BY user",
    "SELECT user, count(k), min(price), max(price), count(DISTINCT k) FROM orders_now WHERE id > 1 GROUP BY user",
    "SELECT count(*), sum(price), sum(k), avg(cost), min(user), count(DISTINCT user, k) FROM orders_now",
    "SELECT count(*) AS n, sum(k) AS s FROM orders_now WHERE id > 1000",
    "SELECT sum(cost), avg(k), user FROM orders_now GROUP BY 3",
    "SELECT sum(price) / count(*) AS mean, 100 / count(*) AS part FROM orders_now "
    "GROUP BY user HAVING count(k) > 0",
    "SELECT user, sum(100 / k) FROM orders_now WHERE k > 0 GROUP BY user",
    "SELECT k, 100 / k AS part, count(*) AS n FROM orders_now GROUP BY k",
    "SELECT upper(user) AS user, count(*) FROM orders_now GROUP BY user",
    "SELECT upper(user) AS u, count(*) AS n FROM orders_now GROUP BY u HAVING u > 'A' AND n > 1",
    "SELECT k % 2 AS odd, (k % 2) * 10 AS tens, count(*) FROM orders_now GROUP BY k % 2",
    "SELECT k + 1, sum(id) FROM orders_now GROUP BY (k + 1), user HAVING user IS NOT NULL",
    "SELECT user, k, sum(id) + max(id) * 2 - count(*) AS x FROM orders_now GROUP BY ALL HAVING x > 3 OR max(k) = 1",
    "SELECT 'all' AS kind, count(*) FROM orders_now WHERE id > 1000 GROUP BY ALL",
    "SELECT user FROM orders_now GROUP BY user",
    "SELECT sum(k) AS s, s + 1 AS t, t * s AS r, user AS u, u || '!' AS shout FROM orders_now GROUP BY user",
    "SELECT user, count(*) FILTER (WHERE k > 1) AS n, sum(price) FILTER (WHERE k > 1 AND price > 0), "
    "count(DISTINCT k, id) FILTER (WHERE id < 5), count_if(k = 3), min(k) FILTER (WHERE k <> 1) "
    "FROM orders_now GROUP BY user",
    "SELECT window.start AS ws, window.end we, count(*) AS n FROM orders_now GROUP BY window(ts, '10 minutes')",
    "SELECT window(ts, '10 minutes', '5 minutes') AS w, w.start, sum(k) FROM orders_now "
    "GROUP BY window(ts, '10 minutes', '5 minutes')",
    "SELECT window, user, count(*) FROM orders_now GROUP BY 1, 2, window(ts, '5 minutes') "
    "HAVING window.start IS NOT NULL",
    "SELECT place.city, place.city || '/' || max(place.zone.n) AS p FROM orders_now GROUP BY place.city",
    "SELECT place.zone.n AS n, place.city AS c, count(*) FROM orders_now GROUP BY place",
    "SELECT CASE WHEN k > 1 THEN 'big' WHEN k = 1 THEN 'one' ELSE 'none' END AS size, sum(price) s FROM orders_now "
    "GROUP BY CASE WHEN k > 1 THEN 'big' WHEN k = 1 THEN 'one' ELSE 'none' END",
    "SELECT CASE WHEN sum(k) > 3 THEN user ELSE 'few' END AS who, CAST(max(day) AS DATE) AS last "
    "FROM orders_now GROUP BY user",
    "SELECT day, CAST(max(ts) AS date) AS d, day - INTERVAL 1 day AS before, extract(day FROM max(ts)) AS of, "
    "DATE '2026-01-01' < day AS new FROM orders_now GROUP BY day",
    "SELECT p.name, o.user, sum(o.price) AS s, count(p.k) FROM orders_now o LEFT JOIN people p ON o.user = p.user "
    "GROUP BY p.name, o.user",
    "SELECT user, count(*) FROM orders_now JOIN people USING (user) GROUP BY user",
    "SELECT user, sum(v) FROM (SELECT user, k AS v FROM orders_now UNION ALL SELECT user, k * 2 FROM orders_now "
    "UNION ALL (SELECT user, k FROM others_now)) GROUP BY user",
    "WITH x AS (SELECT user AS u, k FROM orders_now WHERE k > 0) SELECT u, max(k) FROM x GROUP BY u HAVING sum(k) > 2",
    "SELECT bool_and(k > 1), every(k > 0), bool_or(k > 2), max(DISTINCT k), count(ALL k), count(1), count(k, price) "
    "FROM orders_now GROUP BY user",
    "SELECT k, any(user LIKE 'a%') AS a, some(user LIKE ANY ('a%', 'b%')) AS b, max(user NOT LIKE ALL ('a%')) AS c "
    "FROM orders_now WHERE user LIKE ANY ('a%', 'b%', 'c%') GROUP BY k",
    "SELECT transform(array(max(k)), x -> x + 1)[0] AS t, tags[0] AS tag FROM orders_now GROUP BY tags[0]",
    "SELECT coalesce(user, '?') AS user, struct(sum(k) AS s, coalesce(user, '?') AS u) AS both "
    "FROM orders_now GROUP BY coalesce(user, '?')",
    "SELECT lower(name) AS name, count(*) n FROM (SELECT upper(user) AS name FROM orders_now) "
    "GROUP BY name HAVING n >= 1",
    "SELECT user, CASE WHEN p.user IS NULL THEN 'unknown' ELSE 'known' END AS status, count(*) AS n "
    "FROM orders_now LEFT JOIN people p USING (user) GROUP BY user, p.user",
    "SELECT o.user, coalesce(p.k, -1) AS k, count(*) FROM orders_now o NATURAL LEFT JOIN people p GROUP BY user, p.k",
    "SELECT user AS name, CASE WHEN count(*) > 1 THEN user ELSE 'x' END AS user FROM orders_now GROUP BY user",
    "SELECT id, z FROM orders_now LEFT JOIN (SELECT 'ann' AS u, 'Z' AS z) x ON user = x.u CROSS JOIN (SELECT 1) y",
    "SELECT s0 DIV 3 AS g0, count(*) AS s1, (s0 DIV 3) * 3 AS a0 FROM (SELECT k AS s0 FROM orders_now) "
    "GROUP BY s0 DIV 3",
    "SELECT k AS user, user AS k, count(*) AS n FROM orders_now GROUP BY k, user HAVING k > 1",
    "SELECT max(k) AS k, user FROM orders_now GROUP BY user HAVING max(k) > 1",
    "SELECT place.city AS place, count(*) AS n FROM orders_now GROUP BY orders_now.place.city HAVING place.city > 'c'",
    "SELECT `user` AS `a b`, Sum(K) AS `from`, SUM(k) + 1 FROM Orders_Now AS `o x` GROUP BY `o x`.USER",
]  # fmt: skip

REFUSED = [
    ("SELECT grouped(k) FROM orders_now", "cannot be split|UNRESOLVED_ROUTINE"),
    ("SELECT k, user, count(*) FROM (SELECT k FROM orders_now) GROUP BY ALL", r"current_user\(\)"),
    ("SELECT id FROM orders_now WHERE k > lowest", r"session variable(.|\n)*session\.lowest"),
    ("SELECT k AS a, k AS a FROM orders_now", "two output columns"),
    ("SELECT k AS a, id AS A FROM orders_now", "two output columns"),
    ("SELECT user COLLATE UTF8_LCASE AS u, count(*) FROM orders_now GROUP BY ALL", "collation"),
]
# The groups of these cannot be split from their rows, so that each batch evaluates them as they are written.
NOT_SPLIT = [
    "SELECT product(k) AS p FROM orders_now",
    "SELECT user, product(k) AS p, count(*) AS n FROM orders_now GROUP BY user",
    "SELECT user, product(1) AS p, count(*) AS n FROM orders_now GROUP BY user",
    "SELECT k DIV 3 AS b, count(*) AS n, k DIV 3 * 3 AS low FROM orders_now GROUP BY k DIV 3",
    "SELECT k DIV 3 AS k, count(*) AS n, k DIV 3 * 3 AS low FROM orders_now GROUP BY k DIV 3",
    "SELECT k DIV 3 AS k, count(*) AS n FROM orders_now GROUP BY k DIV 3 HAVING k DIV 3 * 3 > 1",
    "SELECT user AS k, count(*) AS n FROM orders_now GROUP BY user HAVING k > 'a'",
    "SELECT k + 1 + k AS a, count(*) AS n FROM orders_now GROUP BY k + 1 + k, k + 1 HAVING k + 1 + 0 > 0",
]


def local(spark: SparkSession, rows: Sequence[Sequence[Any]], schema: StructType) -> DataFrame:
    """Return a frame of rows in the plan itself, which Spark reads without a task."""
    columns = list(zip(*rows, strict=True)) or [() for _ in schema]
    types = arrow_schema(schema)
    arrays = [
        pa.array([plain(value) for value in column], field.type) for column, field in zip(columns, types, strict=True)
    ]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=types), schema)


def plain(value: Any) -> Any:
    return value.asDict(recursive=True) if isinstance(value, Row) else value


@pytest.fixture
def tables(spark: SparkSession) -> dict[str, dict[str, str]]:
    """The names of the views by scan: ``plain`` over the current rows, and ``signed`` over all that happened."""
    names: dict[str, dict[str, str]] = {"plain": {}, "signed": {}}
    for scan, schema, current, gone in (
        ("orders_now", SCHEMA, CURRENT, GONE),
        ("others_now", OTHER, OTHERS, [(3, "zoe", 9)]),
    ):
        local(spark, current, schema).createOrReplaceTempView(f"{scan}_plain")
        happened = [*((row, 1) for row in current), *((row, 1) for row in gone), *((row, -1) for row in gone)]
        signed = [(*row, sign, number) for number, (row, sign) in enumerate(happened)]
        signed_schema = StructType([*schema.fields]).add(SIGN, ByteType()).add(ORDER, LongType())
        local(spark, signed, signed_schema).createOrReplaceTempView(f"{scan}_signed")
        names["plain"][scan], names["signed"][scan] = f"{scan}_plain", f"{scan}_signed"
    people = StructType().add("user", StringType()).add("name", StringType()).add("k", IntegerType())
    local(spark, PEOPLE, people).createOrReplaceTempView("people")
    return names


def checked(spark: SparkSession, text: str) -> FollowedPlan:
    scans = [FollowedScan("orders_now", SCHEMA, ("id",)), FollowedScan("others_now", OTHER, ("id",))]
    return read_plan(spark, text, scans)


def sorted_rows(rows: Sequence[Sequence[Any]]) -> list[str]:
    return sorted(repr(tuple(row)) for row in rows)


def value_of(call: AggregateCall, counts: Counter[tuple[Any, ...]], names: Sequence[str], type_: str) -> Any:
    """Return an aggregate of rows, given as the number of times that each occurs."""
    if call.kind == "count_rows":
        return counts.total()
    values: Counter[tuple[Any, ...]] = Counter()
    for row, times in counts.items():
        value = tuple(row[names.index(argument)] for argument in call.arguments)
        if None not in value:
            values[value] += times
    left = {value: times for value, times in values.items() if times}
    if call.kind == "count":
        return sum(left.values())
    if call.kind == "count_distinct":
        return len(left)
    if not left:
        return None
    if call.kind in ("min", "max"):
        return (min if call.kind == "min" else max)(value for (value,) in left)
    total = sum(value * times for (value,), times in left.items())
    if call.kind == "sum":
        return total
    return Decimal(total) / sum(left.values()) if type_.startswith("decimal") else total / sum(left.values())


def followed(spark: SparkSession, query: FollowedPlan, signed: dict[str, str]) -> list[tuple[Any, ...]]:
    """Return the result of a query from its parts."""
    parts = query.query.groups
    rows = spark.sql(with_views(query.query.rows_sql, signed)).collect()
    if parts is None or query.group_types is None:
        left: Counter[str] = Counter()
        values = {}
        for *value, sign, _ in rows:
            left[repr(value)] += sign
            values[repr(value)] = tuple(value)
        return [values[each] for each in left.elements()]
    size = len(parts.names)
    groups: dict[str, tuple[tuple[Any, ...], Counter[tuple[Any, ...]]]] = {} if size else {"()": ((), Counter())}
    for *value, sign, _ in rows:
        group = tuple(value[:size])
        _, counts = groups.setdefault(repr(group), (group, Counter()))
        counts[tuple(value)] += sign
    types = [field.dataType.simpleString() for field in query.group_types]
    table = [
        (
            *group,
            *(value_of(c, counts, query.rows.names, types[size + i]) for i, c in enumerate(parts.aggregates)),
            not size or counts.total() > 0,
            None,
        )
        for group, counts in groups.values()
    ]
    schema = StructType([*query.group_types.fields]).add(ALIVE, BooleanType()).add(STATE, BinaryType())
    local(spark, table, schema).createOrReplaceTempView("groups_of_test")
    result = spark.sql(with_views(parts.result_sql, {GROUPS_VIEW: "groups_of_test"})).collect()
    return [tuple(row[:-2]) for row in result if row[KEEP]]


def test_parts_give_what_the_query_gives(spark: SparkSession, tables: dict[str, dict[str, str]]) -> None:
    # One test, without compiled code: compiling, and lending the session, take longer than a query of few rows.
    for name, value in {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        **INTERPRETED,
    }.items():
        spark.conf.set(name, value)
    wrong = {}
    for text in QUERIES:
        query = checked(spark, text)
        expected = spark.sql(with_views(text, tables["plain"]))
        assert query.schema.names == expected.columns, text
        wanted, found = sorted_rows(expected.collect()), sorted_rows(followed(spark, query, tables["signed"]))
        if wanted != found:
            wrong[text] = (wanted, found)
    assert wrong == {}


def test_groups_that_cannot_be_split_are_evaluated_as_written(spark: SparkSession) -> None:
    spark.udf.register("product", pandas_udf(lambda values: int(values.prod()), "long", PandasUDFType.GROUPED_AGG))
    for text in NOT_SPLIT:
        plan = checked(spark, text)
        assert plan.gathering is not None, text
        assert plan.query.groups is None, text
        assert plan.query.rows_sql == text
    spark.sql("DROP TEMPORARY FUNCTION product")


@pytest.mark.parametrize(
    ("inner", "by_group"),
    [
        ("sum(k)", True),
        ("avg(cost)", True),
        ("max(user)", True),
        # Doubles of inner groups are the same whenever they are read, if these groups are kept.
        ("sum(price)", True),
        ("avg(k)", True),
        ("sum(k / 3)", True),
        ("sum(price) + stddev(k)", False),
        ("stddev(k)", False),
        ("corr(k, price)", False),
    ],
)
def test_groups_over_inner_groups_are_kept_if_these_are_exact(spark: SparkSession, inner: str, by_group: bool) -> None:
    text = f"SELECT count(*) AS n, max(s) AS s FROM (SELECT day, {inner} AS s FROM orders_now GROUP BY day)"
    plan = checked(spark, text)
    assert plan.gathering is not None
    assert (plan.query.groups is not None) == by_group


def test_queries_of_with_that_nothing_names_are_not_read(spark: SparkSession) -> None:
    unnamed = "y AS (SELECT id AS i FROM others_now), z AS (SELECT max(i) AS m FROM y)"
    rows = "SELECT a.id, b.user FROM orders_now a JOIN t b ON a.id = b.k"
    plan = checked(spark, f"WITH t AS (SELECT k, user FROM orders_now), {unnamed} {rows}")
    assert [scan.name for scan in plan.scans] == ["orders_now"]
    assert plan.gathering is not None
    assert plan.gathering.plan.full_reads == ()
    assert plan.query.rows_sql == f"WITH t AS (SELECT k, user FROM orders_now) {rows}"
    with pytest.raises(AnalysisException, match="nowhere"):
        checked(spark, f"WITH t AS (SELECT k, user FROM orders_now), z AS (SELECT nowhere FROM others_now) {rows}")


def test_inner_groups_whose_items_cannot_be_split_are_not_kept(spark: SparkSession) -> None:
    for text in NOT_SPLIT[3:]:
        assert checked(spark, f"SELECT max(n) AS most FROM ({text})").inner == {}, text


def test_operators_in_the_plan_of_spark_are_refused(spark: SparkSession, tables: dict[str, dict[str, str]]) -> None:
    spark.sql("DECLARE OR REPLACE VARIABLE lowest INT DEFAULT 2")
    for text, message in REFUSED:
        with pytest.raises(Exception, match=message):
            checked(spark, text)
    spark.sql("DROP TEMPORARY VARIABLE lowest")
