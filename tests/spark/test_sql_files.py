"""Streaming SQL on files and on Spark's own tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.errors import AlreadyExistsError, NotFoundError
from headrace.streaming_sql.session import StreamingSql
from tests.spark.sql_scripts import (
    FILES,
    run_stream,
    sql_session,
    unexpected,
)


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> Iterator[StreamingSql]:
    with sql_session(spark, tmp_path) as session:
        yield session


@pytest.fixture
def files(session: StreamingSql, tmp_path: Path) -> StreamingSql:
    """A session with parquet tables orders and clicks of 100 rows, their streaming scans, and a table result."""
    session.run(FILES.format(directory=tmp_path))
    return session


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


def test_streams_with_a_watermark_each_are_joined(files: StreamingSql, tmp_path: Path) -> None:
    rows = run_stream(
        files,
        tmp_path,
        "SELECT o.id FROM order_stream o JOIN click_stream c ON o.id = c.id AND click_ts BETWEEN ts AND ts + interval "
        "5 seconds WHERE delay(ts) < '1 minute' AND delay(c.click_ts) < '2 minutes'",
    )
    # The row at the epoch is late, because the first watermark is the epoch.
    assert rows == [(n,) for n in range(1, 100)]


def test_create_table_as_select_of_a_stream(files: StreamingSql, tmp_path: Path) -> None:
    files.run(
        f"SET streaming.query.name=copy; SET spark.sql.streaming.checkpointLocation.copy={tmp_path}/cp;"
        f"CREATE TABLE copied USING parquet LOCATION '{tmp_path}/copied' AS SELECT id FROM order_stream",
        available_now=True,
    )
    assert files.wait(120)
    assert files.run("SELECT count(*) FROM copied")[0].fetch() == [(100,)]


def test_create_table_as_select_does_not_run_twice(files: StreamingSql, tmp_path: Path) -> None:
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
    with pytest.raises(NotFoundError):
        files.run("SELECT * FROM own")


def test_names_can_be_any_text_in_backquotes(files: StreamingSql, tmp_path: Path) -> None:
    files.run(f"CREATE TABLE `a b.c-ü` USING parquet LOCATION '{tmp_path}/orders'")
    files.run("CREATE SCAN `s ;` ON `a b.c-ü` USING STREAM")
    assert files.run("SELECT max(id) FROM `a b.c-ü`")[0].fetch() == [(99,)]
    assert len(run_stream(files, tmp_path, "SELECT id FROM `s ;`")) == 100
    files.run("DROP SCAN `s ;`; DROP TABLE `A b.c-ü`")
    for name in ("`s ;`", "`a b.c-ü`"):
        with pytest.raises(NotFoundError, match="no such table or scan"):
            files.run(f"SELECT * FROM {name}")


INVALID = [
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
]


def test_invalid_statements_are_errors(files: StreamingSql) -> None:
    assert unexpected(files, INVALID) == {}
    assert files.streams() == []
