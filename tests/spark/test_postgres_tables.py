"""Batch reads of a users' PostgreSQL table in Spark: parallel key ranges, columns and filters."""

from __future__ import annotations

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
