"""The vendor's sample script on an embedded store, and sessions that run scripts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headrace
from headrace.errors import HeadraceError
from headrace.ports import Store
from headrace.streaming_sql.session import StreamingSql

SOURCE_CATALOG = (
    '{"columns": {"UserId": {"type": "string"}, "OrderId": {"type": "string"},'
    '"price": {"type": "double"}, "timestamp": {"type": "long"}}}'
)
SINK_CATALOG = (
    '{"columns": {"begin": {"type": "string"},"end": {"type": "string"}, "count": {"type": "long"}, '
    '"totalPrice": {"type": "double"}}}'
)
# The vendor's script. `vendor_script` replaces the words in capitals.
VENDOR_SCRIPT = """
 // Create an external table, which is the Source table named order_source.
 DROP TABLE IF EXISTS order_source;
 CREATE TABLE order_source USING tablestore OPTIONS(endpoint="ENDPOINT", access.key.id="", access.key.secret="",
   instance.name="vehicle-test", table.name="OrderSource",
   catalog='SOURCE_CATALOG');
 DROP TABLE IF EXISTS order_stream_sink;
 CREATE TABLE order_stream_sink
 USING tablestore
 OPTIONS(
 endpoint="ENDPOINT",
 access.key.id="",
 access.key.secret="",
 instance.name="vehicle-test",
 table.name="OrderStreamSink",
 catalog='SINK_CATALOG'
 );

 // Create a view named order_source_stream_view on the order_source table.
 CREATE SCAN order_source_stream_view ON order_source USING STREAM
 OPTIONS(
 tunnel.id="TUNNEL",
 maxoffsetsperchannel="10000");

 // Run a Stream SQL job on order_source_stream_view.
 CREATE STREAM job1
 options(
 checkpointLocation='CHECKPOINT',
 outputMode='update'
 )
 INSERT INTO order_stream_sink
 SELECT CAST(window.start AS String) AS begin, CAST(window.end AS String) AS end, count(*) AS count,
 CAST(sum(price) AS Double) AS totalPrice FROM order_source_stream_view
 GROUP BY window(to_timestamp(timestamp / 1000), "30 seconds");
"""


def create_store(directory: Path) -> Store:
    """Create the instance of the vendor's script, with its two tables."""
    store = headrace.open(directory / "vehicle-test", create=True, synchronous="off")
    store.create_table(
        "OrderSource",
        {"UserId": "string", "OrderId": "string", "price": "double", "timestamp": "long"},
        ["UserId", "OrderId"],
    )
    store.create_table(
        "OrderStreamSink",
        {"begin": "string", "end": "string", "count": "long", "totalPrice": "double"},
        ["begin", "end"],
    )
    return store


@contextmanager
def sql_session(spark: SparkSession, workspace: Path) -> Iterator[StreamingSql]:
    """Run scripts in a workspace. At the end, stop the streams and drop the temporary views."""
    session = headrace.sql(spark, workspace)
    yield session
    session.stop()
    for view in spark.catalog.listTables():
        if view.isTemporary:
            spark.catalog.dropTempView(view.name)


def unexpected(session: StreamingSql, errors: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Run statements, and return those whose error or its notes do not have the given text, with what happened.

    They share a session: making its tables takes longer than most of them.
    """
    others = {}
    for statement, says in errors:
        try:
            session.run(statement)[0].fetch()
        except HeadraceError as error:
            text = "\n".join([str(error), *getattr(error, "__notes__", [])])
            if re.search(says, text, re.DOTALL) is None:
                others[statement] = text
        else:
            others[statement] = "no error"
    return others


FILES = """
    CREATE TABLE orders USING parquet LOCATION '{directory}/orders'
      AS SELECT id, timestamp_seconds(id * 10) AS ts FROM range(100);
    CREATE TABLE clicks USING parquet OPTIONS(path='{directory}/clicks')
      AS SELECT id, timestamp_seconds(id * 10 + 1) AS click_ts FROM range(100);
    CREATE SCAN order_stream ON orders USING STREAM; CREATE SCAN click_stream ON clicks USING STREAM;
    CREATE TABLE result USING parquet LOCATION '{directory}/result';
"""


def put_orders(store: Store, first: int, count: int) -> None:
    rows = [
        {"UserId": f"u{n % 3}", "OrderId": f"o{n}", "price": 0.5, "timestamp": n * 1000}
        for n in range(first, first + count)
    ]
    store.table("OrderSource").put(rows)


def sink_rows(store: Store) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in store.table("OrderStreamSink").scan().read_all().to_pylist()]


def vendor_script(tmp_path: Path, tunnel: str) -> str:
    return (
        VENDOR_SCRIPT.replace("ENDPOINT", str(tmp_path))
        .replace("TUNNEL", tunnel)
        .replace("CHECKPOINT", str(tmp_path / "cp"))
        .replace("SOURCE_CATALOG", SOURCE_CATALOG)
        .replace("SINK_CATALOG", SINK_CATALOG)
    )


def define_orders(tmp_path: Path, tunnel: str = "stats") -> str:
    """The vendor's script without its stream."""
    return vendor_script(tmp_path, tunnel).split(" // Run a Stream SQL job")[0]


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.05)


WINDOWS = [
    ("1970-01-01 00:00:00", "1970-01-01 00:00:30", 30, 15.0),
    ("1970-01-01 00:00:30", "1970-01-01 00:01:00", 30, 15.0),
]


def run_stream(session: StreamingSql, tmp_path: Path, query: str) -> list[tuple[Any, ...]]:
    """Run a query in append mode to its end; return the rows of its sink."""
    session.run(
        f"CREATE STREAM s OPTIONS (checkpointLocation='{tmp_path}/cp') INSERT INTO result {query}", available_now=True
    )
    assert session.wait(120)
    return sorted(session.run("SELECT * FROM result")[0].fetch())
