"""The meaning of a followed query is Spark's: settings, names, origins of keys, determinism and readers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

import headrace
from headrace.derived.follow import settings
from headrace.derived.follow.plan import FollowedPlan
from headrace.derived.follow.planning import read_plan
from headrace.derived.follow.scans import FollowedScan
from headrace.errors import HeadraceError, OptionError, SchemaError, SqlError
from headrace.ports import Store
from tests.spark.following import Following, scan
from tests.spark.sql_scripts import sql_session

SCAN = FollowedScan(
    "t",
    StructType().add("id", LongType()).add("email", StringType()).add("v", LongType()).add("at", TimestampType()),
    ("id",),
)


@pytest.fixture
def dimension(spark: SparkSession) -> None:
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW d AS SELECT 1L AS id, 'x' AS email, 'y' AS z")


def plan(spark: SparkSession, sql: str) -> FollowedPlan:
    return read_plan(spark, sql, [SCAN])


def test_a_setting_that_changes_the_meaning_of_the_text_is_refused_by_name(spark: SparkSession) -> None:
    for setting, value in settings._ASSUMED.items():
        others = {"true": "false", "false": "true", "corrected": "legacy"}
        spark.conf.set(setting, others.get(value, "first"))
        with pytest.raises(SqlError, match=rf"received: {setting} = \w+; valid: {value}; SET {setting} = {value}"):
            plan(spark, "SELECT id FROM t")
        spark.conf.unset(setting)


COPIES = [
    "SELECT * FROM t",
    "SELECT o.id, v FROM t o JOIN d ON o.v = d.id",
    "SELECT id, z FROM t LEFT JOIN d USING (id)",
    "SELECT t.id, z FROM d JOIN t USING (id)",
    "SELECT id, z FROM t NATURAL LEFT JOIN d",
    "SELECT * EXCEPT (v, email), v + 1 AS v FROM t",
    "SELECT upper(email) AS email, t.* EXCEPT (email) FROM t LEFT SEMI JOIN d ON t.id = d.id",
    "WITH a(i, e) AS (SELECT id, email FROM t), b AS (SELECT e, i FROM a) SELECT y.two AS id FROM b AS y(one, two)",
    "SELECT y.v AS id FROM (SELECT v AS id, id AS v FROM t) y JOIN (SELECT 1 AS one) AS c ON true",
    "SELECT id FROM (SELECT id, place.n FROM (SELECT *, named_struct('n', v) AS place FROM t))",
    "SELECT a AS id FROM (SELECT id AS a, a AS b FROM t)",
    "SELECT b AS id FROM (SELECT id AS a, a AS b FROM t)",
]
COMPUTED = [
    "SELECT id % 2 AS id, * EXCEPT (id) FROM t",
    "SELECT * FROM (SELECT id % 2 AS id, * EXCEPT (id) FROM t)",
    "WITH a AS (SELECT id % 2 AS id, * EXCEPT (id) FROM t) SELECT * FROM a",
    "SELECT d.id AS id, t.* EXCEPT (id) FROM t JOIN d ON t.v = d.id",
    "SELECT t.* EXCEPT (id, email), d.* FROM t JOIN d ON t.v = d.id",
    "SELECT id FROM (SELECT v AS id, id AS v FROM t)",
    "SELECT CAST(id AS BIGINT) AS id FROM t",
    "SELECT array(struct(id), struct(v AS id))[1].id AS id FROM t",
    "SELECT s.id AS id FROM (SELECT * EXCEPT (id), struct(v AS id) AS s FROM t) AS s",
    "SELECT s.* FROM (SELECT IF(v > 1, struct(id), struct(v AS id)) AS s FROM t)",
    "SELECT 'a' AS o, id FROM t UNION ALL SELECT 'b', v FROM t",
]


def test_the_key_of_a_scan_is_a_plain_copy(spark: SparkSession, dimension: None) -> None:
    for sql in COPIES:
        plan(spark, sql).check_key("target", ["id"])
    for sql in COMPUTED:
        with pytest.raises(SchemaError, match=r"does not contain the key of scan 't'(.|\n)*valid: also id"):
            plan(spark, sql).check_key("target", ["id", "o"] if "AS o" in sql else ["id"])
    # UNION ALL converts the texts to numbers, which can be the same for two texts.
    texts = FollowedScan("u", StructType().add("id", StringType()), ("id",))
    sql = "SELECT 'a' AS o, id FROM t UNION ALL SELECT 'b', id FROM u"
    both = read_plan(spark, sql, [SCAN, texts])
    with pytest.raises(SchemaError, match="does not contain the key"):
        both.check_key("target", ["o", "id"])


CHANGING = [
    "at > 'now'", "at > CAST('no' || 'w' AS TIMESTAMP)", "at > 'today'::date", "to_date('tomorrow') > at",
    "year('today') = v", "nullif(at, ' NOW ') IS NULL", "at BETWEEN 'yesterday' AND '2026-01-01'",
    "moment(email) = 'x'", "outer_moment() > at", "day_of() = at", "known('now') = at", "number() = email",
    "random_text(email) = 'x'", "where_am_i() = 'x'", "user = email", "coalesce(at, 'today') > at",
    "EXISTS(array(at), x -> x > 'now')", "highest() = id", "limited() = id", "spark_catalog.meanings.outside() = at",
]  # fmt: skip
CONSTANT = [
    "at > '2026-01-01'", "at > TIMESTAMP '2026-01-01 00:00:00Z'", "email = 'now'", "email IN ('today', 'epoch')",
    "to_date(email) > '2026-01-01'", "loud(email) = 'X'", "named(email) = 'X'", "upper('now') = email",
    "unix_timestamp(at) > 5",
]  # fmt: skip


@pytest.fixture
def functions(spark: SparkSession) -> Iterator[None]:
    bodies = {
        "outer_moment() RETURNS TIMESTAMP": "inner_moment() + INTERVAL 1 DAY",
        "moment(x STRING) RETURNS STRING": "x || current_timestamp()",
        "day_of() RETURNS DATE": "DATE 'today'",
        "known(x TIMESTAMP) RETURNS TIMESTAMP": "x",
        "number() RETURNS STRING": "uuid()",
        "where_am_i() RETURNS STRING": "current_catalog()",
        "loud(x STRING) RETURNS STRING": "upper(x)",
    }
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION inner_moment() RETURNS TIMESTAMP RETURN now()")
    bodies["highest() RETURNS BIGINT"] = "(SELECT id FROM d)"
    bodies["limited() RETURNS BIGINT"] = "1 + session.most"
    spark.sql("DECLARE OR REPLACE VARIABLE most BIGINT DEFAULT 2")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW d AS SELECT 1L AS id")
    spark.sql("CREATE DATABASE meanings")
    spark.sql("CREATE FUNCTION meanings.inside() RETURNS DATE RETURN DATE 'yesterday'")
    spark.sql("CREATE FUNCTION meanings.outside() RETURNS DATE RETURN meanings.inside() + INTERVAL 1 DAY")
    for signature, body in bodies.items():
        spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {signature} RETURN {body}")
    spark.udf.register("random_text", F.udf(lambda text: text, "string").asNondeterministic())
    spark.udf.register("named", lambda text: text, "string")
    yield
    for name in [*(signature.partition("(")[0] for signature in bodies), "inner_moment", "random_text", "named"]:
        spark.sql(f"DROP TEMPORARY FUNCTION {name}")
    spark.sql("DROP DATABASE meanings CASCADE")
    spark.sql("DROP TEMPORARY VARIABLE most")


def test_a_query_that_reads_the_clock_or_the_session_is_refused(spark: SparkSession, functions: None) -> None:
    for condition in CHANGING:
        source = "t" if condition != "user = email" else "(SELECT id, email FROM t)"
        with pytest.raises(SqlError, match="value for the same row changes"):
            plan(spark, f"SELECT id FROM {source} WHERE {condition}")
        if not condition.startswith(("user", "EXISTS", "number", "random_text", "moment")):
            with pytest.raises(SqlError, match="value for the same row changes"):
                plan(spark, f"SELECT email, count(*) FROM t GROUP BY email HAVING count_if({condition}) > 1")
    for condition in CONSTANT:
        plan(spark, f"SELECT id FROM t WHERE {condition}")


def test_a_value_that_changes_is_found_behind_many_columns(spark: SparkSession) -> None:
    columns = ", ".join(f"v + {number} AS c{number}" for number in range(40))
    with pytest.raises(SqlError, match=r"current_user\(\)"):
        plan(spark, f"SELECT id, {columns}, user FROM t")


def test_columns_with_names_of_headrace_are_refused_by_name(spark: SparkSession) -> None:
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW own AS SELECT 1 AS id, 2 AS `__HEADRACE_sign`")
    with pytest.raises(SqlError, match=r"own has a column whose name begins with __headrace_(.|\n)*__HEADRACE_sign"):
        plan(spark, "SELECT t.id FROM t JOIN own USING (id)")
    scan = FollowedScan("t", StructType().add("__headrace_g0", LongType()), ("__headrace_g0",))
    with pytest.raises(SqlError, match="scan t has a column whose name begins with __headrace_"):
        read_plan(spark, "SELECT * FROM t", [scan])


# -- readers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    columns = {"region": "string", "id": "long", "user": "string", "price": "double"}
    store.create_table("orders", columns, ["region", "id"], pre_images=True)
    store.create_table("totals", {"user": "string", "n": "long"}, "user")
    store.create_tunnel("orders", "orders", kind="BaseAndStream")
    return store


def test_a_scan_is_the_dataframe_of_a_reader_as_it_is(spark: SparkSession, store: Store) -> None:
    df = scan(spark, store, "orders")
    df.createOrReplaceTempView("orders_view")
    assert FollowedScan.of("o", spark.table("orders_view")).key == ("region", "id")
    assert FollowedScan.of("o", df.drop("price")).schema.names == ["region", "id", "user"]
    refused: dict[str, DataFrame] = {
        "received: Filter": df.where("price > 1"),
        "received: Deduplicate": df.dropDuplicates(["user"]),
        "received: price": df.withColumn("price", F.col("price") * 2),
        r"lacks a column of the table's primary key": df.drop("id"),
    }
    for message, frame in refused.items():
        with pytest.raises(OptionError, match=message):
            FollowedScan.of("o", frame)


def test_columns_that_differ_from_others_only_in_case_are_refused(spark: SparkSession, store: Store) -> None:
    for number, name in enumerate(("_CHANGE_TYPE", "ID")):
        table = f"t{number}"
        store.create_table(table, {"id": "long", name: "string"}, "id", pre_images=True)
        store.create_tunnel(table, table, kind="BaseAndStream")
        with pytest.raises(OptionError, match=rf"differ only in case(.|\n)*received: (id, )?{name}"):
            FollowedScan.of("o", scan(spark, store, table))


def test_changes_are_not_taken_for_rows_through_views(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    df = scan(spark, store, "orders")
    totals = df.groupBy("user").agg(F.count("*").alias("n"))
    for frame in (totals, df.select("user", F.lit(1).cast("long").alias("n"))):
        with pytest.raises(OptionError, match="takes its changes for rows"):
            headrace.write_stream(frame, store=store.url, table="totals", mode="update", checkpoint=tmp_path / "c")
    # These handle the changes themselves.
    signed = df.groupBy("user").agg(F.sum(F.expr("IF(_change_type IN ('insert'), 1L, -1L)")).alias("n"))
    headrace.write_stream(signed, store=store.url, table="totals", mode="update", checkpoint=tmp_path / "c")
    store.create_queue("changes", columns=dict.fromkeys(df.columns, "string"))
    headrace.write_stream(df, store=store.url, queue="changes", checkpoint=tmp_path / "c")
    script = f"""
        CREATE TABLE orders USING headrace OPTIONS (store = '{store.url}', table = 'orders');
        CREATE TABLE totals USING headrace OPTIONS (store = '{store.url}', table = 'totals');
        CREATE SCAN orders_now ON orders USING STREAM OPTIONS (tunnel = 'orders', readAs = 'table');
        CREATE TEMPORARY VIEW cheap AS SELECT region, id, user, price FROM orders_now WHERE price < 5;
        CREATE TEMPORARY VIEW cheaper AS SELECT user FROM cheap WHERE price < 4;
    """
    with sql_session(spark, tmp_path / "workspace") as session:
        session.run(script)
        for query in (
            "SELECT user, count(*) AS n FROM cheap GROUP BY user",
            "SELECT user, count(*) AS n FROM cheaper GROUP BY user",
            "WITH c AS (SELECT * FROM cheaper) SELECT user, count(*) AS n FROM c GROUP BY user",
            "SELECT user, count(*) AS n FROM orders_now JOIN cheap USING (user) GROUP BY user",
        ):
            with pytest.raises(HeadraceError, match=r"takes its changes for rows|cheap is a stream"):
                session.run(
                    f"CREATE STREAM s OPTIONS (checkpointLocation = '{tmp_path}/c', outputMode = 'update') "
                    f"INSERT INTO totals {query}"
                )
    for view in ("cheap", "cheaper"):
        spark.catalog.dropTempView(view)


FIELDS = """
SELECT user, upper(user) AS big, count(*) AS n,
    to_json(struct(o.User, count(*), sum(price) AS user, count(*) n, n, user user)) AS alone,
    to_json((user, max(price))) AS pair, to_json(struct(user || 'x', struct(min(price)))) AS nested,
    CASE WHEN user IN (user, 'x') THEN to_json((upper(user), user, count(*) FILTER (WHERE price > 1))) END AS many
