"""The password of a PostgreSQL database is in no text: plans, progress, errors, logs, checkpoints, the command line.

Neither is a value that a tunnel leaves out or masks, nor the key of hashes.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

import headrace
from headrace.cli.main import main
from headrace.testing.effort import thorough
from tests.conformance import serving
from tests.interop.masked_tables import MaskedTable
from tests.postgres_server import needs_version

# The server of the tests accepts any password.
PASSWORD = "t0p-hush of postgres"


def test_no_text_of_a_query_shows_the_password(
    spark: SparkSession,
    checkpoint: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, logger="headrace")
    url = serving.postgres_database()
    with headrace.open(url, password=PASSWORD) as store:
        orders = store.create_table("orders", {"id": "long", "price": "long"}, "id")
        copy = store.create_table("copy", {"id": "long", "price": "long"}, "id")
        tunnel = store.create_tunnel("orders", "changes")
        orders.put([{"id": number, "price": number} for number in range(10)])
        options = {"store": url, "password": PASSWORD}
        stream = spark.readStream.format("headrace").options(**options, tunnel="changes").load().select("id", "price")
        rows = spark.read.format("headrace").options(**options).load("orders")
        writer = stream.writeStream.format("headrace").options(**options, table="copy", checkpointLocation=checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        assert copy.scan().read_all().num_rows == 10
        query.explain(True)
        rows.explain(True)
        stream.explain("formatted")
        with pytest.raises(Exception, match="missing") as wrong:
            spark.read.format("headrace").options(**options).load("missing").count()
        texts = [str(query.lastProgress), str(query.status), str(wrong.value), repr(wrong.value), caplog.text]
        texts += [repr(each) for each in (store, orders, tunnel, store.publisher("job"), store.files())]
        texts += [str(tunnel.describe()), store.id, *capfd.readouterr()]
        spark.sql("SET spark.sql.streaming.x = 1")
        texts += [str(spark.sql("SET -v").collect())]
        store.drop_tunnel("changes")
    texts += [path.read_bytes().decode("latin-1") for path in Path(checkpoint).rglob("*") if path.is_file()]
    assert not [text for text in texts if "t0p-hush" in text]


class Events(StreamingQueryListener):
    """A listener that keeps the texts of all events."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ended = threading.Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.texts.append(str(vars(event)))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.texts.append(event.progress.json)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.texts.append(str(vars(event)))
        self.ended.set()


@needs_version(15)
@pytest.mark.parametrize("seed", range(thorough(5)))
def test_no_text_of_a_query_shows_values_that_its_tunnel_leaves_out_or_masks(
    spark: SparkSession,
    checkpoint: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    seed: int,
) -> None:
    caplog.set_level(logging.DEBUG)
    url = serving.postgres_database()
    texts, lags, events = list[str](), list[object](), Events()
    lag = headrace.LagListener(lambda _, found: lags.append(found))
    for listener in (events, lag):
        spark.streams.addListener(listener)

    def keep(batch: DataFrame, _: int) -> None:
        texts.extend([str(batch.collect()), batch._jdf.queryExecution().toString()])

    with psycopg.connect(url, autocommit=True) as server, headrace.open(url) as store:
        masked = MaskedTable(server, store, seed)
        stream = spark.readStream.format("headrace").options(store=url, tunnel="f").load()
        stream.createOrReplaceTempView("masked")
        query = stream.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint).start()
        try:
            for _ in range(4):
                query.processAllAvailable()
                masked.change()
            query.processAllAvailable()
        except StreamingQueryException as error:
            # A large value that an update has not changed.
            texts.append(str(error))
        query.explain(True)
        stream.explain("extended")
        texts += [str(row) for row in spark.sql("EXPLAIN EXTENDED SELECT * FROM masked").collect()]
        texts += [progress.json for progress in query.recentProgress]
        query.stop()
        assert events.ended.wait(60)
        store.drop_tunnel("f")
    for listener in (events, lag):
        spark.streams.removeListener(listener)
    assert any("numInputRows" in text for text in events.texts)
    texts += [*events.texts, str(lags), caplog.text, *capfd.readouterr()]
    texts += [path.read_bytes().decode("latin-1") for path in Path(checkpoint).rglob("*") if path.is_file()]
    assert not [secret for secret in masked.secrets for text in texts if secret in text]


def test_the_command_line_takes_the_password_from_the_environment_and_shows_it_nowhere(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    url = serving.postgres_database()
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with headrace.open(url) as store:
        store.create_table("orders", {"id": "long"}, "id")
    with_password = url.replace("postgres@", "postgres:t0p-hush@")
    for arguments, succeeds in [
        (["table", "list", "-s", url], True),
        (["table", "describe", "orders", "-s", url, "--json"], True),
        (["table", "head", "none", "-s", url], False),
        (["table", "list", "-s", with_password], False),
    ]:
        assert (main(arguments) == 0) is succeeds
        output, errors = capfd.readouterr()
        assert output or errors
        assert "t0p-hush" not in output + errors
