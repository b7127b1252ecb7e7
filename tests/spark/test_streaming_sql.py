"""Statements of streaming SQL, on the embedded store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.errors import AlreadyExistsError, HeadraceError, NotFoundError, OptionError, SqlError, UnsupportedError
from headrace.ports import Store
from headrace.spark.versions import WATERMARKS
from headrace.streaming_sql.session import StreamingSql
from tests.spark.sql_scripts import (
    WINDOWS,
    create_store,
    define_orders,
    put_orders,
    sink_rows,
    sql_session,
    vendor_script,
)
from tests.spark_versions import needs


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return create_store(tmp_path)


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> Iterator[StreamingSql]:
    with sql_session(spark, tmp_path) as session:
        yield session


def test_the_vendors_script_runs_unchanged_and_continues_when_it_runs_again(
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


def test_a_failed_statement_ends_the_script_and_its_error_has_the_line(
    session: StreamingSql, store: Store, tmp_path: Path
) -> None:
    store.create_tunnel("OrderSource", "stats")
    session.run(define_orders(tmp_path))
    with pytest.raises(SqlError, match="SELECT … FROM order_source; or run the query as a stream") as caught:
        session.run("SELECT 1;\n\nSELECT * FROM order_source_stream_view;\nDROP TABLE order_source")
    assert caught.value.__notes__ == ["in statement 2 of 3, line 3: SELECT * FROM order_source_stream_view"]
    assert session.run("SELECT count(*) FROM order_source")[0].fetch() == [(0,)]
    with pytest.raises(SqlError, match=r"line 2, column 14"):
        session.run("DROP TABLE order_source;\nCREATE SCAN y")
    with pytest.raises(SqlError, match="can only be read"):
        session.run("INSERT INTO order_source_stream_view SELECT 1")
    with pytest.raises(SqlError, match=r"name the columns: INSERT INTO order_stream_sink \("):
        session.run("INSERT INTO order_stream_sink VALUES ('a', 'b', 1L, 2.5D)")


def test_run_each_runs_a_statement_after_the_result_before_it(
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
    with pytest.raises(SqlError, match="no such column"):
        next(results)


def test_an_error_of_spark_is_located_behind_characters_at_which_python_cuts_lines(session: StreamingSql) -> None:
    with pytest.raises(SqlError) as caught:
        session.run("SELECT 1, -- a\u2028b\x85c\n  2 3 4")
    assert (caught.value.line, caught.value.column) == (2, 5)


def test_tunnels_are_created_shown_and_dropped(session: StreamingSql, store: Store, tmp_path: Path) -> None:
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


def test_a_tunnel_follows_tables_of_one_store(session: StreamingSql, store: Store, tmp_path: Path) -> None:
    session.run(define_orders(tmp_path, "x").split("// Create a view")[0])
    create = "CREATE TUNNEL IF NOT EXISTS sales ON order_source, order_stream_sink"
    (created,) = session.run(create)
    assert created.rows[0][1:] == ("sales", "OrderSource,OrderStreamSink", "BaseAndStream")
    assert session.run(create)[0].rows == created.rows
    (shown,) = session.run("SHOW TUNNELS ON order_stream_sink")[0].rows
    assert shown[0] == created.rows[0][0]
    with headrace.open(tmp_path / "other", create=True, synchronous="off") as other:
        other.create_table("t", {"id": "long"}, "id")
    session.run(f"CREATE TABLE elsewhere USING headrace OPTIONS (store='{tmp_path}/other', table='t')")
    with pytest.raises(UnsupportedError, match="a tunnel follows tables of one store"):
        session.run("CREATE TUNNEL far ON order_source, elsewhere")


def test_a_statement_uses_the_options_of_its_use_and_refuses_others(
    session: StreamingSql, store: Store, tmp_path: Path
) -> None:
    store.create_tunnel("OrderSource", "all")
    put_orders(store, 0, 3)
    # A definition can have options for reading and for writing. Each statement uses those that apply to it.
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
        ("CREATE TUNNEL u ON orders OPTIONS (failover='maybe')", "true or false"),
        ("CREATE TUNNEL u ON orders OPTIONS (FailOver='true')", "unknown option of a tunnel of this store"),
        ("CREATE TUNNEL u ON orders OPTIONS (mask='email')", 'JSON with each column once: {"email": "hash"}'),
        ('CREATE TUNNEL u ON orders OPTIONS (mask=\'{"a": "hash", "a": "null"}\')', "each column once"),
        ("CREATE TUNNEL u ON orders OPTIONS (columns='id')", "unknown option of a tunnel of this store"),
        ("CREATE QUEUE q (id LONG) USING headrace OPTIONS (autoTrimm=true)", "did you mean autoTrim"),
        ("CREATE QUEUE q (id LONG) USING headrace OPTIONS (autoTrim='yes')", "valid: true, false"),
        ("CREATE CONSUMER c OPTIONS (stor='x')", "did you mean store"),
    ):
        with pytest.raises(HeadraceError, match=re.escape(says)):
            session.run(statement)
    for place, says in (("tablestore+http://h/i", "has no files"), ("foo://h/a", "cannot open this checkpoint")):
        with pytest.raises(HeadraceError, match=says):
            session.run((stream % "outputMode='append'").replace(f"{tmp_path}/cp", place))


def test_explain_shows_source_sink_guarantee_and_plan(session: StreamingSql, store: Store, tmp_path: Path) -> None:
    tunnel = store.create_tunnel("OrderSource", "stats")
    script = vendor_script(tmp_path, tunnel.id).replace('access.key.secret=""', 'access.key.secret="t0p-secret"')
    (*_, explained) = session.run(script.replace("CREATE STREAM", "EXPLAIN CREATE STREAM"))
    properties = dict(explained.rows)
    assert properties["output mode"] == "update"
    assert properties["trigger"] == "ProcessingTime, 0 milliseconds"
    assert properties["guarantee"] == "exactly once"
    assert properties["source"].startswith("order_source_stream_view: STREAM scan of order_source USING tablestore (")
    assert "Aggregate" in properties["plan"]
    assert "t0p-secret" not in str(explained.rows)


def test_the_older_dialect_starts_streams(session: StreamingSql, store: Store, tmp_path: Path) -> None:
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


@needs(WATERMARKS)
def test_a_watermark_without_a_time_zone_says_how_to_cast(spark: SparkSession, tmp_path: Path) -> None:
    with headrace.open(tmp_path / "shop", create=True) as store:
        for name in ("orders", "counts"):
            store.create_table(name, {"id": "long", "at": "timestamp_ntz"}, ["id"])
        store.create_tunnel("orders", "stats")
    with sql_session(spark, tmp_path / "jobs") as session:
        session.run(
            f"CREATE TABLE orders USING headrace OPTIONS (store = '{tmp_path / 'shop'}', table = 'orders');"
            f"CREATE TABLE counts USING headrace OPTIONS (store = '{tmp_path / 'shop'}', table = 'counts');"
            "CREATE SCAN o ON orders USING STREAM OPTIONS (tunnel = 'stats')"
        )
        with pytest.raises(SqlError, match=r"received: at of type timestamp_ntz; .*WATERMARK CAST\(at AS TIMESTAMP\)"):
            session.run("SELECT count(*) FROM o WHERE delay(at) < '1 minute' GROUP BY window(at, '1 minute')")
        (frame,) = session.run(
            "EXPLAIN CREATE STREAM w OPTIONS (checkpointLocation = 'cp') INSERT INTO counts SELECT count(*) AS id, "
            "CAST(window.start AS TIMESTAMP_NTZ) AS at "
            "FROM o WATERMARK CAST(at AS TIMESTAMP) AS event_time DELAY OF INTERVAL 1 minute "
            "GROUP BY window(event_time, '1 minute')"
        )
        assert frame.rows