FROM orders o GROUP BY user, upper(user)
"""


def test_fields_of_a_struct_have_the_names_that_spark_gives_them(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.create_table("others", {"id": "long", "buyer": "string"}, "id", pre_images=True)
    targets = {
        "one": FIELDS,
        "inner": f"SELECT t.* FROM ({FIELDS}) t WHERE n > (SELECT count(*) FROM others)",
        "last": FIELDS.replace("FROM orders o", "FROM orders o JOIN others ON buyer = user"),
    }
    with ExitStack() as stack:
        running = []
        for target, sql in targets.items():
            texts = dict.fromkeys(("user", "big", "alone", "pair", "nested", "many"), "string")
            store.create_table(target, {**texts, "n": "long"}, ["user", "big"])
            tables = ["orders"] if target == "one" else ["orders", "others"]
            running.append(stack.enter_context(Following(spark, store, sql, tables, target, tmp_path)))
        for number in range(3):
            store.table("orders").put({"region": "r", "id": number, "user": f"u{number % 2}", "price": number})
            if number:
                store.table("others").put({"id": number, "buyer": "u1"})
            for query in running:
                assert query.advance() == query.expected()
        kept = [name for name in store.tables() if name.endswith("_groups")]
        assert sorted(name.split("_")[4] for name in kept) == ["inner", "inner", "last", "one"]


STARS = {
    "one": "SELECT region, id, user FROM orders o WHERE pmod(hash(*), 3) <> 1 AND pmod(hash(o.*), 5) <> 1",
    "inner": "SELECT * FROM (SELECT id, region, user FROM orders WHERE pmod(hash(*), 3) <> 1)",
    "groups": "SELECT id, 'all' AS region, max(user) AS user FROM orders WHERE pmod(hash(*), 3) <> 1 GROUP BY id",
    "few": "SELECT id, 'all' AS region, max(user) FILTER (WHERE pmod(hash(*), 3) <> 1) AS user FROM orders GROUP BY id",
    "joined": "SELECT o.* EXCEPT (price) FROM orders o JOIN orders x USING (region, id) WHERE pmod(hash(x.*), 3) <> 1",
}


def test_a_star_in_a_condition_has_the_columns_of_the_table(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    with ExitStack() as stack:
        running = []
        for target, sql in STARS.items():
            key = ["id"] if target in ("groups", "few") else ["region", "id"]
            store.create_table(target, {"region": "string", "id": "long", "user": "string"}, key)
            running.append(stack.enter_context(Following(spark, store, sql, ["orders"], target, tmp_path)))
        for number in range(2):
            rows = [{"region": "r", "id": each, "user": f"u{number}", "price": each} for each in range(number, 9)]
            store.table("orders").put(rows)
            for query in running:
                assert query.advance() == query.expected()
                assert 0 < len(query.expected()) < 10
