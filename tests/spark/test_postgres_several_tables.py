"""Several PostgreSQL tables as one stream in Spark: JSON rows into copies, and Debezium's events into a queue."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import headrace
from tests.conformance import serving


@pytest.mark.parametrize("change_format", ["columns", "debezium"])
def test_two_tables_arrive_exactly_once_over_restarts(
    spark: SparkSession, tmp_path: Path, checkpoint: str, change_format: str
) -> None:
    url = serving.postgres_database(f"spark_several_{change_format}")
    with psycopg.connect(url, user="postgres", autocommit=True) as server, headrace.open(url) as source:
        server.execute("CREATE TABLE film (id bigint PRIMARY KEY, title text, price numeric(10,2))")
        server.execute("CREATE TABLE rental (id bigint PRIMARY KEY, film bigint, at timestamptz)")
        server.execute("INSERT INTO film SELECT n, 'film ' || n, n / 4.0 FROM generate_series(1, 300) n")
        source.create_tunnel_of_tables("public.*", "all", base_channels=2)
        with headrace.open(tmp_path / "shop", create=True, synchronous="off") as target:
            target.create_queue("events", {"table": "string", "key": "string", "op": "string", "row": "string"})

            def run() -> None:
                stream = (
                    spark.readStream.format("headrace")
                    .options(store=url, tunnel="all", changeFormat=change_format, topicPrefix="shop")
                    .load()
                )
                query = headrace.write_stream(
                    events(stream), store=tmp_path / "shop", queue="events", checkpoint=checkpoint
                ).trigger(availableNow=True)
                query.start().awaitTermination()

            def events(stream: DataFrame) -> DataFrame:
                if change_format == "columns":
                    return stream.select("table", "key", f.col("_change_type").alias("op"), "row")
                event = f.from_json("value", "op string, after string, source struct<table: string>")
                return stream.select(event.alias("event"), "key").select(
                    "event.source.table", "key", "event.op", f.col("event.after").alias("row")
                )

            run()
            with server.transaction():
                server.execute("INSERT INTO rental VALUES (1, 7, '2024-02-29 12:00:00.5+00')")
                server.execute("UPDATE film SET price = 0 WHERE id = 7")
            run()
            server.execute("DELETE FROM rental")
            run()
            found = target.queue("events").read(0, 0).rows.to_pylist()
        assert len(found) == 303
        names = ["insert", "update_postimage", "delete"] if change_format == "columns" else ["c", "u", "d"]
        assert [(row["table"], row["op"]) for row in found[300:]] == list(
            zip(["rental", "film", "rental"], names, strict=True)
        )
        assert json.loads(found[300]["row"])["at"] == "2024-02-29T12:00:00.5Z"
        assert sorted(json.loads(row["key"])["id"] for row in found[:300]) == list(range(1, 301))
        source.drop_tunnel("all")


def test_a_table_joins_a_query_over_json_while_it_runs(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    url = serving.postgres_database("spark_joining")
    with psycopg.connect(url, user="postgres", autocommit=True) as server, headrace.open(url) as source:
        server.execute("CREATE TABLE film (id bigint PRIMARY KEY)")
        source.create_tunnel_of_tables("public.*", "all")
        with headrace.open(tmp_path / "shop", create=True, synchronous="off") as target:
            target.create_queue("events", {"table": "string", "key": "string", "op": "string"})
            stream = spark.readStream.format("headrace").options(store=url, tunnel="all").load()
            rows = stream.select("table", "key", f.col("_change_type").alias("op"))
            query = headrace.write_stream(rows, store=tmp_path / "shop", queue="events", checkpoint=checkpoint).start()
            try:
                server.execute("INSERT INTO film VALUES (1)")
                query.processAllAvailable()
                server.execute("CREATE TABLE rental (id bigint PRIMARY KEY, n bigint)")
                server.execute("INSERT INTO rental VALUES (1, 0), (2, 0)")
                while target.queue("events").bounds()[0].upper < 3:
                    query.processAllAvailable()
                server.execute("DELETE FROM rental WHERE id = 1")
                query.processAllAvailable()
            finally:
                query.stop()
                query.awaitTermination()
            found = target.queue("events").read(0, 0).rows.to_pylist()
        events = [(row["table"], json.loads(row["key"])["id"], row["op"]) for row in found]
        assert events[0] == ("film", 1, "insert")
        assert sorted(events[1:3]) == [("rental", 1, "insert"), ("rental", 2, "insert")]
        assert events[3:] == [("rental", 1, "delete")]
        source.drop_tunnel("all")


def test_a_table_joins_a_query_over_typed_rows_between_two_starts(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    url = serving.postgres_database("spark_joining_typed")
    with psycopg.connect(url, user="postgres", autocommit=True) as server, headrace.open(url) as source:
        server.execute("CREATE TABLE film (id bigint PRIMARY KEY)")
        server.execute("INSERT INTO film VALUES (1)")
        source.create_tunnel_of_tables("public.*", "all")
        with headrace.open(tmp_path / "shop", create=True, synchronous="off") as target:
            target.create_queue("events", {"table": "string", "id": "long"})

            def run(*ids: str) -> list[tuple[str, int]]:
                typed = {"store": url, "tunnel": "all", "rows": "typed"}
                stream = spark.readStream.format("headrace").options(**typed).load()
                rows = stream.select(f.col("_table").alias("table"), f.coalesce(*ids).alias("id"))
                query = headrace.write_stream(rows, store=tmp_path / "shop", queue="events", checkpoint=checkpoint)
                query.trigger(availableNow=True).start().awaitTermination()
                return [(row["table"], row["id"]) for row in target.queue("events").read(0, 0).rows.to_pylist()]

            assert run("film.id") == [("film", 1)]
            server.execute("CREATE TABLE rental (id bigint PRIMARY KEY)")
            server.execute("INSERT INTO rental VALUES (7)")
            server.execute("INSERT INTO film VALUES (2)")
            assert run("film.id") == [("film", 1), ("film", 2)]
            assert source.tunnel("all").take_in_tables() == ["rental"]
            server.execute("INSERT INTO rental VALUES (8)")
            assert run("film.id", "rental.id")[2:] == [("rental", 7), ("rental", 8)]
        source.drop_tunnel("all")
