"""Batch reads of a users' PostgreSQL table in Spark: parallel key ranges, columns and filters."""

from __future__ import annotations

from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

import headrace
from tests.conformance import serving


def test_a_table_is_read_in_parallel_by_key_ranges(spark: SparkSession) -> None:
    url = serving.postgres_database("spark_tables")
    with psycopg.connect(url, autocommit=True) as server, headrace.open(url) as store:
        server.execute("CREATE TABLE orders (id uuid PRIMARY KEY, n int NOT NULL, price numeric(10,2), tags text[])")
        server.execute(
            "INSERT INTO orders SELECT md5(n::text)::uuid, n, n / 4.0, ARRAY['t' || n, NULL] "
            "FROM generate_series(1, 5000) n"
        )
        rows = spark.read.format("headrace").options(store=url, table="orders", splits="4").load()
        assert rows.rdd.getNumPartitions() == 4
        assert rows.count() == 5000
        found = rows.where("n % 1000 = 7 AND price > 500").orderBy("n").select("n", "price", "tags").collect()
        assert [(row.n, str(row.price), row.tags) for row in found] == [
            (n, f"{n / 4:.2f}", [f"t{n}", None]) for n in (2007, 3007, 4007)
        ]
        key = store.table("orders").scan(["id"], limit=1).read_all()["id"][0].as_py()
        assert rows.where(rows.id == key).count() == 1
        # Without a number of splits, a small table is one range.
        assert spark.read.format("headrace").options(store=url, table="orders").load().rdd.getNumPartitions() == 1


def test_values_that_spark_does_not_have_are_nulls_or_texts(spark: SparkSession, tmp_path: Path) -> None:
    url = serving.postgres_database("spark_unrepresentable")
    options = {"store": url, "table": "prices", "unrepresentable": "until=null, grid=text"}
    with psycopg.connect(url, autocommit=True) as server, headrace.open(url) as store:
        server.execute("CREATE TABLE prices (id int PRIMARY KEY, until timestamptz NOT NULL, grid int[])")
        store.create_tunnel("prices", "prices", "Stream")
        server.execute("INSERT INTO prices VALUES (1, 'infinity', '{{1,2}}'), (2, '2024-01-01', '{3}')")
        rows = spark.read.format("headrace").options(**options).load()
        assert [(row.id, row.until, row.grid) for row in rows.where("until IS NULL").collect()] == [
            (1, None, "{{1,2}}")
        ]
        quoted = ", ".join(f"{name} '{value}'" for name, value in options.items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW all_prices USING headrace OPTIONS ({quoted})")
        assert spark.sql("SELECT id, grid FROM all_prices WHERE until IS NOT NULL").collect() == [(2, "{3}")]
        stream = spark.readStream.format("headrace").options(**options, tunnel="prices").load()
        target = store.create_table("copy", {"id": "long", "until": "timestamp", "grid": "string"}, "id")
        headrace.write_stream(
            stream.select("id", "until", "grid"),
            store=url,
            table="copy",
            checkpoint=str(tmp_path / "checkpoint"),
            mode="append",
            trigger={"availableNow": True},
        ).start().awaitTermination()
        copied = target.scan(["id", "grid"], [("until", "is null", None)]).read_all().to_pylist()
        assert copied == [{"id": 1, "grid": "{{1,2}}"}]
        assert target.scan([]).read_all().num_rows == 2
        store.drop_tunnel("prices")


def test_tables_without_a_key_and_views_are_read(spark: SparkSession) -> None:
    url = serving.postgres_database("spark_keyless")
    with psycopg.connect(url, autocommit=True) as server:
        server.execute("CREATE TABLE keyless (n int, tags text[])")
        server.execute("INSERT INTO keyless SELECT n % 10, ARRAY['t' || n] FROM generate_series(1, 100) n")
        server.execute("CREATE VIEW counted AS SELECT n, count(*) AS rows FROM keyless GROUP BY n")
    rows = spark.read.format("headrace").options(store=url, table="keyless", splits="4").load()
    assert rows.where("n = 3").count() == 10
    # Without a key there are no ranges of keys.
    assert rows.rdd.getNumPartitions() == 1
    counted = spark.read.format("headrace").options(store=url, table="counted").load()
    assert [tuple(row) for row in counted.where("n > 7").orderBy("n").collect()] == [(8, 10), (9, 10)]
