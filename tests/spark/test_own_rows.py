"""Queries whose target their tunnel of several tables follows, or would take in: they do not start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace.errors import OptionError
from headrace.ports import Store
from tests.conformance import serving
from tests.lake import ducklakes
from tests.spark.sql_scripts import sql_session

COLUMNS = {"id": "long", "n": "long"}
REFUSED = r"writes into a table of the tunnel that it reads.*received: table 'copy'"


@pytest.fixture(params=["postgres", "embedded"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with a tunnel of all its tables, which are the source and the target, and one without the target."""
    is_postgres = request.param == "postgres"
    place = serving.postgres_database() if is_postgres else tmp_path / "shop"
    with headrace.open(place, create=not is_postgres) as opened:
        opened.create_table("orders", COLUMNS, "id", pre_images=True).put([{"id": 1, "n": 1}])
        if not is_postgres:
            opened.create_table("copy", COLUMNS, "id", pre_images=True)
        opened.create_tunnel_of_tables("public.*" if is_postgres else ["orders", "copy"], "all")
        opened.create_tunnel_of_tables("public.*,!public.copy" if is_postgres else ["orders"], "others")
        if is_postgres:
            opened.create_table("copy", COLUMNS, "id")
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


def read(spark: SparkSession, store: Store, tunnel: str, **options: str) -> DataFrame:
    return spark.readStream.format("headrace").options(store=store.url, tunnel=tunnel, **options).load()


def computed(changes: DataFrame) -> DataFrame:
    """Return rows none of whose columns is one of the changes."""
    return changes.groupBy(f.length("_change_type").cast("long").alias("id")).agg(f.count("*").alias("n"))


