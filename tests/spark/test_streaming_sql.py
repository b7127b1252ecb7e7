"""Scripts of the streaming dialect, run in Spark on the embedded store and on files."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

import headrace
from headrace.errors import AlreadyExistsError, HeadraceError, NotFoundError, OptionError, SqlError
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
# The vendor's script; its endpoint, tunnel id and checkpoint location are put in.
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


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = headrace.open(tmp_path / "vehicle-test", create=True, synchronous="off")
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


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> Iterator[StreamingSql]:
    session = headrace.sql(spark, tmp_path)
    yield session
    session.stop()
    for view in spark.catalog.listTables():
        if view.isTemporary:
            spark.catalog.dropTempView(view.name)


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
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)


WINDOWS = [
    ("1970-01-01 00:00:00", "1970-01-01 00:00:30", 30, 15.0),
    ("1970-01-01 00:00:30", "1970-01-01 00:01:00", 30, 15.0),
]


def test_the_vendors_script_runs_as_it_stands_and_goes_on_when_run_again(
    session: StreamingSql, store: Store, tmp_path: Path, spark: SparkSession
) -> None:
    tunnel = store.create_tunnel("OrderSource", "stats")
    put_orders(store, 0, 45)
    session.run(vendor_script(tmp_path, tunnel.id), available_now=True)
    assert session.wait(120)
    assert sink_rows(store) == [WINDOWS[0], (*WINDOWS[1][:2], 15, 7.5)]
    put_orders(store, 45, 15)
    again = headrace.sql(spark, tmp_path)
    again.run(vendor_script(tmp_path, tunnel.id), available_now=True)
    assert again.wait(120)
    assert sink_rows(store) == WINDOWS
    (status,) = again.streams()
    assert (status.name, status.state, status.target) == ("job1", "finished", "order_stream_sink")
    again.stop()


def test_tables_are_read_and_written_in_batch_by_their_names(
    session: StreamingSql, store: Store, tmp_path: Path
) -> None:
    put_orders(store, 0, 3)
    store.create_tunnel("OrderSource", "stats")
    session.run(define_orders(tmp_path))
    *_, selected = session.run(
        "INSERT INTO order_stream_sink SELECT 'a' AS begin, 'b' AS end, count(*) AS count, sum(price) AS totalPrice "
        "FROM order_source;"
        "INSERT INTO Order_Stream_Sink (end, begin, totalPrice, count) VALUES ('d', 'c', 2.5D, 7L);"
        "SELECT begin, count FROM ORDER_STREAM_SINK ORDER BY begin"
    )
    assert selected.columns == ("begin", "count")
    assert selected.fetch() == [("a", 3), ("c", 7)]
    assert selected.fetch(1) == [("a", 3)]
    assert sink_rows(store) == [("a", "b", 3, 1.5), ("c", "d", 7, 2.5)]


def test_a_statement_that_fails_is_named_and_ends_the_script(
    session: StreamingSql, store: Store, tmp_path: Path
) -> None:
    store.create_tunnel("OrderSource", "stats")
    session.run(define_orders(tmp_path))
    with pytest.raises(AnalysisException, match="must be executed with writeStream") as caught:
        session.run("SELECT 1;\n\nSELECT * FROM order_source_stream_view;\nDROP TABLE order_source")
    assert caught.value.__notes__ == ["in statement 2 of 3, line 3: SELECT * FROM order_source_stream_view"]
    assert session.run("SELECT count(*) FROM order_source")[0].fetch() == [(0,)]
    with pytest.raises(SqlError, match=r"line 2, column 14"):
        session.run("DROP TABLE order_source;\nCREATE SCAN y")
    with pytest.raises(SqlError, match="can only be read"):
        session.run("INSERT INTO order_source_stream_view SELECT 1")
    with pytest.raises(SqlError, match=r"name the columns: INSERT INTO order_stream_sink \("):
        session.run("INSERT INTO order_stream_sink VALUES ('a', 'b', 1L, 2.5D)")


def test_results_taken_one_by_one_are_those_of_their_moment(
    session: StreamingSql, store: Store, tmp_path: Path
) -> None:
    store.create_tunnel("OrderSource", "stats")
    session.run(define_orders(tmp_path))
    count = "SELECT count(*) FROM order_stream_sink;"
    insert = "INSERT INTO order_stream_sink SELECT 'a' AS begin, 'b' AS end;"
    results = session.run_each(f"{count} {insert} {count} SELECT nothing")
    assert next(results).fetch() == [(0,)]
    next(results)
    assert next(results).fetch() == [(1,)]
    with pytest.raises(AnalysisException):
        next(results)


def test_tunnels(session: StreamingSql, store: Store, tmp_path: Path) -> None:
    session.run(define_orders(tmp_path, "x").split("// Create a view")[0])
    (created,) = session.run("CREATE TUNNEL stats ON order_source USING Stream OPTIONS (start='earliest')")
    tunnel = store.tunnel("stats", "OrderSource")
    assert created.rows == ((tunnel.id, "stats", "OrderSource", "Stream"),)
    with pytest.raises(AlreadyExistsError):
        session.run("CREATE TUNNEL stats ON order_source")
    session.run("CREATE TUNNEL IF NOT EXISTS stats ON order_source")
    put_orders(store, 0, 5)
    assert [row[1::4] for row in session.run("SHOW TUNNELS")[0].rows] == [("stats", 5)]
    assert session.run("SHOW TUNNELS ON order_stream_sink")[0].rows == ()
    (channel,) = session.run(f"DESCRIBE TUNNEL {tunnel.id}")[0].rows
    assert (channel[0], channel[4]) == (tunnel.id, 5)
    session.run("DROP TUNNEL stats ON order_source; DROP TUNNEL IF EXISTS stats")
    assert store.tunnels() == []
    with pytest.raises(NotFoundError):
        session.run("DESCRIBE TUNNEL stats")
    with pytest.raises(OptionError, match="start, baseChannels"):
        session.run("CREATE TUNNEL s ON order_source OPTIONS (begin='x')")


def test_a_statement_takes_the_options_of_its_own_use_and_refuses_all_others(
    session: StreamingSql, store: Store, tmp_path: Path
) -> None:
    store.create_tunnel("OrderSource", "all")
    put_orders(store, 0, 3)
    # A definition is for reading and for writing; each statement takes its own options of it.
    session.run(
        f"CREATE TABLE orders USING headrace OPTIONS (store='{store.url}', table='OrderSource', tunnel='all', "
        "rowChange='update', splits=2, maxRowsPerTrigger=2)"
    )
    assert [row[0] for row in session.run("SELECT count(*) FROM orders")[0].fetch(1)] == [3]
    session.run("INSERT INTO orders (UserId, OrderId, price) VALUES ('u0', 'o0', 9D)")
    updated = {"UserId": "u0", "OrderId": "o0", "price": 9.0, "timestamp": 0}
    assert store.table("OrderSource").get({"UserId": "u0", "OrderId": "o0"}) == updated
    session.run("CREATE SCAN changes ON orders USING STREAM OPTIONS (MAXROWSPERTRIGGER=3)")
    stream = (
        f"CREATE STREAM s OPTIONS (checkpointLocation='{tmp_path}/cp', %s) "
        "INSERT INTO orders SELECT UserId, OrderId, price, timestamp FROM changes"
    )
    for statement, says in (
        ("CREATE TABLE t USING headrace OPTIONS (store='x', foo='y')", "unknown option of table t; received: 'foo'"),
        ("CREATE SCAN a ON orders USING STREAM OPTIONS (tunnel='a', foo='bar', readAs='table')", "'foo'; valid: store"),
        ("CREATE SCAN a ON orders USING STREAM OPTIONS (maxRowPerTrigger=1)", "did you mean maxRowsPerTrigger"),
        ("CREATE SCAN a ON orders USING STREAM OPTIONS (rowChange='put')", "no effect in scan a, a stream read"),
        ("CREATE SCAN a ON orders USING BATCH OPTIONS (tunnel='all')", "no effect in scan a, a batch read"),
        ("CREATE SCAN a ON orders USING STREAM OPTIONS (maxRowsPerTrigger='nan')", "maxRowsPerTrigger cannot be read"),
        (stream % "foo='bar'", "unknown option of stream s into format headrace; received: 'foo'"),
        (stream % "rowChanges='put'", "did you mean rowChange"),
        (stream % "tunnel='all'", "no effect in stream s"),
        (stream % "rowChange='replace_all'", "valid: put, update, delete"),
        (stream % "outputMode='replace_all'", "valid: append, update, complete"),
        (stream % "triggerType='Continuous'", "valid: ProcessingTime, AvailableNow, Once"),
        ("CREATE TUNNEL u ON orders USING Stream OPTIONS (begin='x')", "unknown option of a tunnel"),
        ("CREATE TUNNEL u ON orders USING Stream OPTIONS (start='batch')", "committed, earliest, latest"),
        ("CREATE QUEUE q (id LONG) USING headrace OPTIONS (autoTrimm=true)", "did you mean autoTrim"),
        ("CREATE QUEUE q (id LONG) USING headrace OPTIONS (autoTrim='yes')", "valid: true, false"),
        ("CREATE CONSUMER c OPTIONS (stor='x')", "did you mean store"),
    ):
        with pytest.raises(HeadraceError, match=re.escape(says)):
            session.run(statement)
    for place, says in (("tablestore+http://h/i", "has no files"), ("foo://h/a", "cannot open this checkpoint")):
        with pytest.raises(HeadraceError, match=says):
            session.run((stream % "outputMode='append'").replace(f"{tmp_path}/cp", place))


def test_explain_tells_source_sink_guarantee_and_plan(session: StreamingSql, store: Store, tmp_path: Path) -> None:
    tunnel = store.create_tunnel("OrderSource", "stats")
    script = vendor_script(tmp_path, tunnel.id).replace('access.key.secret=""', 'access.key.secret="t0p-secret"')
    (*_, explained) = session.run(script.replace("CREATE STREAM", "EXPLAIN CREATE STREAM"))
    told = dict(explained.rows)
    assert told["output mode"] == "update"
    assert told["trigger"] == "ProcessingTime, 0 milliseconds"
    assert told["guarantee"] == "exactly once"
    assert told["source"].startswith("order_source_stream_view: STREAM scan of order_source USING tablestore (")
    assert "Aggregate" in told["plan"]
    assert "t0p-secret" not in str(explained.rows)


def test_the_older_dialect(session: StreamingSql, store: Store, tmp_path: Path) -> None:
    store.create_tunnel("OrderSource", "stats")
    put_orders(store, 0, 60)
    session.run(define_orders(tmp_path))
    query = (
        "INSERT INTO order_stream_sink SELECT CAST(window.start AS STRING) begin, CAST(window.end AS STRING) end, "
        "count(*) count, sum(price) totalPrice FROM order_source_stream_view "
        "GROUP BY TUMBLING(to_timestamp(timestamp / 1000), interval 30 seconds);"
    )
    with pytest.raises(OptionError, match="CREATE STREAM name"):
        session.run(query)
    with pytest.raises(SqlError, match="INSERT OVERWRITE cannot write a stream; use INSERT INTO"):
        session.run(f"SET streaming.query.name=q; {query.replace('INTO', 'OVERWRITE', 1)}")
    session.run(
        f"SET streaming.query.name=q; SET spark.sql.streaming.query.options.q.checkpointLocation={tmp_path}/cp;"
        "SET spark.sql.streaming.query.outputMode.q=complete; SET spark.sql.streaming.query.trigger.q=AvailableNow;"
        + query
    )
    assert session.wait(120)
    assert sink_rows(store) == WINDOWS


def test_a_running_stream_can_be_seen_stopped_and_started(session: StreamingSql, store: Store, tmp_path: Path) -> None:
    tunnel = store.create_tunnel("OrderSource", "stats")
    script = vendor_script(tmp_path, tunnel.id)
    put_orders(store, 0, 30)
    session.run(script)
    wait_for(lambda: sink_rows(store) == WINDOWS[:1])
    wait_for(lambda: session.streams()[0].batch is not None)
    assert session.run("SHOW STREAMS")[0].rows[0][:3] == ("job1", "running", "order_stream_sink")
    with pytest.raises(AlreadyExistsError, match="already running"):
        session.run("START STREAM JOB1")
    create = script[script.index("CREATE STREAM") :]
    with pytest.raises(AlreadyExistsError, match="already running"):
        session.run(create)
    session.run("STOP STREAM job1")
    assert session.streams()[0].state == "stopped"
    for table, by in (
        ("order_stream_sink", "stream job1"),
        ("ORDER_SOURCE", "scan order_source_stream_view, stream job1"),
    ):
        assert session.run(f"DROP TABLE {table}")[0].message == (
            f"table {table} forgotten; its rows stay in their store; it is still needed by {by}"
        )
    session.run(script[: script.index("// Create a view")])
    put_orders(store, 30, 30)
    with pytest.raises(AlreadyExistsError, match="DROP STREAM job1 first"):
        session.run(create.replace("30 seconds", "60 seconds"))
    session.run("START STREAM job1")
    wait_for(lambda: sink_rows(store) == WINDOWS)
    (dropped,) = session.run("DROP STREAM job1")
    assert str(tmp_path / "cp") in str(dropped.message)
    assert (tmp_path / "cp").exists()
    assert session.streams() == []
    session.run("DROP STREAM IF EXISTS job1")
    with pytest.raises(NotFoundError):
        session.run("DESCRIBE STREAM job1")


OTHER_PROCESS = """
import sys
import headrace
spark = headrace.session("other", master="local[1,4]", conf={"spark.ui.enabled": "false"})
sql = headrace.sql(spark, sys.argv[1])
sql.run(open(sys.argv[2]).read())
print("running", flush=True)
sql.wait()
print("ended", flush=True)
sys.stdin.readline()
"""


def test_a_stream_of_another_process_is_stopped_from_here_and_taken_over(
    session: StreamingSql, store: Store, tmp_path: Path
) -> None:
    tunnel = store.create_tunnel("OrderSource", "stats")
    put_orders(store, 0, 30)
    script = tmp_path / "job.sql"
    script.write_text(vendor_script(tmp_path, tunnel.id))
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(tmp_path), str(script)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "running\n"
        assert session.streams()[0].pid == process.pid
        (stopped,) = session.run("STOP STREAM job1")
        assert f"process {process.pid}" in str(stopped.message)
        assert process.stdout.readline() == "ended\n"
        process.stdin.close()
    put_orders(store, 30, 30)
    # This session has never seen the script: tables and scans come from the workspace.
    session.run("START STREAM job1", available_now=True)
    assert session.wait(120)
    assert sink_rows(store) == WINDOWS


# -- without headrace's store ---------------------------------------------------------------------------


@pytest.fixture
def files(session: StreamingSql, tmp_path: Path) -> StreamingSql:
    """A session with the tables orders and clicks, 100 rows each, as parquet files, and stream scans of them."""
    session.run(f"""
        CREATE TABLE orders USING parquet LOCATION '{tmp_path}/orders'
          AS SELECT id, timestamp_seconds(id * 10) AS ts FROM range(100);
        CREATE TABLE clicks USING parquet OPTIONS(path='{tmp_path}/clicks')
          AS SELECT id, timestamp_seconds(id * 10 + 1) AS click_ts FROM range(100);
        CREATE SCAN order_stream ON orders USING STREAM; CREATE SCAN click_stream ON clicks USING STREAM;
        CREATE TABLE result USING parquet LOCATION '{tmp_path}/result';
    """)
    return session


def run_stream(session: StreamingSql, tmp_path: Path, query: str) -> list[tuple[Any, ...]]:
    """Run a query in append mode to its end; return what it wrote."""
    session.run(
        f"CREATE STREAM s OPTIONS (checkpointLocation='{tmp_path}/cp') INSERT INTO result {query}", available_now=True
    )
    assert session.wait(120)
    return sorted(session.run("SELECT * FROM result")[0].fetch())


@pytest.mark.parametrize(
    "query",
    [
        "SELECT minute(window.start) AS m, count(*) AS n FROM order_stream WHERE delay(ts) < '10 seconds' AND id >= 6 "
        "GROUP BY TUMBLING(ts, interval 1 minute)",
        "SELECT minute(window.start) AS m, count(*) AS n FROM (SELECT watermark(ts, interval 10 seconds) AS t, id FROM "
        "order_stream) WHERE id >= 6 GROUP BY HOPPING(t, '1 minute', interval '1' minute)",
        "SELECT minute(window.start) AS m, count(*) AS n FROM (SELECT watermark(ts + interval 0 days, '10 seconds') "
        "AS t FROM order_stream WHERE id >= 6) GROUP BY window(t, '1 minute')",
    ],
)
def test_watermarks_close_windows_in_append_mode(files: StreamingSql, tmp_path: Path, query: str) -> None:
    assert run_stream(files, tmp_path, query) == [(minute, 6) for minute in range(1, 16)]


def test_a_join_of_streams_with_a_watermark_on_each(files: StreamingSql, tmp_path: Path) -> None:
    rows = run_stream(
        files,
        tmp_path,
        "SELECT o.id FROM order_stream o JOIN click_stream c ON o.id = c.id AND click_ts BETWEEN ts AND ts + interval "
        "5 seconds WHERE delay(ts) < '1 minute' AND delay(c.click_ts) < '2 minutes'",
    )
    # A row at the epoch itself is late from the start.
    assert rows == [(n,) for n in range(1, 100)]


def test_create_table_as_select_of_a_stream(files: StreamingSql, tmp_path: Path) -> None:
    files.run(
        f"SET streaming.query.name=copy; SET spark.sql.streaming.checkpointLocation.copy={tmp_path}/cp;"
        f"CREATE TABLE copied USING parquet LOCATION '{tmp_path}/copied' AS SELECT id FROM order_stream",
        available_now=True,
    )
    assert files.wait(120)
    assert files.run("SELECT count(*) FROM copied")[0].fetch() == [(100,)]


def test_create_table_as_select_is_not_done_twice(files: StreamingSql, tmp_path: Path) -> None:
    statement = f"TABLE orders USING parquet LOCATION '{tmp_path}/orders' AS SELECT 1 AS id"
    with pytest.raises(AlreadyExistsError, match="filled again"):
        files.run(f"CREATE {statement}")
    files.run(f"CREATE {statement.replace('TABLE', 'TABLE IF NOT EXISTS')}")
    assert files.run("SELECT count(*) FROM orders")[0].fetch() == [(100,)]


def test_sparks_own_tables_keep_working(files: StreamingSql, tmp_path: Path) -> None:
    files.run(
        "CREATE TABLE own (id BIGINT) USING parquet; INSERT INTO own SELECT id FROM orders WHERE id < 3;"
        "CREATE TEMPORARY VIEW seen AS SELECT * FROM own; CREATE SCAN own_stream ON own USING STREAM"
    )
    try:
        assert files.run("SELECT count(*) FROM seen")[0].fetch() == [(3,)]
        assert run_stream(files, tmp_path, "SELECT id FROM own_stream") == [(0,), (1,), (2,)]
    finally:
        files.run("DROP SCAN own_stream; DROP TABLE own")
    with pytest.raises(AnalysisException):
        files.run("SELECT * FROM own")


def test_names_can_be_any_text_in_backquotes(files: StreamingSql, tmp_path: Path) -> None:
    files.run(f"CREATE TABLE `a b.c-ü` USING parquet LOCATION '{tmp_path}/orders'")
    files.run("CREATE SCAN `s ;` ON `a b.c-ü` USING STREAM")
    assert files.run("SELECT max(id) FROM `a b.c-ü`")[0].fetch() == [(99,)]
    assert len(run_stream(files, tmp_path, "SELECT id FROM `s ;`")) == 100
    files.run("DROP SCAN `s ;`; DROP TABLE `A b.c-ü`")
    for name in ("`s ;`", "`a b.c-ü`"):
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            files.run(f"SELECT * FROM {name}")


def test_secrets_of_a_stream_are_not_kept(
    files: StreamingSql, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(password: str) -> str:
        options = f"checkpointLocation='{tmp_path}/cp', password='{password}'"
        return f"CREATE STREAM s OPTIONS ({options}) INSERT INTO nowhere SELECT id FROM order_stream"

    files.run(f"CREATE TABLE nowhere USING noop; {create('t0p-secret')}", available_now=True)
    assert files.wait(120)
    files.run("START STREAM s", available_now=True)
    assert files.wait(120)
    assert "t0p-secret" not in str(files.run("DESCRIBE STREAM s; EXPLAIN STREAM s; SHOW STREAMS"))
    assert not any(b"t0p-secret" in path.read_bytes() for path in (tmp_path / ".headrace").iterdir())
    later = headrace.sql(spark, tmp_path)
    with pytest.raises(OptionError, match=r"option password of stream s.*\$\{env:NAME\}"):
        later.run("START STREAM s")
    monkeypatch.setenv("HEADRACE_TEST_PASSWORD", "t0p-secret")
    later.run(f"DROP STREAM s; {create('${env:HEADRACE_TEST_PASSWORD}')}", available_now=True)
    assert later.wait(120)
    later.stop()


def test_a_stream_that_fails_says_so(files: StreamingSql, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="DIVIDE_BY_ZERO"):
        run_stream(files, tmp_path, "SELECT 1 / (id - 50) AS x FROM order_stream")
    (status,) = files.streams()
    assert status.state == "failed"
    assert "DIVIDE_BY_ZERO" in str(status.error)
    files.run("DROP STREAM s")
    assert files.wait(0)


def test_a_stream_ends_after_its_timeout(files: StreamingSql, tmp_path: Path) -> None:
    files.run(
        f"CREATE STREAM s OPTIONS (checkpointLocation='{tmp_path}/cp', timeoutMs=1) INSERT INTO result "
        "SELECT id FROM order_stream"
    )
    assert files.wait(120)
    assert files.streams()[0].state == "stopped"


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("CREATE STREAM s INSERT INTO result SELECT id FROM order_stream", "checkpointLocation"),
        (
            "CREATE STREAM s OPTIONS (checkpointLocation='x') INSERT INTO result SELECT id FROM orders",
            "reads no stream",
        ),
        ("CREATE STREAM s OPTIONS (checkpointLocation='x') INSERT INTO click_stream SELECT 1", "only be read"),
        ("CREATE SCAN orders ON clicks USING BATCH", "a table has this name"),
        ("DROP SCAN nope", "click_stream, order_stream"),
        ("CREATE TUNNEL t ON orders", "cannot have tunnels"),
        ("CREATE TUNNEL t ON nope", "no such table"),
        ("CREATE TABLE t USING headrace OPTIONS (store='x', tabel='y')", "did you mean table"),
        ("CREATE TABLE t USING tablestore OPTIONS (endpoint='x', instance.name='i')", "table.name"),
        ("INSERT INTO result (a) SELECT 1, 2", "same number of columns"),
    ],
)
def test_what_cannot_be_is_an_error(files: StreamingSql, statement: str, says: str) -> None:
    with pytest.raises(HeadraceError, match=says):
        files.run(statement)
    assert files.streams() == []
