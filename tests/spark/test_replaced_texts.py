"""A followed query gets another text: its result replaces the old one at once, and stays right after each batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headrace
from headrace.errors import OptionError, SchemaError, UnsupportedError
from headrace.ports import Store
from headrace.support import failpoints
from headrace.testing.effort import THOROUGH
from tests.conformance import serving
from tests.spark.following import Following
from tests.spark.sql_scripts import sql_session
from tests.spark.test_following_kills import Killed, killing

TOTALS = "SELECT user, count(*) AS n FROM orders GROUP BY user"
MORE = "SELECT user, count(*) AS n, max(price) AS most, avg(price) AS mean FROM orders GROUP BY user HAVING n > 1"
JOINED = "SELECT o.id, u.city FROM orders o JOIN users u ON u.user = o.user"
IN_OTHER_ORDER = "SELECT o.id, u.city, u.user FROM users u JOIN orders o ON u.user = o.user WHERE o.id > 1"
OUTER = "SELECT o.id, u.city, u.age FROM orders o LEFT JOIN users u ON u.user = o.user"
STEPS = ["text-fenced", "table-read", "text-staged", "rows-written", "marker-written", "published", "text-published"]
KILLED_AT = STEPS if THOROUGH else ["text-fenced", "text-staged", "published"]


@pytest.fixture
def shop(tmp_path: Path) -> Store:
    return filled(headrace.open(tmp_path / "shop", create=True, synchronous="off"))


def filled(store: Store) -> Store:
    orders = store.create_table("orders", {"id": "long", "user": "string", "price": "long"}, "id", pre_images=True)
    users = store.create_table("users", {"user": "string", "city": "string", "age": "long"}, "user", pre_images=True)
    orders.put([{"id": n, "user": f"u{n % 3}", "price": n} for n in range(6)])
    users.put([{"user": f"u{n}", "city": f"c{n}", "age": n} for n in range(3)])
    return store


def change(store: Store, number: int) -> None:
    """Change rows in all ways: a row that comes and goes, one that comes again, an old one, and another table."""
    orders, users = store.table("orders"), store.table("users")
    orders.put([{"id": 100 + number, "user": f"u{number % 4}", "price": number}, {"id": 99, "user": "u0", "price": 1}])
    orders.delete({"id": 99})
    orders.update({"id": 1, "price": number})
    orders.update({"id": 2, "user": f"u{number % 2}"})
    orders.delete({"id": 3})
    orders.put({"id": 3, "user": "u1", "price": -number})
    users.put({"user": "u3", "city": f"c{number}", "age": number})
    users.update({"user": "u1", "city": f"d{number}"})


def killing_the_text(wanted: str) -> Callable[[str], None]:
    """Return a function that kills at a step of a new text; the fence before it is published, too."""
    reached: list[str] = []

    def reach(point: str) -> None:
        reached.append(point)
        if point == wanted and (wanted in STEPS[:2] or "text-staged" in reached):
            raise Killed(point)

    return reach


def states(store: Store) -> set[str]:
    return {name for name in store.tables() if "state" in name}


def test_one_table_is_read_again_as_of_the_last_batch(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    shop.create_table("totals", {"user": "string", "n": "long"}, "user")
    with Following(spark, shop, TOTALS, ["orders"], "totals", tmp_path) as query:
        query.advance()
        change(shop, 1)
        query.advance()
        old = states(shop)
        for number, sql in enumerate([MORE, TOTALS], 2):
            query.restart()
            change(shop, number)
            query.sql = sql
            query.arguments = {}
            with pytest.raises((OptionError, SchemaError)) as refused:
                query.start()
            assert sql == MORE or "CREATE OR REPLACE STREAM" in str(refused.value)
            query.arguments = {"replace": True}
            found = query.advance()
            # A column that the query no longer has is null.
            assert [{**row, "most": None, "mean": None} | row for row in query.expected()] == [
                {"most": None, "mean": None} | row for row in found
            ]
            assert not old & states(shop)
            change(shop, 10 + number)
            query.restart()
            query.arguments = {}
            assert len(query.advance()) == len(query.expected())
    assert {each.name for each in shop.tunnels("orders")} == {"totals_orders"}


def test_a_table_with_arrays_is_read_again_before_rows_that_only_came(spark: SparkSession, tmp_path: Path) -> None:
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        events = store.create_table("events", {"id": "long", "tags": "array<string>"}, "id", pre_images=True)
        events.put({"id": 1, "tags": ["a"]})
        store.create_table("last", {"id": "long", "n": "int"}, "id")
        with Following(spark, store, "SELECT id, 0 AS n FROM events", ["events"], "last", tmp_path) as query:
            query.advance()
            query.stop()
            events.put({"id": 2, "tags": ["b", "c"]})
            query.sql, query.arguments = "SELECT id, size(tags) AS n FROM events", {"replace": True}
            assert query.advance() == query.expected() == [{"id": 1, "n": 1}, {"id": 2, "n": 2}]


def test_postgres_tables_are_read_as_of_the_last_batch(spark: SparkSession, tmp_path: Path) -> None:
    with filled(headrace.open(serving.postgres_database())) as store:
        store.create_table("joined", {"id": "long", "city": "string"}, "id")
        with Following(spark, store, JOINED, ["orders", "users"], "joined", tmp_path) as query:
            query.advance()
            query.restart()
            change(store, 1)
            query.sql, query.arguments = OUTER, {"replace": True}
            assert query.advance() == query.expected()
            change(store, 2)
            assert query.advance() == query.expected()
        for tunnel in store.tunnels():
            store.drop_tunnel(tunnel.id)


def test_the_last_batch_of_the_old_text_is_not_counted_again(
    spark: SparkSession, shop: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.create_table("totals", {"user": "string", "n": "long"}, "user")
    with Following(spark, shop, TOTALS, ["orders"], "totals", tmp_path) as query:
        query.advance()
        change(shop, 1)
        with monkeypatch.context() as patch:
            # Spark does not commit the batch, and repeats it.
            patch.setattr(failpoints, "reach", killing("published"))
            with pytest.raises(StreamingQueryException):
                query.advance()
        query.restart()
        query.sql = "SELECT user, sum(price) AS n FROM orders GROUP BY user"
        query.arguments = {"replace": True}
        assert query.advance() == query.expected()
        change(shop, 2)
        assert query.advance() == query.expected()


def test_kept_rows_are_used_if_they_have_the_columns(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    shop.create_table("joined", {"id": "long", "city": "string", "user": "string", "age": "long"}, "id")
    with Following(spark, shop, JOINED, ["orders", "users"], "joined", tmp_path) as query:
        query.advance()
        change(shop, 1)
        query.advance()
        for number, (sql, kept) in enumerate([(IN_OTHER_ORDER, 2), (OUTER, 1)], 2):
            before = states(shop)
            query.restart()
            change(shop, number)
            query.sql, query.arguments = sql, {"replace": True}
            rows = [{"user": None, "age": None} | row for row in query.expected()]
            assert [{"user": None, "age": None} | row for row in query.advance()] == rows
            assert len(before & states(shop)) == kept
            change(shop, 10 + number)
            query.restart()
            query.arguments = {}
            change(shop, 20 + number)
            rows = [{"user": None, "age": None} | row for row in query.expected()]
            assert query.advance() == [{name: row[name] for name in ("id", "city", "user", "age")} for row in rows]


def test_a_kill_leaves_the_old_result_or_the_new_one(
    spark: SparkSession, shop: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.create_table("totals", {"user": "string", "n": "long", "most": "long", "mean": "double"}, "user")
    with Following(spark, shop, TOTALS, ["orders"], "totals", tmp_path) as query:
        query.advance()
        texts = [MORE, TOTALS]
        for number, point in enumerate(KILLED_AT):
            query.restart()
            before = shop.table("totals").scan().read_all()
            change(shop, number)
            query.sql, query.arguments = texts[number % 2], {"replace": True}
            with monkeypatch.context() as patch:
                patch.setattr(failpoints, "reach", killing_the_text(point))
                with pytest.raises(Killed, match=point):
                    query.start()
            after = shop.table("totals").scan().read_all()
            assert after.equals(before) == (STEPS.index(point) < STEPS.index("published"))
            found = query.advance()
            expected = query.expected()
            assert [{name: row[name] for name in expected[0]} for row in found] == expected, point
    assert len(states(shop)) <= 2


@pytest.mark.parametrize("replaces", [False, True])
def test_a_query_gets_another_text_before_its_first_batch_is_published(
    spark: SparkSession, shop: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaces: bool
) -> None:
    shop.create_table("joined", {"id": "long", "city": "string"}, "id")
    with Following(spark, shop, JOINED, ["orders", "users"], "joined", tmp_path) as query:
        with monkeypatch.context() as patch:
            # The batch is planned, and has its tables of state.
            patch.setattr(failpoints, "reach", killing("rows-written"))
            with pytest.raises(StreamingQueryException):
                query.advance()
        query.restart()
        old = states(shop)
        change(shop, 1)
        added = ", u.user" if replaces else ""
        # The tables in another order, other kept columns, and fewer tables of state.
        query.sql = f"SELECT o.id, u.city{added} FROM users u LEFT JOIN orders o ON o.user = u.user WHERE o.price > 0"
        query.arguments = {"replace": replaces}
        assert query.advance() == query.expected()
        change(shop, 2)
        assert query.advance() == query.expected()
        for name in states(shop) & old:
            assert shop.table(name).describe().rows, "a table of the former text is left"


@pytest.mark.parametrize("point", ["text-fenced", "text-staged"])
def test_of_two_replacements_at_the_same_time_one_wins(
    spark: SparkSession, shop: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    shop.create_table("totals", {"user": "string", "n": "long", "most": "long", "mean": "double"}, "user")
    with Following(spark, shop, TOTALS, ["orders"], "totals", tmp_path) as query:
        query.advance()
        query.restart()
        query.sql, query.arguments = MORE, {"replace": True}
        winner = TOTALS.replace("count(*)", "sum(price)")
        others = iter([winner])

        def replace_again(reached: str) -> None:
            if reached == point and (query.sql == MORE) and (text := next(others, None)):
                query.sql = text
                query.start()

        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "reach", replace_again)
            with pytest.raises(OptionError, match="another process replaces the text of the query"):
                query.start()
        assert query.sql == winner
        change(shop, 1)
        found, expected = query.advance(), query.expected()
        assert [{name: row[name] for name in expected[0]} for row in found] == expected
    assert len(states(shop)) <= 2


def test_a_table_that_cannot_be_read_as_of_the_last_batch_is_refused(
    spark: SparkSession, shop: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.create_table("part", {"user": "string", "n": "long"}, "user")
    with Following(spark, shop, TOTALS, ["orders"], "part", tmp_path, options={"maxRowsPerTrigger": 2}) as query:
        with monkeypatch.context() as patch:
            # After a part of base data.
            patch.setattr(failpoints, "reach", killing("published"))
            with pytest.raises(StreamingQueryException):
                query.advance()
        query.restart()
        query.sql, query.arguments = MORE, {"replace": True}
        with pytest.raises(OptionError, match="has not read all rows that were in the table"):
            query.start()
    shop.create_table("joined", {"id": "long", "city": "string"}, "id")
    with Following(spark, shop, JOINED, ["orders", "users"], "joined", tmp_path, together="both") as query:
        query.advance()
        query.restart()
        query.sql, query.arguments = OUTER, {"replace": True}
        with pytest.raises(UnsupportedError, match="a tunnel of several tables"):
            query.start()
        query.sql = f"{JOINED} WHERE o.id > 1"
        assert query.advance() == query.expected()


def test_a_query_that_fails_for_a_row_gets_another_text(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    shop.create_table("shares", {"id": "long", "share": "double"}, "id")
    shop.table("orders").delete({"id": 0})
    with Following(spark, shop, "SELECT id, 10 / price AS share FROM orders", ["orders"], "shares", tmp_path) as query:
        query.advance()
        shop.table("orders").put([{"id": 7, "user": "u1", "price": 0}, {"id": 8, "user": "u1", "price": 5}])
        query.restart()
        with pytest.raises(StreamingQueryException):
            query.advance()
        query.restart()
        query.sql, query.arguments = "SELECT id, try_divide(10, price) AS share FROM orders", {"replace": True}
        assert query.advance() == query.expected()


def test_a_running_query_publishes_nothing_after_its_text_was_replaced(
    spark: SparkSession, shop: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.create_table("totals", {"user": "string", "n": "long", "most": "long", "mean": "double"}, "user")
    with Following(spark, shop, TOTALS, ["orders"], "totals", tmp_path) as query:
        query.advance()
        old = query.query
        assert old is not None
        query.sql, query.arguments = MORE, {"replace": True}
        with monkeypatch.context() as patch:
            # The new text is published, and Spark is not started.
            patch.setattr(failpoints, "reach", killing("text-published"))
            with pytest.raises(Exception, match="text-published"):
                query.start()
        change(shop, 1)
        with pytest.raises(StreamingQueryException, match=r"another query|got another text"):
            old.processAllAvailable()
        assert query.start() is not old
        found = query.advance()
        assert [row["user"] for row in found] == [row["user"] for row in query.expected()]


def test_sql_replaces_the_text_of_a_running_stream(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    shop.create_table("totals", {"user": "string", "n": "long"}, "user")
    create = "INSERT INTO totals SELECT user, count(*) AS n FROM orders_now GROUP BY user"
    more = create.replace("count(*) AS n", "count(*) AS n, sum(price) AS spent")
    with sql_session(spark, tmp_path) as sql:
        sql.run(f"""
            CREATE TABLE orders USING headrace OPTIONS (store = '{shop.url}', table = 'orders');
            CREATE TABLE totals USING headrace OPTIONS (store = '{shop.url}', table = 'totals');
            CREATE TUNNEL now ON orders;
            CREATE SCAN orders_now ON orders USING STREAM OPTIONS (tunnel = 'now', readAs = 'table');
            CREATE STREAM totals {create};
        """)
        sql.spark.streams.active[0].processAllAvailable()
        with pytest.raises(Exception, match="CREATE OR REPLACE STREAM totals"):
            sql.run(f"STOP STREAM totals; CREATE STREAM totals {more}")
        sql.run("START STREAM totals")
        assert ("totals", "read", "the table of orders_now: 6 rows") in sql.diff(f"CREATE STREAM totals {more}")
        assert ("totals", "new column", "spent long") in sql.diff(f"CREATE STREAM totals {more}")
        assert sql.diff(f"CREATE STREAM totals {create}") == [("totals", "text", "unchanged")]
        explained = sql.run(f"EXPLAIN CREATE OR REPLACE STREAM totals {more}")[0].fetch()
        assert ("computed again", "the state of groups (groups)") in explained
        assert "spent" not in shop.table("totals").schema
        (result,) = sql.run(f"CREATE OR REPLACE STREAM totals {more}")
        assert result.message == "stream totals continues with its new text"
        assert shop.table("totals").get({"user": "u1"}) == {"user": "u1", "n": 2, "spent": 5}
        assert sql.streams()[0].state == "running"
        assert "OR REPLACE" not in sql.streams()[0].script
        other = "CREATE OR REPLACE STREAM totals INSERT INTO totals SELECT user, 1L AS n FROM orders"
        with pytest.raises(Exception, match="only a stream that follows tables can be replaced"):
            sql.run(other)
