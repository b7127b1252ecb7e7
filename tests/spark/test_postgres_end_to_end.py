"""A stream into a table of PostgreSQL, with its checkpoint in the database, through restarts and repeated batches."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace
from headrace.inspect.capacity import Stream
from headrace.ports import Store
from tests.conformance import serving

NOTE_WRITES = """
CREATE TABLE writes (number bigint GENERATED ALWAYS AS IDENTITY, shop text);
CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO writes (shop) VALUES (NEW.shop); RETURN NULL; END $$;
CREATE TRIGGER note_write AFTER INSERT OR UPDATE ON totals FOR EACH ROW EXECUTE FUNCTION note_write();
"""


@pytest.fixture
def sink() -> Iterator[Store]:
    with headrace.open(serving.postgres_database()) as opened:
        yield opened


def test_an_aggregation_in_update_mode_continues_after_restarts_and_repeats_no_write(
    spark: SparkSession, sink: Store, tmp_path: Path
) -> None:
    source = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    orders = source.create_table("orders", {"id": "long", "shop": "string", "price": "long"}, "id")
    source.create_tunnel("orders", "totals", "BaseAndStream")
    totals = sink.create_table("totals", {"shop": "string", "n": "long", "total": "long"}, "shop")

    def run() -> None:
        changes = spark.readStream.format("headrace").option("store", source.url).option("tunnel", "totals").load()
        grouped = changes.groupBy("shop").agg(F.count("*").alias("n"), F.sum("price").alias("total"))
        headrace.write_stream(
            grouped,
            store=sink.url,
            table="totals",
            checkpoint="postgresql:///checkpoints/totals",
            mode="update",
            trigger={"availableNow": True},
        ).start().awaitTermination()

    def stored() -> dict[str, tuple[int, int]]:
        return {row["shop"]: (row["n"], row["total"]) for row in totals.scan().read_all().to_pylist()}

    orders.put([{"id": n, "shop": f"s{n % 3}", "price": n} for n in range(30)])
    run()
    assert stored() == {f"s{k}": (10, sum(range(k, 30, 3))) for k in range(3)}
    with psycopg.connect(sink.url, autocommit=True) as session:
        session.execute(NOTE_WRITES)
        orders.put([{"id": n, "shop": "s0", "price": 1000} for n in range(100, 105)])
        run()
        expected = {f"s{k}": (10, sum(range(k, 30, 3))) for k in range(3)}
        expected["s0"] = (15, expected["s0"][1] + 5000)
        assert stored() == expected
        assert session.execute("SELECT shop FROM writes").fetchall() == [("s0",)]
        # The driver died after the publication of the last batch: Spark repeats the batch.
        files = sink.files()
        last = max(int(status.name) for status in files.list("/checkpoints/totals/commits"))
        files.remove(f"/checkpoints/totals/commits/{last}")
        run()
        assert stored() == expected
        assert session.execute("SELECT shop FROM writes").fetchall() == [("s0",)]
        assert session.execute("SELECT count(*) FROM headrace.stage").fetchone() == (0,)
    source.close()


SESSIONS = """
SELECT pid, backend_start::text FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'headrace' AND backend_type = 'client backend'
"""
CORES = 2
"""The cores of Spark in these tests."""


@pytest.fixture
def _own_workers(spark: SparkSession) -> Iterator[None]:
    """Spark's Python processes are new: tasks take turns in all idle ones, and each keeps the store of its last task.

    Spark has processes for each environment. A data source has that of its registration.
    """
    environment = spark.sparkContext.environment
    environment["HEADRACE_TEST_WORKERS"] = str(uuid.uuid4())
    spark.dataSource.register(headrace.HeadraceDataSource)
    yield
    del environment["HEADRACE_TEST_WORKERS"]
    spark.dataSource.register(headrace.HeadraceDataSource)


@contextmanager
def seen_connections(url: str) -> Iterator[list[set[tuple[int, str]]]]:
    """Look every few milliseconds for the connections of headrace to a database; give a list of what is seen."""
    seen: list[set[tuple[int, str]]] = []
    ended = threading.Event()

    def look() -> None:
        with psycopg.connect(url, autocommit=True) as session:
            while not ended.wait(0.005):
                seen.append(set(session.execute(SESSIONS).fetchall()))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        ended.set()
        looking.join()


@pytest.mark.usefixtures("_own_workers")
def test_a_stream_on_two_cores_has_as_many_connections_as_the_model_of_capacity_says(
    spark: SparkSession, sink: Store
) -> None:
    assert spark.sparkContext.defaultParallelism == CORES
    with psycopg.connect(sink.url, autocommit=True) as session:
        session.execute("CREATE TABLE orders (id bigint PRIMARY KEY, shop bigint, price bigint)")
        session.execute("INSERT INTO orders SELECT n, n % 1000, n FROM generate_series(1, 100000) n")
        sink.create_table("totals", {"shop": "long", "total": "long"}, "shop")
        sink.create_tunnel("orders", "totals", base_channels=2)
        # Only those of the stream count.
        sink.close()
        changes = spark.readStream.format("headrace").options(store=sink.url, tunnel="totals").load()
        query = headrace.write_stream(
            changes.groupBy("shop").agg(F.sum("price").alias("total")),
            store=sink.url,
            table="totals",
            checkpoint="postgresql:///checkpoints/totals",
            mode="update",
        )
        with seen_connections(sink.url) as seen:
            running = query.start()
            for number in range(3):
                session.execute(
                    "INSERT INTO orders SELECT n, mod(n, 1000), 1 FROM generate_series(%s::bigint, %s) n",
                    (200_000 + 10_000 * number, 209_999 + 10_000 * number),
                )
                running.processAllAvailable()
            running.stop()
        assert session.execute("SELECT sum(total) FROM totals").fetchone() == (100_000 * 100_001 // 2 + 30_000,)
    expected = Stream("postgres-tunnel", "groups", "postgres-table").connections(CORES)
    assert expected / 2 <= max(map(len, seen)) <= expected


@pytest.mark.usefixtures("_own_workers")
def test_small_batches_one_after_the_other_open_no_connections(spark: SparkSession, sink: Store) -> None:
    for name in ("orders", "copy"):
        sink.create_table(name, {"id": "long", "price": "long"}, "id")
    sink.create_tunnel("orders", "copy")
    changes = spark.readStream.format("headrace").options(store=sink.url, tunnel="copy").load()
    running = headrace.write_stream(
        changes.select("id", "price"), store=sink.url, table="copy", checkpoint="postgresql:///copy", mode="update"
    ).start()
    orders = sink.table("orders")

    def run(numbers: range) -> None:
        for number in numbers:
            orders.put([{"id": number, "price": number}])
            running.processAllAvailable()

    # Each of the processes that take turns in the tasks has connected.
    run(range(4))
    with seen_connections(sink.url) as seen:
        run(range(4, 8))
    running.stop()
    assert set.union(*seen) == seen[0]
    assert sorted(row["id"] for row in sink.table("copy")) == list(range(8))


def test_the_native_sink_and_a_batch_write_fill_a_table(spark: SparkSession, sink: Store, tmp_path: Path) -> None:
    table = sink.create_table("copy", {"id": "long", "text": "string"}, "id")
    rows = spark.range(1000).selectExpr("id", "concat('row ', id) AS text")
    rows.write.format("headrace").option("store", sink.url).mode("append").save("copy")
    assert table.scan(["id"]).read_all().column("id").to_pylist() == list(range(1000))
    rows.where("id < 10").write.format("headrace").option("store", sink.url).mode("overwrite").save("copy")
    assert table.scan(["id"]).read_all().column("id").to_pylist() == list(range(10))
    read = spark.read.format("headrace").option("store", sink.url).load("copy")
    assert read.count() == 10


def test_queues_in_postgres_are_refused_by_sources_sinks_and_sql(
    spark: SparkSession, sink: Store, tmp_path: Path, checkpoint: str
) -> None:
    ticks = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS data")
    streams, rows = spark.readStream.format("headrace"), spark.read.format("headrace")
    native = ticks.writeStream.format("headrace").options(store=sink.url, queue="clicks", checkpointLocation=checkpoint)
    sql = headrace.sql(spark, tmp_path)
    statement = f"CREATE QUEUE clicks (data string) USING headrace OPTIONS (store='{sink.url}', queue='clicks')"

    def native_stream() -> None:
        native.trigger(availableNow=True).start().awaitTermination()

    attempts: list[Callable[[], object]] = [
        lambda: streams.options(store=sink.url, consumer="reader").load("clicks"),
        lambda: rows.options(store=sink.url, queue="clicks").load(),
        native_stream,
        lambda: headrace.write_stream(ticks, store=sink.url, queue="clicks", checkpoint=tmp_path / "other").start(),
        lambda: sql.run(statement),
    ]
    for attempt in attempts:
        with pytest.raises(Exception, match="this store has no queues, consumers or producers") as caught:
            attempt()
        assert "use tables and tunnels" in str(caught.value)
    for query in spark.streams.active:
        query.stop()
