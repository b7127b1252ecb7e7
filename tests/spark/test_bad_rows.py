"""Option badRows of streams: rows that a target refuses, from the stream to `headrace stream retry-rows`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client import generate_latest
from pyspark.sql import SparkSession

import headrace
from headrace.cli.main import main
from headrace.derived.mirror.setup import MirrorSetup
from headrace.derived.mirror.state import MirrorState
from headrace.errors import OptionError, UnsupportedError
from headrace.monitoring.exposition import make_registry
from headrace.ports import Tunnel
from headrace.streaming_sql.workspace import Workspace
from tests.conformance import serving
from tests.spark.sql_scripts import sql_session

Server = psycopg.Connection[Any]
BAD = {"badRows": "table"}


@pytest.fixture
def url() -> Iterator[str]:
    found = serving.postgres_database()
    yield found
    with headrace.open(found) as store:
        for tunnel in store.tunnels():
            store.drop_tunnel(tunnel.id)


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def test_a_mirror_goes_on_beside_refused_rows_until_they_are_written(
    spark: SparkSession, server: Server, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.execute("CREATE TABLE items (id int PRIMARY KEY, price int)")
    server.execute("CREATE TABLE copy (id int PRIMARY KEY, price int CONSTRAINT positive CHECK (price > 0))")
    server.execute("INSERT INTO items VALUES (1, 1), (2, -2), (3, 3)")
    script = f"""
        CREATE TABLE items USING headrace OPTIONS (store = '{url}', table = 'items');
        CREATE TABLE copied USING headrace OPTIONS (store = '{url}', table = 'copy');
        CREATE STREAM copying OPTIONS (triggerType = 'AvailableNow', badRows = 'table') MIRROR items INTO copied;
    """
    with headrace.open(url) as store:
        # A bad row of an earlier mirror, whose key the source no longer has.
        store.create_bad_rows("copy")
        store.table("copy_bad_rows").put({"key": '{"id":9}', "change": "put", "row": '{"id":9,"price":9}'})
    workspace = ["-w", str(tmp_path)]

    def run(text: str) -> None:
        session.run(text)
        session.wait()

    def rows(table: str) -> list[tuple[Any, ...]]:
        return server.execute(f"SELECT id, price FROM {table} ORDER BY id").fetchall()

    def bad_rows() -> list[tuple[Any, ...]]:
        return server.execute("SELECT key, stream, former FROM copy_bad_rows ORDER BY key").fetchall()

    with sql_session(spark, tmp_path) as session:
        run(script)
        assert rows("copy") == [(1, 1), (3, 3)]
        assert bad_rows() == [('{"id":2}', "copying", None)]
        server.execute("UPDATE items SET price = -1 WHERE id = 1")
        server.execute("DELETE FROM items WHERE id = 2")
        server.execute("INSERT INTO items VALUES (4, -4)")
        run("START STREAM copying")
        assert rows("copy") == [(1, 1), (3, 3)]
        assert bad_rows() == [('{"id":1}', "copying", '{"id":1,"price":1}'), ('{"id":4}', "copying", None)]
        metrics = generate_latest(make_registry(Workspace(tmp_path))).decode()
        assert 'headrace_stream_bad_rows{stream="copying"} 2.0' in metrics
        capsys.readouterr()
        assert main(["stream", "describe", "copying", "--json", *workspace]) == 0
        assert json.loads(capsys.readouterr().out)["bad_rows"] == 2
        server.execute("ALTER TABLE copy DROP CONSTRAINT positive")
        assert main(["stream", "retry-rows", "copying", "--json", *workspace]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "stream": "copying", "written": 2, "refused": 0, "outdated": 0
        }  # fmt: skip
        assert (rows("copy"), bad_rows()) == (rows("items"), [])
        # A TRUNCATE also ends the bad rows.
        server.execute("ALTER TABLE copy ADD CONSTRAINT positive CHECK (price > 0) NOT VALID")
        server.execute("INSERT INTO items VALUES (5, -5)")
        run("START STREAM copying")
        assert len(bad_rows()) == 1
        server.execute("TRUNCATE items")
        run("START STREAM copying")
        assert (rows("copy"), bad_rows()) == ([], [])


def test_a_new_mirror_that_was_killed_in_its_start_has_no_bad_rows_of_the_job_before(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headrace.open(tmp_path / "shop", create=True) as shop:
        shop.create_table("items", {"id": "long", "price": "long"}, "id").put({"id": 1, "price": 1})
    with headrace.open(tmp_path / "copy", create=True) as copies:
        copies.create_table("items", {"id": "long", "price": "long"}, "id")
        copies.create_bad_rows("items")
        copies.table("items_bad_rows").put({"key": '{"id":9}', "change": "put", "row": '{"id":9,"price":9}'})
        mirror = headrace.mirror(
            spark,
            source=tmp_path / "shop",
            table="items",
            to=tmp_path / "copy",
            checkpoint=tmp_path / "checkpoint",
            to_options=BAD,
            trigger={"availableNow": True},
        )
        register = MirrorSetup.register

        def killed(setup: MirrorSetup, tunnel: Tunnel) -> MirrorState:
            register(setup, tunnel)
            raise InterruptedError

        with monkeypatch.context() as patched:
            patched.setattr(MirrorSetup, "register", killed)
            with pytest.raises(InterruptedError):
                mirror.start()
        mirror.start().awaitTermination()
        assert copies.table("items").scan().read_all().to_pylist() == [{"id": 1, "price": 1}]
        assert copies.table("items_bad_rows").scan().read_all().num_rows == 0


@pytest.mark.parametrize("native", [False, True])
def test_a_stream_writes_what_its_target_takes(spark: SparkSession, tmp_path: Path, native: bool) -> None:
    import pyarrow as pa

    url = str(tmp_path / "shop")
    with headrace.open(url, create=True) as store:
        store.create_table("source", {"id": "string", "n": "long"}, "id").put([{"id": "a", "n": 1}, {"id": "b"}])
        strict = pa.schema([pa.field("id", pa.string()), pa.field("n", pa.int64(), nullable=False)])
        store.create_table("sink", strict, "id")
        store.create_tunnel("source", "changes")
        changes = spark.readStream.format("headrace").options(store=url, tunnel="changes").load().select("id", "n")
        checkpoint = str(tmp_path / "checkpoint")
        if native:
            sink = changes.writeStream.format("headrace").options(store=url, table="sink", **BAD)
            query = sink.option("checkpointLocation", checkpoint).queryName("copy").trigger(availableNow=True).start()
        else:
            stream = headrace.write_stream(
                changes, store=url, table="sink", checkpoint=checkpoint, name="copy", options=BAD
            )
            query = stream.trigger(availableNow=True).start()
        query.awaitTermination()
        assert store.table("sink").scan().read_all().to_pylist() == [{"id": "a", "n": 1}]
        (bad,) = store.table("sink_bad_rows").scan().read_all().to_pylist()
        assert (bad["key"], bad["stream"], bad["query"]) == ('{"id":"b"}', "copy", query.id)


def test_what_cannot_keep_bad_rows_refuses_the_option(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "shop")
    with headrace.open(url, create=True) as store:
        store.create_table("source", {"id": "string", "n": "long"}, "id", pre_images=True)
        store.create_table("sink", {"id": "string", "n": "long"}, "id")
        store.create_queue("log", {"id": "string", "n": "long"}, partitions=1)
        store.create_tunnel("source", "changes")
    with pytest.raises(OptionError, match="a history keeps no bad rows"):
        headrace.mirror(spark, source=url, table="source", to=url, to_table="h", history=True, name="h", to_options=BAD)
    frame = spark.readStream.format("headrace").options(store=url, tunnel="changes").load().select("id", "n")
    cases: list[tuple[str, dict[str, Any]]] = [
        ("whole row of its key", {"table": "sink", "mode": "complete"}),
        ("whole row of its key", {"table": "sink", "row_change": "update"}),
        ("a queue refuses no single rows", {"queue": "log"}),
    ]
    for problem, arguments in cases:
        rows = frame.groupBy("id").count().selectExpr("id", "count AS n") if "mode" in arguments else frame
        with pytest.raises(OptionError, match=problem):
            headrace.write_stream(rows, store=url, name="s", options=BAD, **arguments).start()
    scans = {"source": spark.readStream.format("headrace").options(store=url, tunnel="changes", readAs="table").load()}
    with pytest.raises(OptionError, match="a followed query keeps no bad rows"):
        headrace.follow(spark, "SELECT id, n FROM source", scans=scans, store=url, table="sink", name="f", options=BAD)
    lake = f"delta://{tmp_path}/lake"
    with headrace.open(lake, create=True) as store:
        store.create_table("t", {"id": "string", "n": "long"}, "id")
    with pytest.raises(UnsupportedError, match="keeps no bad rows"):
        headrace.write_stream(frame, store=lake, table="t", name="s", options=BAD).start()
