"""Spark's own sources in streaming SQL: rate, files, sockets, and Kafka without its jar."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.errors import OptionError
from headrace.streaming_sql.session import StreamingSql

SECRET = "t0p-secret"


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> Iterator[StreamingSql]:
    """A session with a table of files as the target."""
    session = headrace.sql(spark, tmp_path)
    session.run(f"CREATE TABLE result USING parquet LOCATION '{tmp_path}/result'")
    yield session
    session.stop()
    for view in spark.catalog.listTables():
        if view.isTemporary:
            spark.catalog.dropTempView(view.name)


def stream(tmp_path: Path, query: str, options: str = "") -> str:
    return f"CREATE STREAM s OPTIONS (checkpointLocation='{tmp_path}/cp'{options}) INSERT INTO result {query}"


def test_a_rate_source_is_scanned(session: StreamingSql, tmp_path: Path) -> None:
    session.run(
        "CREATE TABLE ticks USING `rate-micro-batch` OPTIONS (rowsPerBatch=7, numPartitions=1);"
        "CREATE SCAN tick_stream ON ticks USING STREAM"
    )
    session.run(stream(tmp_path, "SELECT value FROM tick_stream", ", triggerType='Once'"))
    assert session.wait(120)
    session.run(
        "CREATE TABLE steady USING rate OPTIONS (rowsPerSecond=5); CREATE SCAN steady_stream ON steady USING STREAM"
    )
    assert session.run("DESCRIBE steady_stream")[0].fetch() == [
        ("timestamp", "timestamp", None),
        ("value", "bigint", None),
    ]
    assert session.run("SELECT count(*) >= 7 FROM result")[0].fetch() == [(True,)]


def test_files_are_read_with_the_columns_of_their_definition(session: StreamingSql, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "1.json").write_text('{"id": 1, "tags": ["a", "b"]}\n{"id": 2, "tags": null, "more": 1}\n')
    session.run(
        f"CREATE TABLE events (id BIGINT, tags ARRAY<STRING>) USING json LOCATION '{tmp_path}/events';"
        "CREATE SCAN event_stream ON events USING STREAM OPTIONS (maxFilesPerTrigger=1)"
    )
    session.run(stream(tmp_path, "SELECT id, size(tags) AS tags FROM event_stream"), available_now=True)
    assert session.wait(120)
    assert sorted(session.run("SELECT id, tags FROM result")[0].fetch()) == [(1, 2), (2, None)]
    (tmp_path / "events" / "2.json").write_text('{"id": 3, "tags": []}\n')
    session.run("START STREAM s", available_now=True)
    assert session.wait(120)
    assert sorted(session.run("SELECT id, tags FROM result")[0].fetch()) == [(1, 2), (2, None), (3, 0)]


@pytest.fixture
def words() -> Iterator[int]:
    """The port of a server that sends two lines to each client, and then keeps the connection open."""
    closing = threading.Event()

    class SendWords(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"to be\nor not\n")
            closing.wait()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), SendWords) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        closing.set()
        server.shutdown()
        thread.join()


def test_a_socket_is_scanned(session: StreamingSql, tmp_path: Path, words: int) -> None:
    (tmp_path / "words").mkdir()
    session.run(
        f"CREATE TABLE lines USING socket OPTIONS (host='127.0.0.1', port={words});"
        f"CREATE TABLE words (word STRING) USING parquet LOCATION '{tmp_path}/words';"
        "CREATE SCAN line_stream ON lines USING STREAM"
    )
    query = "SELECT explode(split(value, ' ')) AS word FROM line_stream"
    session.run(stream(tmp_path, query).replace("INTO result", "INTO words"))
    deadline = time.monotonic() + 60
    while len(seen := session.run("SELECT word FROM words")[0].fetch()) < 4:
        assert time.monotonic() < deadline
        assert session.streams()[0].error is None
        time.sleep(0.05)
    session.run("STOP STREAM s")
    assert sorted(word for (word,) in seen) == ["be", "not", "or", "to"]


KAFKA = f"""
CREATE TABLE events USING kafka OPTIONS (
    kafka.bootstrap.servers = 'broker:9093', subscribe = 'events', kafka.ssl.truststore.password = '{SECRET}',
    kafka.sasl.jaas.config = 'org.apache.kafka.common.security.plain.PlainLoginModule required password="{SECRET}";');
"""


def test_kafka_without_its_jar_is_refused_with_its_package_and_without_secrets(
    session: StreamingSql, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="received: USING kafka; valid: headrace") as caught:
        session.run(KAFKA)
    package = f"spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    assert package in str(caught.value.remedy)
    assert SECRET not in str(caught.value) + str(caught.value.__notes__)
    assert not any(SECRET.encode() in path.read_bytes() for path in (tmp_path / ".headrace").glob("*"))


def test_a_scan_does_not_show_secrets(session: StreamingSql, tmp_path: Path) -> None:
    session.run(
        "CREATE TABLE ticks USING rate OPTIONS (rowsPerSecond=5);"
        f"CREATE SCAN tick_stream ON ticks USING STREAM OPTIONS (kafka.sasl.jaas.config='{SECRET}')"
    )
    explained = session.run("EXPLAIN " + stream(tmp_path, "SELECT value FROM tick_stream"))
    shown = session.run("SHOW SCANS; DESCRIBE tick_stream; DESCRIBE EXTENDED tick_stream")
    assert SECRET not in str(explained) + str([result.fetch() for result in shown])
