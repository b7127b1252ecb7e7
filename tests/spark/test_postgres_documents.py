"""The example and the page on PostgreSQL run on a real server, and print what the page shows."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.cli.main import main
from tests.conformance import serving
from tests.documents import ROOT, Block, blocks_of, claimed, run_shell
from tests.postgres_server import USER, PostgresServer

_HERE = "tests/spark/test_postgres_documents.py"
_URL = "postgresql://postgres@localhost/shop"
_FIVE_MINUTES = re.compile(r"^## Five minutes.*?(?=^## )", re.DOTALL | re.MULTILINE)
# Identifiers, times of commits, and positions of the log.
_VARIES = re.compile(r"[0-9a-f]{32}|\d{4}-\d\d-\d\d \d\d:\S+|\b\d{6,}\b")


def words(lines: Iterable[str]) -> list[list[str]]:
    """Return the words of lines, without what differs between two runs: widths of columns, and the above."""
    found = [_VARIES.sub("…", re.sub("─+", "─", line)).split() for line in lines]
    return [each for each in found if each]


def five_minutes() -> list[Block]:
    """Return the blocks of the page's first section."""
    section = _FIVE_MINUTES.search((ROOT / "docs/postgres.md").read_text())
    assert section is not None
    return blocks_of(section[0])


@pytest.mark.usefixtures("spark")
def test_the_film_rental_keeps_its_revenue_equal_to_that_of_postgresql(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "postgres" / "rentals.py"))
    assert example["main"](serving.postgres_database("rentals"), tmp_path)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "rows that existed: 1560"
    assert [line.split() for line in printed[1:-1]] == [
        ["film", "update_postimage", "1"],
        ["film", "update_preimage", "1"],
        ["payment", "delete", "10"],
        ["payment", "insert", "80"],
        ["payment", "update_postimage", "1"],
        ["payment", "update_preimage", "1"],
        ["rental", "insert", "80"],
        ["rental", "update_postimage", "200"],
        ["rental", "update_preimage", "200"],
    ]


def test_the_five_minutes_of_the_page_on_postgresql_print_what_it_shows(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serving.postgres_database("five_minutes")
    monkeypatch.setenv("HEADRACE_STORE", url)
    printed: list[str] = []
    shown = 0
    for language, block in five_minutes():
        code = block.replace(_URL, url)
        if language == "text":
            assert words(printed) == words(code.splitlines())
            shown, printed = shown + 1, []
            continue
        if language == "sql":
            with psycopg.connect(url, autocommit=True) as server:
                server.execute(code)
        elif language == "sh":
            for line in code.splitlines():
                if line.startswith("headrace "):
                    assert main(shlex.split(line)[1:]) == 0
        else:
            exec(compile(code, "document", "exec"), {"__name__": "document"})
        printed += capsys.readouterr().out.splitlines()
    assert printed == []
    assert shown == 5


@pytest.fixture
def shop() -> Iterator[PostgresServer]:
    """A server with the role and the database of the documents, and a table that the role owns."""
    server = PostgresServer.start()
    try:
        with connected(server, "postgres") as root:
            root.execute("CREATE ROLE shop LOGIN")
            root.execute("CREATE ROLE owner_of_tables")
            root.execute("CREATE DATABASE shop")
        yield server
    finally:
        server.remove()


def connected(server: PostgresServer, database: str) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(host="127.0.0.1", port=server.port, user=USER, dbname=database, autocommit=True)


def test_the_other_blocks_of_the_pages_run_as_written(
    shop: PostgresServer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = [*claimed("docs/postgres.md", _HERE), *claimed("docs/postgres-tunnels.md", _HERE)]
    others = [block for block in pages if block not in five_minutes()]
    address = f"127.0.0.1:{shop.port}"
    languages = [block.language for block in others]
    assert languages == ["python", "sql", "sql", "sql", "sql", "sql", "sql", "python", "sh"]
    sink, identity, rights, schema, settings, choice, parsing, debezium, existing_slot = (
        block.text for block in others
    )
    with connected(shop, "shop") as root:
        root.execute("CREATE TABLE orders (id bigint PRIMARY KEY, price numeric(10,2), at timestamp)")
        root.execute("ALTER TABLE orders OWNER TO owner_of_tables")
        root.execute("INSERT INTO orders VALUES (7, 5, '2024-02-29 10:00:00')")
        root.execute("CREATE TABLE customers (id int PRIMARY KEY, mail text, card text, note text, address text)")
        root.execute("ALTER TABLE customers OWNER TO owner_of_tables")
        root.execute("CREATE SCHEMA sales AUTHORIZATION shop")
        root.execute("CREATE TABLE sales.totals (id bigint PRIMARY KEY, total numeric(20,2))")
        root.execute("ALTER TABLE sales.totals OWNER TO shop")
        for statement in re.sub("--.*", "", "".join([settings, identity, rights, schema])).split(";"):
            if statement.strip():
                root.execute(statement.encode())

    url = f"postgresql://shop@{address}/shop"
    with headrace.open(url) as store:
        tunnel = store.create_tunnel_of_tables(["public.*"], "shop")
        sql = headrace.sql(spark, tmp_path / "workspace")
        sql.run(f"CREATE TABLE customers USING headrace OPTIONS (store = '{url}', table = 'customers')")
        sql.run(choice)
        assert store.tunnel("open").describe().details["masks"] == "mail: hash, card: last(4)"
        store.drop_tunnel("open")
        (batch,) = list(tunnel.consume(idle="stop", client="once"))
        spark.createDataFrame(batch.to_arrow().to_pandas().drop(columns="_commit_timestamp")).createOrReplaceTempView(
            "changes"
        )
        assert [(row["id"], str(row["price"])) for row in spark.sql(parsing).collect()] == [(7, "5.00")]
        store.drop_tunnel(tunnel.id)
        store.create_tunnel_of_tables(["public.*"], "shop")
        names: dict[str, Any] = {"spark": spark, "headrace": headrace}
        exec(debezium.replace("shop@db", f"shop@{address}"), names)
        events = names["events"].writeStream.format("parquet").option("path", str(tmp_path / "events"))
        events.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start().awaitTermination()
        (event,) = spark.read.parquet(str(tmp_path / "events")).collect()
        assert (event["topic"], json.loads(event["value"])["op"]) == ("shop.public.orders", "r")

        store.create_tunnel("orders", "totals")
        orders = spark.readStream.format("headrace").options(store=url, tunnel="totals").load()
        names["totals"] = orders.groupBy("id").agg({"price": "sum"}).toDF("id", "total")
        exec(sink.replace("shop@db", f"shop@{address}"), names)
        (query,) = spark.streams.active
        query.processAllAvailable()
        query.stop()
        assert [str(row["total"]) for row in store.table("sales.totals").scan().read_all().to_pylist()] == ["5.00"]

    with connected(shop, "shop") as root:
        root.execute("SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')")
        root.execute("CREATE PUBLICATION dbz_publication FOR TABLE orders, customers")
    run_shell(existing_slot.replace(" shop ", " from_debezium "), tmp_path, {"HEADRACE_STORE": url})
