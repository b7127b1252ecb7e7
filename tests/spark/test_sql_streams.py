"""The life of a stream in streaming SQL: start, stop, failure, takeover by another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headrace
from headrace.errors import AlreadyExistsError, InUseError, NotFoundError, OptionError, SchemaError, SqlError
from headrace.ports import Store
from headrace.streaming_sql.session import StreamingSql
from tests.spark.sql_scripts import (
    FILES,
    WINDOWS,
    create_store,
    put_orders,
    run_stream,
    sink_rows,
    sql_session,
    vendor_script,
    wait_for,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return create_store(tmp_path)


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> Iterator[StreamingSql]:
    with sql_session(spark, tmp_path) as session:
        yield session


@pytest.fixture
def files(session: StreamingSql, tmp_path: Path) -> StreamingSql:
    """A session with parquet tables orders and clicks of 100 rows, their streaming scans, and a table result."""
    session.run(FILES.format(directory=tmp_path))
    return session


def test_a_running_stream_can_be_shown_stopped_and_started(session: StreamingSql, store: Store, tmp_path: Path) -> None:
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
    with pytest.raises(SqlError, match="stream job1 already reads the tunnel of scan order_source_stream_view"):
        session.run(create.replace("job1", "job2"))
    with pytest.raises(InUseError, match="table ORDER_SOURCE is in use; received: stream job1; add CASCADE"):
        session.run("DROP TABLE ORDER_SOURCE")
    with pytest.raises(InUseError, match="tunnel stats is in use; received: stream job1; add CASCADE"):
        session.run("DROP TUNNEL stats ON order_source")
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


def test_a_session_stops_and_takes_over_a_stream_of_another_process(
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
    # This session has not run the script. Tables and scans come from the workspace.
    session.run("START STREAM job1", available_now=True)
    assert session.wait(120)
    assert sink_rows(store) == WINDOWS


def test_secrets_of_a_stream_are_not_stored(
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


def test_a_failed_stream_shows_its_error(files: StreamingSql, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="DIVIDE_BY_ZERO"):
        run_stream(files, tmp_path, "SELECT 1 / (id - 50) AS x FROM order_stream")
    (status,) = files.streams()
    assert status.state == "failed"
    assert "DIVIDE_BY_ZERO" in str(status.error)
    files.run("DROP STREAM s")
    assert files.wait(0)


def test_a_stream_whose_creation_failed_leaves_its_name_to_another(files: StreamingSql, store: Store) -> None:
    store.create_table("copy", {"id": "long"}, "id")
    files.run(f"CREATE TABLE copy USING headrace OPTIONS (store = '{store.url}', table = 'copy')")
    create = "CREATE STREAM s OPTIONS (outputMode = 'update') INSERT INTO copy"
    with pytest.raises(SchemaError, match="does not have a column"):
        files.run(f"{create} SELECT id, id AS nothing FROM order_stream")
    assert [status.state for status in files.streams()] == ["failed"]
    (result,) = files.run(f"{create} SELECT id FROM order_stream", available_now=True)
    assert result.message == "stream s started"
    assert files.wait(120)
    with pytest.raises(AlreadyExistsError, match="another text"):
        files.run(f"{create} SELECT id FROM order_stream WHERE true")


def test_a_stream_ends_after_its_timeout(files: StreamingSql, tmp_path: Path) -> None:
    files.run(
        f"CREATE STREAM s OPTIONS (checkpointLocation='{tmp_path}/cp', timeoutMs=1) INSERT INTO result "
        "SELECT id FROM order_stream"
    )
    assert files.wait(120)
    assert files.streams()[0].state == "stopped"
