"""Starts of followed queries after other settings, another target of the same name, or another job in the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, lit

import headrace
from headrace.batches.sinks.jobs import TargetJobs
from headrace.errors import AlreadyExistsError, DataLossError, OptionError, SqlError
from headrace.ports import Store
from tests.spark.following import Following
from tests.spark.sql_scripts import sql_session

TOTALS = "SELECT user, count(*) AS n, sum(price * ${factor}) AS s FROM orders WHERE price >= ${least} GROUP BY user"
PLAIN = "SELECT user, count(*) AS n, sum(price) AS s FROM orders GROUP BY user"


@pytest.fixture
def shop(tmp_path: Path) -> Store:
    store = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    orders = store.create_table("orders", {"id": "long", "user": "string", "price": "double"}, "id", pre_images=True)
    orders.put([{"id": n, "user": f"u{n % 2}", "price": float(n)} for n in range(6)])
    create_totals(store)
    return store


def create_totals(store: Store) -> None:
    store.create_table("totals", {"user": "string", "n": "long", "s": "double"}, "user")


def following(spark: SparkSession, store: Store, directory: Path, sql: str = PLAIN, **arguments: Any) -> Following:
    return Following(spark, store, sql, ["orders"], "totals", directory, arguments=arguments)


def test_a_query_starts_again_only_with_the_settings_and_variables_of_its_first_start(
    spark: SparkSession, shop: Store, tmp_path: Path
) -> None:
    spark.sql("SET factor = 2")
    spark.sql("SET least = 1")
    with following(spark, shop, tmp_path, TOTALS) as query:
        assert query.advance() == query.expected()
        query.restart()
        spark.sql("SET factor = 3")
        with pytest.raises(OptionError, match=r"\$\{factor\} = 2 before, = 3 now.*SET factor = 2; or"):
            query.start()
        spark.sql("SET factor = 2")
        ansi = str(spark.conf.get("spark.sql.ansi.enabled"))
        other = "false" if ansi == "true" else "true"
        spark.sql(f"SET spark.sql.ansi.enabled = {other}")
        with pytest.raises(OptionError, match=f"spark.sql.ansi.enabled = {ansi} before, = {other} now"):
            query.start()
        spark.sql(f"SET spark.sql.ansi.enabled = {ansi}")
        spark.sql("SET spark.sql.legacy.sizeOfNull = true")
        with pytest.raises(OptionError, match=r"sizeOfNull not set before, = true now.*RESET spark.sql.legacy"):
            query.start()
        spark.sql("RESET spark.sql.legacy.sizeOfNull")
        # Settings that only tune may change.
        spark.sql("SET spark.sql.autoBroadcastJoinThreshold = 1000")
        shop.table("orders").delete([{"id": 3}])
        assert query.advance() == query.expected()


def test_a_variable_of_the_environment_is_refused(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    with pytest.raises(SqlError, match="can differ at its next start"):
        following(spark, shop, tmp_path, f"{PLAIN} HAVING count(*) > ${{env:SHLVL}}").start()


def test_settings_must_not_change_between_the_check_of_a_query_and_its_start(
    spark: SparkSession, shop: Store, tmp_path: Path
) -> None:
    shop.create_tunnel("orders", "stats")
    reader = spark.readStream.format("headrace").options(store=shop.url, tunnel="stats", readAs="table")
    stream = headrace.follow(
        spark, PLAIN, scans={"orders": reader.load()}, store=shop.url, table="totals", checkpoint=tmp_path / "c"
    )
    spark.sql("SET spark.sql.caseSensitive = true")
    with pytest.raises(OptionError, match=r"changed since the query was checked.*spark.sql.caseSensitive"):
        stream.start()


def test_a_target_that_was_dropped_and_created_again_is_refused_and_computed_anew(
    spark: SparkSession, shop: Store, tmp_path: Path
) -> None:
    with following(spark, shop, tmp_path) as query:
        query.advance()
        query.restart()
        shop.drop_table("totals")
        create_totals(shop)
        with pytest.raises(DataLossError, match="'totals' was dropped and created again") as refused:
            query.start()
        assert "use a new checkpoint location and a new tunnel, and set overwrite to true" in str(refused.value)
    query = Following(spark, shop, PLAIN, ["orders"], "totals", tmp_path / "new", tunnels="new")
    query.arguments = {"overwrite": True}
    with query:
        assert query.advance() == query.expected()


def test_a_running_query_notices_that_its_target_was_created_again(
    spark: SparkSession, shop: Store, tmp_path: Path
) -> None:
    with following(spark, shop, tmp_path) as query:
        query.advance()
        shop.drop_table("totals")
        create_totals(shop)
        shop.table("orders").delete([{"id": 3}])
        with pytest.raises(Exception, match="'totals' was dropped and created again"):
            query.advance()
        assert shop.table("totals").scan().read_all().num_rows == 0


def test_a_restored_store_has_its_jobs_with_it(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    with following(spark, shop, tmp_path) as query:
        query.advance()
    shop.back_up(tmp_path / "backup")
    headrace.restore(tmp_path / "backup", tmp_path / "other")
    with headrace.open(tmp_path / "other", synchronous="off") as other:
        job = TargetJobs(other).find("totals")
        assert job is not None
        assert TargetJobs(other).replaced(job) == []


def test_a_target_in_an_older_copy_of_its_store_is_refused(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    with headrace.open(tmp_path / "sink", create=True, synchronous="off") as sink:
        create_totals(sink)
    with Following(spark, shop, PLAIN, ["orders"], "totals", tmp_path, sink=headrace.open(tmp_path / "sink")) as query:
        query.advance()
        query.stop()
        with headrace.open(tmp_path / "sink") as sink:
            sink.back_up(tmp_path / "backup")
        for number in range(2):
            shop.table("orders").delete([{"id": number}])
            query.advance()
        query.stop()
        (tmp_path / "sink").rename(tmp_path / "newest")
        headrace.restore(tmp_path / "backup", tmp_path / "sink")
        shop.table("orders").delete([{"id": 2}])
        with pytest.raises(Exception, match="the store is older than the checkpoint"):
            query.advance()


# -- one job for a target ----------------------------------------------------------------------------------


def test_a_followed_query_a_mirror_and_a_merge_have_no_target_in_common(
    spark: SparkSession, shop: Store, tmp_path: Path
) -> None:
    copied = headrace.mirror(
        spark, source=shop.url, table="orders", to=shop.url, to_table="copy", checkpoint=tmp_path / "m", name="copy"
    )
    running = copied.start()
    running.processAllAvailable()
    rows = "SELECT id, user, price FROM orders"
    with Following(spark, shop, rows, ["orders"], "copy", tmp_path) as query:
        with pytest.raises(AlreadyExistsError, match="a mirror fills table 'copy'"):
            query.start()
        shop.create_tunnel("orders", "changes")
        changes = spark.readStream.format("headrace").options(store=shop.url, tunnel="changes").load()
        merge = "MERGE INTO {} t USING c s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
        with pytest.raises(OptionError, match="a mirror fills table 'copy', and this MERGE"):
            headrace.merge(spark, merge.format("copy"), scans={"c": changes}, store=shop.url, checkpoint=tmp_path / "x")
        # With overwrite, the query takes the target, and the mirror writes no further batch.
        query.arguments = {"overwrite": True}
        assert query.advance() == query.expected()
        shop.table("orders").delete([{"id": 1}])
        with pytest.raises(Exception, match="another query follows a table into 'copy'"):
            running.processAllAvailable()
        assert query.advance() == query.expected()
        with pytest.raises(AlreadyExistsError, match="a followed query fills table 'copy'"):
            copied.start()


def test_a_running_merge_stops_when_its_target_gets_a_job(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    shop.create_table("copy", {"id": "long", "user": "string", "price": "double"}, "id")
    shop.create_tunnel("orders", "changes")
    changes = spark.readStream.format("headrace").options(store=shop.url, tunnel="changes").load()
    merge = "MERGE INTO copy t USING c s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
    running = headrace.merge(spark, merge, scans={"c": changes}, store=shop.url, checkpoint=tmp_path / "x").start()
    running.processAllAvailable()
    rows = "SELECT id, user, price FROM orders"
    with Following(spark, shop, rows, ["orders"], "copy", tmp_path, arguments={"overwrite": True}) as query:
        assert query.advance() == query.expected()
    shop.table("orders").put({"id": 9, "user": "u0", "price": 9.0})
    with pytest.raises(Exception, match="a followed query fills table 'copy', and this MERGE"):
        running.processAllAvailable()


def test_a_stream_does_not_write_the_target_of_a_mirror_or_a_followed_query(
    spark: SparkSession, shop: Store, tmp_path: Path
) -> None:
    shop.create_tunnel("orders", "changes")
    changes = spark.readStream.format("headrace").options(store=shop.url, tunnel="changes").load()
    df = changes.select("id", "user", "price")
    query = headrace.mirror(spark, source=shop.url, table="orders", to=shop.url, to_table="copy", name="m").start()
    query.processAllAvailable()
    query.stop()
    with pytest.raises(OptionError, match="a mirror fills table 'copy', and this stream"):
        headrace.write_stream(df, store=shop.url, table="copy", checkpoint=tmp_path / "w").start()
    native = df.writeStream.format("headrace").options(store=shop.url, checkpointLocation=str(tmp_path / "n"))
    with pytest.raises(Exception, match="a mirror fills table 'copy', and this stream"):
        native.start("copy").processAllAvailable()
    shop.create_table("rows", {"id": "long", "user": "string", "price": "double"}, "id")
    with Following(spark, shop, "SELECT id, user, price FROM orders", ["orders"], "rows", tmp_path) as followed:
        followed.advance()
    with pytest.raises(OptionError, match="a followed query fills table 'rows', and this stream"):
        headrace.write_stream(df, store=shop.url, table="rows", row_change="update", checkpoint=tmp_path / "v").start()


def test_a_query_does_not_join_its_own_target(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    shop.create_table("users", {"id": "long", "n": "long"}, "id")
    spark.read.format("headrace").options(store=shop.url, table="users").load().createOrReplaceTempView("known")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW counted AS SELECT id, count(*) AS m FROM known GROUP BY id")
    for static in ("known", "counted"):
        rows = f"SELECT o.id, 1L AS n FROM orders o LEFT ANTI JOIN {static} k ON o.id = k.id"
        with (
            Following(spark, shop, rows, ["orders"], "users", tmp_path, tunnels=static) as query,
            pytest.raises(OptionError, match=f"reads its own target as a static table.*{static}"),
        ):
            query.start()
    shop.create_table("others", {"id": "long", "n": "long"}, "id")
    with Following(spark, shop, rows, ["orders"], "others", tmp_path) as query:
        assert query.advance() == query.expected()


# -- a target that is its own source -------------------------------------------------------------------------


def test_a_table_is_not_followed_into_itself_also_by_another_path_and_through_a_view(
    spark: SparkSession, shop: Store, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "shop")
    link = str(tmp_path / "link")
    rows = "SELECT id, user, price + 1 AS price FROM orders"
    with Following(spark, shop, rows, ["orders"], "orders", tmp_path) as query:
        for store in (shop.url, link):
            query.arguments = {"overwrite": True, "store": store}
            with pytest.raises(OptionError, match="is a table that it follows"):
                query.start()
    changes = spark.readStream.format("headrace").options(store=shop.url, tunnel="orders_orders").load()
    changes.createOrReplaceTempView("changed")
    df = spark.table("changed").select("id", "user", (col("price") + 1).alias("price"))
    with pytest.raises(OptionError, match="this stream puts rows into the table whose changes it reads"):
        headrace.write_stream(df, store=link, table="orders", checkpoint=tmp_path / "w").start()
    merge = "MERGE INTO orders t USING c s ON t.id = s.id WHEN MATCHED THEN UPDATE SET price = s.price + 1"
    with pytest.raises(OptionError, match="this MERGE puts rows into the table whose changes it reads"):
        headrace.merge(spark, merge, scans={"c": changes}, store=link, checkpoint=tmp_path / "x")


def test_a_stream_may_set_cells_of_the_rows_that_it_reads(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    shop.create_tunnel("orders", "changes")
    changes = spark.readStream.format("headrace").options(store=shop.url, tunnel="changes").load()
    dear = changes.where("price > 3 AND user <> 'dear'").select("id", lit("dear").alias("user"))
    query = headrace.write_stream(
        dear, store=shop.url, table="orders", row_change="update", checkpoint=tmp_path / "w"
    ).start()
    query.processAllAvailable()
    users = [row["user"] for row in shop.table("orders").scan().read_all().to_pylist()]
    assert users == ["u0", "u1", "u0", "u1", "dear", "dear"]


def test_sql_refuses_its_own_source(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    shop.create_tunnel("orders", "changes")
    script = f"""
        CREATE TABLE orders USING headrace OPTIONS (store = '{shop.url}', table = 'orders');
        CREATE SCAN changed ON orders USING STREAM OPTIONS (tunnel = 'changes');
        CREATE STREAM loop OPTIONS (checkpointLocation = '{tmp_path}/c')
        INSERT INTO orders SELECT id, user, price + 1 AS price FROM changed
    """
    with (
        sql_session(spark, tmp_path / "workspace") as session,
        pytest.raises(OptionError, match="puts rows into the table whose changes it reads"),
    ):
        session.run(script)