def test_write_stream_does_not_read_its_own_rows(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    for rows in store.capabilities.several_tables:
        changes = computed(read(spark, store, "all", rows=rows))
        changes.createOrReplaceTempView("changed")
        for df in (changes, spark.sql("SELECT id + 1 AS id, n FROM changed")):
            stream = headrace.write_stream(
                df, store=store.url, table="copy", mode="complete", checkpoint=tmp_path / "c"
            )
            with pytest.raises(OptionError, match=REFUSED):
                stream.start()
    rows_of_copy = store.table("copy").scan().read_all().num_rows
    assert (rows_of_copy, (tmp_path / "c").exists()) == (0, False)
    outputs = [headrace.Output(table="copy", select=lambda rows: rows)]
    with pytest.raises(OptionError, match=REFUSED):
        headrace.write_stream(
            changes, store=store.url, outputs=outputs, mode="complete", checkpoint=tmp_path / "c"
        ).start()
    allowed = computed(read(spark, store, "others", rows="typed"))
    headrace.write_stream(
        allowed,
        store=store.url,
        table="copy",
        mode="complete",
        checkpoint=tmp_path / "d",
        trigger={"availableNow": True},
    ).start().awaitTermination()
    assert store.table("copy").get({"id": 6}) == {"id": 6, "n": 1}


@pytest.mark.parametrize("checkpoint", ["directory", "store"])
def test_native_sinks_do_not_read_their_own_rows(
    spark: SparkSession, store: Store, tmp_path: Path, checkpoint: str
) -> None:
    def start(tunnel: str) -> StreamingQuery:
        in_store = headrace.checkpoint(f"headrace:///{tunnel}", store, spark)
        location = in_store if checkpoint == "store" else str(tmp_path / tunnel)
        columns = ("CAST(length(_change_type) AS BIGINT) AS id", "_commit_version AS n")
        writer = read(spark, store, tunnel).selectExpr(*columns).writeStream.format("headrace")
        return writer.options(store=store.url, table="copy", checkpointLocation=location).start()

    for _ in range(2):
        query = start("all")
        with pytest.raises(StreamingQueryException, match=f"(?s)this stream {REFUSED}"):
            query.processAllAvailable()
        assert store.table("copy").scan().read_all().num_rows == 0
    query = start("others")
    query.processAllAvailable()
    query.stop()
    assert [row["id"] for row in store.table("copy")] == [6]


def test_cells_of_own_rows_may_be_set(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.tunnel("all").take_in_tables()
    changes = read(spark, store, "all", rows="typed").where("_table = 'copy' AND copy.n = 1")
    store.table("copy").put([{"id": 5, "n": 1}])
    query = headrace.write_stream(
        changes.selectExpr("copy.id", "2L AS n"),
        store=store.url,
        table="copy",
        row_change="update",
        checkpoint=tmp_path / "c",
    ).start()
    query.processAllAvailable()
    query.stop()
    assert store.table("copy").get({"id": 5}) == {"id": 5, "n": 2}


def test_followed_and_merged_streams_do_not_read_their_own_rows(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    scan = read(spark, store, "all", readAs="table", rows="typed")
    query = headrace.follow(
        spark,
        "SELECT id, n FROM orders",
        scans={"orders": scan},
        store=store.url,
        table="copy",
        checkpoint=tmp_path / "c",
    )
    with pytest.raises(OptionError, match=REFUSED):
        query.start()
    statement = "MERGE INTO copy t USING c s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, s.n)"
    changes = read(spark, store, "all", rows="typed").selectExpr("orders.id + 1 AS id", "orders.n")
    with pytest.raises(OptionError, match=f"this MERGE {REFUSED}"):
        headrace.merge(spark, statement, scans={"c": changes}, store=store.url, checkpoint=tmp_path / "d")


def test_sql_does_not_read_its_own_rows(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    script = f"""
        CREATE TABLE orders USING headrace OPTIONS (store = '{store.url}', table = 'orders');
        CREATE TABLE copy USING headrace OPTIONS (store = '{store.url}', table = 'copy');
        CREATE SCAN changed ON orders USING STREAM OPTIONS (tunnel = 'all', rows = 'typed');
        CREATE SCAN orders_now ON orders USING STREAM OPTIONS (tunnel = 'all', readAs = 'table')
    """
    statements = (
        "INSERT INTO copy SELECT CAST(length(_change_type) AS BIGINT) AS id, count(*) AS n FROM changed GROUP BY 1",
        "INSERT INTO copy SELECT id, n FROM orders_now",
        """MERGE INTO copy t USING changed s ON t.id = s._commit_version
           WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s._commit_version, 1L)""",
    )
    with sql_session(spark, tmp_path / "workspace") as session:
        session.run(script)
        for statement in statements:
            mode = ", outputMode = 'complete'" if "count" in statement else ""
            stream = f"STREAM own OPTIONS (checkpointLocation = '{tmp_path}/c'{mode}) {statement}"
            for start in (f"CREATE {stream}", f"EXPLAIN CREATE {stream}"):
                with pytest.raises(OptionError, match=REFUSED):
                    session.run(start)
        mirror = "STREAM own MIRROR orders INTO orders"
        for start in (f"CREATE {mirror}", f"EXPLAIN CREATE {mirror}"):
            with pytest.raises(OptionError, match="a mirror puts rows into the table whose changes it reads"):
                session.run(start)
    assert not (tmp_path / "c").exists()


def test_bad_rows_of_the_target_are_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    url = serving.postgres_database()
    with psycopg.connect(url, user="postgres", autocommit=True) as server, headrace.open(url) as store:
        server.execute("CREATE TABLE orders (id bigint PRIMARY KEY, n bigint)")
        server.execute("CREATE TABLE copy (id bigint PRIMARY KEY, n bigint)")
        store.create_tunnel_of_tables("public.*,!public.copy", "all")
        rows = computed(read(spark, store, "all"))
        with pytest.raises(OptionError, match=r"table 'copy_bad_rows'.*!public\.copy, !public\.copy_bad_rows"):
            headrace.write_stream(
                rows,
                store=url,
                table="copy",
                mode="update",
                options={"badRows": "table"},
                checkpoint=tmp_path / "c",
            ).start()
        assert "copy_bad_rows" not in store.tables()
        store.drop_tunnel("all")


def test_the_catalog_of_a_ducklake_in_the_database_is_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    url = ducklakes.database()
    with headrace.open(url) as store:
        store.create_table("orders", COLUMNS, "id").put([{"id": 1, "n": 1}])
        for name, patterns in {"all": "public.*", "others": "public.*,!public.ducklake_*"}.items():
            store.create_tunnel_of_tables(patterns, name)
        with ducklakes.opened(url, tmp_path) as lake:
            lake.create_table("copy", COLUMNS, "id")

            def start(tunnel: str, table: str) -> None:
                rows = computed(read(spark, store, tunnel))
                headrace.write_stream(
                    rows,
                    store=lake.url,
                    outputs=[headrace.Output(table=table)],
                    mode="complete",
                    checkpoint=tmp_path / table,
                    trigger={"availableNow": True},
                ).start().awaitTermination()

            with pytest.raises(OptionError, match=r"table 'ducklake_\*'.*, !public\.ducklake_\*;"):
                start("all", "copy")
            start("others", "copy")
            assert lake.table("copy").get({"id": 6}) == {"id": 6, "n": 1}
            store.create_table("beside", COLUMNS, "id")
            with pytest.raises(OptionError, match="table 'beside', and tunnel 'others'"):
                start("others", "postgresql:beside")
        for name in ("all", "others"):
            store.drop_tunnel(name)
