"""Queries over several tables that change, and queries that need all rows of a group: joins, absence, ranks, totals."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headrace
from headrace.derived.aggregate_calls import KINDS, OTHER_AGGREGATES
from headrace.derived.follow import gathered_batches
from headrace.errors import OptionError, SqlError, UnsupportedError
from headrace.ports import Store
from headrace.support import failpoints
from headrace.testing.effort import THOROUGH
from tests.conformance import serving
from tests.spark.followed_histories import prepare
from tests.spark.following import Following, view_rows
from tests.spark.test_following_kills import Killed, killing
from tests.spark.test_following_stores import sink

ORDERS = {"id": "long", "customer": "long", "amount": "decimal(10,2)", "note": "string"}
CUSTOMERS = {"id": "long", "name": "string", "nation": "long"}
NATIONS = {"id": "long", "label": "string"}
BY_NATION = """
    SELECT n.label, count(*) AS orders, sum(o.amount) AS total
    FROM orders o JOIN customers c ON o.customer = c.id JOIN nations n ON c.nation = n.id GROUP BY n.label
"""
QUERIES = {
    "by_nation": (BY_NATION, {"label": "string", "orders": "long", "total": "decimal(20,2)"}, "label"),
    # The key of a customer determines the other columns of GROUP BY, of which one can be null.
    "by_customer": (
        "SELECT c.id, c.name, n.label, count(*) AS orders, sum(o.amount) AS total FROM orders o "
        "JOIN customers c ON o.customer = c.id LEFT JOIN nations n ON c.nation = n.id GROUP BY c.id, c.name, n.label",
        {"id": "long", "name": "string", "label": "string", "orders": "long", "total": "decimal(20,2)"},
        "id",
    ),
    "large_customers": (
        "SELECT o.customer, upper(n.label) AS label, sum(o.amount) AS total FROM orders o "
        "JOIN customers c ON o.customer = c.id LEFT JOIN nations n ON c.nation = n.id "
        "GROUP BY o.customer, c.id, n.label HAVING sum(o.amount) > 700",
        {"customer": "long", "label": "string", "total": "decimal(20,2)"},
        "customer",
    ),
    "with_names": (
        "SELECT o.id, c.name, n.label FROM orders o LEFT JOIN customers c ON o.customer = c.id "
        "LEFT JOIN nations n ON c.nation = n.id",
        {"id": "long", "name": "string", "label": "string"},
        "id",
    ),
    "with_totals": (
        "SELECT c.id, (SELECT count(*) FROM orders o WHERE o.customer = c.id) AS n, "
        "(SELECT max(n.label) FROM nations n WHERE n.id = c.nation) AS label FROM customers c",
        {"id": "long", "n": "long", "label": "string"},
        "id",
    ),
    "without_large_orders": (
        "SELECT c.id, c.name FROM customers c "
        "WHERE NOT EXISTS (SELECT * FROM orders o WHERE o.customer = c.id AND o.amount > 150)",
        {"id": "long", "name": "string"},
        "id",
    ),
    "largest": (
        "SELECT customer, id, place FROM (SELECT customer, id, row_number() OVER (PARTITION BY customer "
        "ORDER BY amount DESC, id) AS place FROM orders WHERE customer IS NOT NULL) WHERE place <= 2",
        {"customer": "long", "id": "long", "place": "int"},
        ["customer", "place"],
    ),
    "medians": (
        "SELECT c.nation, median(o.amount) AS m FROM orders o JOIN customers c ON o.customer = c.id "
        "WHERE c.nation IS NOT NULL GROUP BY c.nation",
        {"nation": "long", "m": "double"},
        "nation",
    ),
    "above_the_mean": (
        "WITH t AS (SELECT customer, sum(amount) AS s FROM orders GROUP BY customer) "
        "SELECT c.id, c.name, t.s FROM customers c JOIN t ON t.customer = c.id WHERE t.s > (SELECT avg(s) FROM t)",
        {"id": "long", "name": "string", "s": "decimal(20,2)"},
        "id",
    ),
    "distribution": (
        "SELECT n, count(*) AS customers FROM "
        "(SELECT c.id, count(o.id) AS n FROM customers c LEFT JOIN orders o ON o.customer = c.id GROUP BY c.id) "
        "GROUP BY n",
        {"n": "long", "customers": "long"},
        "n",
    ),
    "piped": (
        "FROM customers |> WHERE nation IS NOT NULL |> AGGREGATE count(*) AS customers GROUP BY nation",
        {"nation": "long", "customers": "long"},
        "nation",
    ),
    "by_minute": (
        "SELECT CAST(window.start AS STRING) AS minute, c.name, count(*) AS n, max(o.amount) AS most FROM orders o "
        "JOIN customers c ON o.customer = c.id GROUP BY window(timestamp_seconds(o.id * 5), '1 minute'), c.name",
        {"minute": "string", "name": "string", "n": "long", "most": "decimal(10,2)"},
        ["minute", "name"],
    ),
    "by_digit": (
        "SELECT digit, c.nation, count(*) AS n, max(o.amount) AS most FROM orders o JOIN customers c "
        "ON o.customer = c.id LATERAL VIEW explode(split(CAST(o.id AS STRING), '')) t AS digit "
        "WHERE c.nation IS NOT NULL GROUP BY digit, c.nation",
        {"digit": "string", "nation": "long", "n": "long", "most": "decimal(10,2)"},
        ["digit", "nation"],
    ),
    "by_digit_of_lateral": (
        "SELECT e.digit, c.nation, count(*) AS n, max(o.amount) AS most FROM orders o JOIN customers c "
        "ON o.customer = c.id JOIN LATERAL explode(split(CAST(o.id AS STRING), '')) AS e (digit) "
        "WHERE c.nation IS NOT NULL GROUP BY e.digit, c.nation",
        {"digit": "string", "nation": "long", "n": "long", "most": "decimal(10,2)"},
        ["digit", "nation"],
    ),
    "places_of_digits": (
        "SELECT o.id, e.place, e.digit, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.id, "
        "LATERAL posexplode(split(CAST(o.amount AS STRING), '')) AS e (place, digit)",
        {"id": "long", "place": "int", "digit": "string", "name": "string"},
        ["id", "place"],
    ),
    "letters": (
        "SELECT c.id, n.label, explode(array_distinct(split(c.name, ''))) AS letter "
        "FROM customers c LEFT JOIN nations n ON c.nation = n.id",
        {"id": "long", "label": "string", "letter": "string"},
        ["id", "letter"],
    ),
    "names": (
        "SELECT name FROM customers WHERE name IS NOT NULL UNION SELECT label FROM nations WHERE label IS NOT NULL",
        {"name": "string"},
        "name",
    ),
}
QUICK = (
    "by_customer",
    "large_customers",
    "by_nation",
    "with_totals",
    "with_names",
    "without_large_orders",
    "largest",
    "distribution",
)


class Shop:
    """Three tables that change at random."""

    def __init__(self, store: Store, customers: Store | None = None) -> None:
        self.store, self.random = store, random.Random(7)
        tables = ((store, "orders", ORDERS), (customers or store, "customers", CUSTOMERS), (store, "nations", NATIONS))
        self.orders, self.customers, self.nations = (
            each.create_table(name, columns, "id", pre_images=True) for each, name, columns in tables
        )
        self.nations.put([{"id": n, "label": f"n{n}"} for n in range(3)])
        self.customers.put([self._customer(n) for n in range(12)])
        self.orders.put([self._order(n) for n in range(80)])

    def _order(self, number: int) -> dict[str, Any]:
        customer = self.random.choice([None, *range(14)])
        return {"id": number, "customer": customer, "amount": Decimal(self.random.randrange(300)), "note": "x"}

    def _customer(self, number: int) -> dict[str, Any]:
        return {"id": number, "name": f"c{number % 9}", "nation": self.random.choice([None, 0, 1, 2, 3])}

    def change(self) -> None:
        """Change rows of all tables; some come and go, some change in a column that no query uses."""
        self.orders.put([self._order(self.random.randrange(90)) for _ in range(8)])
        self.orders.update([{"id": 1, "note": "y"}])
        self.orders.delete([{"id": self.random.randrange(90)} for _ in range(4)])
        self.customers.put([self._customer(self.random.randrange(14)) for _ in range(3)])
        self.customers.delete({"id": self.random.randrange(14)})
        self.nations.put({"id": self.random.randrange(4), "label": f"m{self.random.randrange(9)}"})
        self.orders.put(self._order(1000))
        self.orders.delete({"id": 1000})


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with headrace.open(tmp_path / "shop", create=True, synchronous="off") as store:
        yield Shop(store)


def tables_in(sql: str) -> list[str]:
    return [name for name in ("orders", "customers", "nations") if f" {name}" in sql]


@pytest.mark.parametrize("most", [None, 0])
def test_queries_over_several_tables_are_right_after_every_batch(
    spark: SparkSession, tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    """With a limit of 0, each batch that reads other rows reads all, in tasks."""
    prepare(spark)
    if most is not None:
        monkeypatch.setattr(gathered_batches, "_MOST_ROWS", most)
    with ExitStack() as stack:
        running = {}
        for name in QUERIES if THOROUGH else QUICK if most is None else QUICK[:3]:
            sql, columns, key = QUERIES[name]
            shop.store.create_table(name, columns, key)
            running[name] = stack.enter_context(
                Following(spark, shop.store, sql, tables_in(sql), name, tmp_path / "checkpoints")
            )
        for number in range(4 if THOROUGH else 3):
            for name, query in running.items():
                assert query.advance() == query.expected(), (name, number)
                if number == 1:
                    query.restart()
            shop.change()


def test_a_join_that_is_killed_at_any_step_continues_with_its_state(
    spark: SparkSession, tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(spark)
    sql, columns, key = QUERIES["by_nation"]
    shop.store.create_table("by_nation", columns, key)

    def advance(query: Following, reach: Callable[[str], None]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "reach", reach)
            query.advance()

    with Following(spark, shop.store, sql, tables_in(sql), "by_nation", tmp_path) as query:
        # The first batch, which creates the state.
        with pytest.raises(StreamingQueryException, match="marker-written"):
            advance(query, killing("marker-written"))
        query.restart()
        assert query.advance() == query.expected()
        query.restart()
        shop.change()
        steps: list[str] = []
        advance(query, steps.append)
        # The driver has all rows of a small batch, and no other process needs them.
        assert "rows-staged" not in steps
        assert {"rows-written", "marker-written"} < set(steps)
        for point in dict.fromkeys(steps) if THOROUGH else ("rows-written", "published"):
            query.restart()
            shop.change()
            with pytest.raises(StreamingQueryException, match=point):
                advance(query, killing(point))
            query.restart()
            assert query.advance() == query.expected(), point


def test_a_first_load_in_parts_continues_with_the_batch_in_which_it_was_killed(
    spark: SparkSession, tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(spark)
    sql, columns, key = QUERIES["by_nation"]
    shop.store.create_table("by_nation", columns, key)
    published: list[str] = []

    def reach(point: str) -> None:
        if point == "published":
            published.append(point)
        if point == "marker-written" and len(published) == 2:
            raise Killed(point)

    options = {"maxRowsPerTrigger": 20}
    with Following(spark, shop.store, sql, tables_in(sql), "by_nation", tmp_path, options=options) as query:
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "reach", reach)
            with pytest.raises(StreamingQueryException, match="marker-written"):
                query.advance()
        query.restart()
        assert query.advance() == query.expected()
        assert query.query is not None
        batches = {each.batchId: each.numInputRows for each in query.query.recentProgress if each.numInputRows}
        # Two batches of 20 orders were published; the third one runs again.
        assert batches == {2: 20, 3: 20}


def test_tables_of_two_stores_are_joined_into_a_third(spark: SparkSession, tmp_path: Path) -> None:
    prepare(spark)
    with (
        headrace.open(tmp_path / "shop", create=True, synchronous="off") as store,
        headrace.open(serving.postgres_database()) as customers,
        sink("postgres", tmp_path) as to,
    ):
        shop = Shop(store, customers)
        sql, columns, key = QUERIES["by_nation"]
        to.store.create_table("by_nation", columns, key)
        scans = {}
        for name, source in (("orders", store), ("customers", customers), ("nations", store)):
            source.create_tunnel(name, "joined", kind="BaseAndStream")
            reader = spark.readStream.format("headrace").options(store=source.url, tunnel="joined", readAs="table")
            scans[name] = reader.load(name)
        stream = headrace.follow(
            spark, sql, scans=scans, store=to.store.url, table="by_nation", checkpoint=tmp_path / "checkpoint"
        )
        query = stream.start()
        try:
            for _ in range(3):
                query.processAllAvailable()
                for name, source in (("orders", store), ("customers", customers), ("nations", store)):
                    view_rows(spark, source, name)
                expected = sorted(tuple(row) for row in spark.sql(sql).collect())
                found = to.store.table("by_nation").scan().read_all().to_pylist()
                assert [tuple(row.values()) for row in found] == expected
                shop.change()
        finally:
            query.stop()


def test_a_query_that_reads_whole_tables_warns_or_is_refused(
    spark: SparkSession, tmp_path: Path, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    sql, columns, key = QUERIES["above_the_mean"]
    # For a comparison with the mean itself, the rows between the old and the new one are enough.
    sql = sql.replace("avg(s)", "avg(s) + 1")
    shop.store.create_table("above_the_mean", columns, key)
    query = Following(spark, shop.store, sql, tables_in(sql), "above_the_mean", tmp_path / "checkpoints")
    tables = set(shop.store.tables())
    with pytest.raises(
        SqlError, match=r"allowFullRead is false, and the query has a scalar subquery(.|\n)*all rows of"
    ):
        replace(query, arguments={"allow_full_read": False}).start()
    assert set(shop.store.tables()) == tables
    assert not (tmp_path / "checkpoints").exists()
    with query:
        assert query.advance() == query.expected()
    (warning,) = [each.getMessage() for each in caplog.records if "is expensive" in each.getMessage()]
    assert "a scalar subquery that no equality links: a change of inner groups 2 reads all rows of" in warning


@pytest.mark.parametrize("name", ["by_minute", "by_digit", "by_digit_of_lateral", "places_of_digits", "letters"])
def test_windows_and_generated_rows_of_joins_do_not_read_whole_tables(
    spark: SparkSession, tmp_path: Path, shop: Shop, name: str
) -> None:
    prepare(spark)
    sql, columns, key = QUERIES[name]
    shop.store.create_table(name, columns, key)
    arguments = {"allow_full_read": False}
    with Following(spark, shop.store, sql, tables_in(sql), name, tmp_path, arguments=arguments) as query:
        for _ in range(3 if THOROUGH else 2):
            assert query.advance() == query.expected()
            shop.change()


def test_values_of_all_types_pass_through_a_join(spark: SparkSession, tmp_path: Path, shop: Shop) -> None:
    prepare(spark)
    columns = {
        "id": "long", "at": "timestamp", "local": "timestamp_ntz", "day": "date", "raw": "binary", "flag": "boolean",
        "f": "float", "x": "double", "tags": "array<string>", "counts": "map<string,long>",
        "deep": "array<struct<n:int,m:map<string,array<decimal(10,2)>>>>",
    }  # fmt: skip
    things = shop.store.create_table("things", columns, "id", pre_images=True)
    shop.store.create_table("named", {**columns, "name": "string"}, "id")
    row = {
        "at": datetime.datetime(2026, 3, 1, 12, 30, 1, 5, tzinfo=datetime.UTC),
        "local": datetime.datetime(1950, 3, 1, 12),
        "day": datetime.date(1600, 1, 1),
        "raw": b"\x00\xff",
        "flag": True,
        "f": -0.0,
        "x": float("-inf"),
        "tags": ["a", None, ""],
        "counts": {"b": 1, "a": None},
        "deep": [{"n": 1, "m": {"k": [Decimal("1.10"), None]}}, None],
    }
    things.put([{"id": 1, **row}, {"id": 2}])
    sql = "SELECT t.*, c.name FROM things t LEFT JOIN customers c ON c.id = t.id"
    with Following(spark, shop.store, sql, ["things", "customers"], "named", tmp_path) as query:
        found = query.advance()
        assert [{**each, "name": None} for each in found] == [
            {**each, "name": None} for each in things.scan().read_all().to_pylist()
        ]
        shop.customers.put([{"id": 1, "name": "one", "nation": 1}, {"id": 2, "name": "two", "nation": 1}])
        assert query.advance() == [{**each, "name": name} for each, name in zip(found, ("one", "two"), strict=True)]


def test_two_rows_of_one_key_end_the_query_at_their_batch(spark: SparkSession, tmp_path: Path, shop: Shop) -> None:
    prepare(spark)
    sql = "SELECT c.id, o.amount FROM customers c JOIN orders o ON o.customer = c.id WHERE o.amount >= 1000"
    shop.store.create_table("large", {"id": "long", "amount": "decimal(10,2)"}, "id")
    with Following(spark, shop.store, sql, ["customers", "orders"], "large", tmp_path) as query:
        assert query.advance() == []
        shop.orders.put({"id": 500, "customer": 1, "amount": Decimal(1000)})
        assert query.advance() == [{"id": 1, "amount": Decimal(1000)}]
        # The second row comes in a later batch than the first one.
        shop.orders.put({"id": 501, "customer": 1, "amount": Decimal(2000)})
        with pytest.raises(StreamingQueryException, match=r"several rows with the same key(.|\n)*\(id\)"):
            query.advance()
    assert shop.store.table("large").scan().read_all().to_pylist() == [{"id": 1, "amount": Decimal(1000)}]


def test_an_expression_that_fails_for_a_pair_of_rows_is_named(spark: SparkSession, tmp_path: Path, shop: Shop) -> None:
    prepare(spark)
    sql = "SELECT o.id, 1000 / o.amount AS x FROM orders o JOIN customers c ON o.customer = c.id AND c.name = 'best'"
    shop.store.create_table("shares", {"id": "long", "x": "decimal(20,6)"}, "id")
    with Following(spark, shop.store, sql, ["customers", "orders"], "shares", tmp_path) as query:
        assert query.advance() == []
        # A pair that comes and goes within a batch is not evaluated.
        query.restart()
        shop.orders.put({"id": 600, "customer": 20, "amount": Decimal(0)})
        shop.customers.put({"id": 20, "name": "best", "nation": 1})
        shop.orders.delete({"id": 600})
        assert query.advance() == []
        shop.orders.put({"id": 601, "customer": 20, "amount": Decimal(0)})
        with pytest.raises(StreamingQueryException, match=r"1000 / o\.amount"):
            query.advance()


def test_rows_that_were_never_together_fail_no_batch(
    spark: SparkSession, tmp_path: Path, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """One evaluation of a join compares the order before the batch with the customer after it, too."""
    prepare(spark)
    sql = (
        "SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer = c.id "
        "JOIN nations n ON n.id = CAST(1 / (o.amount - c.nation) AS BIGINT)"
    )
    shop.store.create_table("shares", {"id": "long", "name": "string"}, "id")
    shop.customers.put({"id": 20, "name": "best", "nation": 1000})
    shop.orders.put({"id": 600, "customer": 20, "amount": Decimal(1001)})
    shop.orders.delete([{"id": number} for number in range(100)])
    with Following(spark, shop.store, sql, tables_in(sql), "shares", tmp_path) as query:
        assert query.advance() == [{"id": 600, "name": "best"}]
        query.restart()
        shop.customers.put({"id": 20, "name": "better", "nation": 1001})
        shop.orders.put({"id": 600, "customer": 20, "amount": Decimal(1002)})
        assert query.advance() == [{"id": 600, "name": "better"}]
    assert "one evaluation of a batch failed" in caplog.text


def test_what_cannot_keep_the_rows_of_a_join_is_refused_before_it_starts(
    spark: SparkSession, tmp_path: Path, shop: Shop
) -> None:
    sql, columns, key = QUERIES["without_large_orders"]
    with sink("tablestore", tmp_path) as to:
        to.store.create_table("without", columns, key)
        arguments = {"options": to.options}
        query = Following(
            spark, shop.store, sql, tables_in(sql), "without", tmp_path, sink=to.store, arguments=arguments
        )
        with pytest.raises(UnsupportedError, match="in one transaction"):
            query.start()
    for sql, message in (
        ("SELECT DISTINCT name COLLATE UTF8_LCASE AS name FROM customers", "with a collation"),
        (
            "SELECT o.id FROM orders o JOIN customers c ON o.customer = c.id DISTRIBUTE BY o.id",
            "RepartitionByExpression",
        ),
    ):
        query = Following(spark, shop.store, sql, tables_in(sql), "without", tmp_path, sink=shop.store)
        with pytest.raises(SqlError, match=message):
            query.start()
    shop.store.create_table("orders_again", ORDERS, "id", pre_images=True)
    sql = "SELECT o.* FROM orders o LEFT SEMI JOIN customers c ON o.customer = c.id"
    query = Following(spark, shop.store, sql, ["orders", "customers"], "orders", tmp_path)
    with pytest.raises(OptionError, match="a table that it follows"):
        query.start()


def test_the_aggregates_of_spark_are_known(spark: SparkSession) -> None:
    classes = "org.apache.spark.sql.catalyst.expressions"
    java: Any = spark.sparkContext._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()

    def is_one(name: str, *kinds: str) -> bool:
        shown = [str(line) for (line,) in spark.sql(f"DESCRIBE FUNCTION `{name}`").collect()]
        named = next((line.removeprefix("Class: ") for line in shown if line.startswith("Class: ")), None)
        find = java.java.lang.Class.forName
        return named is not None and any(
            find(f"{classes}.{kind}", True, loader).isAssignableFrom(find(named, True, loader)) for kind in kinds
        )

    names = {str(name) for (name,) in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    aggregates = {name for name in names if is_one(name, "aggregate.AggregateFunction", "RuntimeReplaceableAggregate")}
    windows = {name for name in aggregates if is_one(name, "WindowFunction")}
    # `measure` is one of views with metrics only.
    assert aggregates - windows - {"measure"} <= KINDS.keys() | OTHER_AGGREGATES
