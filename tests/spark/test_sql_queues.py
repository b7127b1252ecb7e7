"""Queues, consumers and their streams in streaming SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.errors import AlreadyExistsError, HeadraceError, InUseError, NotFoundError, OptionError, UnsupportedError
from headrace.ports import Store
from headrace.streaming_sql.session import StreamingSql

ROOT = Path(__file__).parents[2]
CREATE = """
CREATE QUEUE clicks (user STRING NOT NULL, page STRUCT<url: STRING, tags: ARRAY<STRING>>, n BIGINT)
  PARTITIONS 2 OPTIONS (store = '{store}');
CREATE QUEUE copy (user STRING, n BIGINT) OPTIONS (store = '{store}');
CREATE CONSUMER '//c';
REGISTER CONSUMER '//c' FOR QUEUE clicks VITAL;
CREATE SCAN click_stream ON clicks USING STREAM OPTIONS (consumer = '//c');
"""


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamingSql]:
    monkeypatch.delenv("HEADRACE_STORE", raising=False)
    session = headrace.sql(spark, tmp_path)
    session.run(CREATE.format(store=tmp_path / "shop"))
    yield session
    session.stop()
    for view in spark.catalog.listTables():
        if view.isTemporary:
            spark.catalog.dropTempView(view.name)


@pytest.fixture
def store(session: StreamingSql, tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "shop", synchronous="off")


def click(number: int) -> dict[str, Any]:
    return {"user": f"u{number % 3}", "page": {"url": f"/{number}", "tags": ["a"]}, "n": number}


def append(store: Store, first: int, count: int) -> None:
    """Append clicks to both partitions in turn."""
    for partition in (0, 1):
        store.queue("clicks").append(
            [click(n) for n in range(first, first + count) if n % 2 == partition], partition=partition
        )


def test_a_stream_from_queue_to_queue_advances_its_consumer(
    session: StreamingSql, store: Store, tmp_path: Path
) -> None:
    append(store, 0, 10)
    session.run(
        f"CREATE STREAM s OPTIONS (checkpointLocation='{tmp_path}/cp') INSERT INTO copy "
        "SELECT user, n FROM click_stream WHERE page.tags[0] = 'a'",
        available_now=True,
    )
    assert session.wait(120)
    assert store.consumer("//c").offsets("clicks") == {0: 5, 1: 5}
    append(store, 10, 4)
    (described,) = session.run("DESCRIBE CONSUMER '//c'")
    assert [row[:8] for row in described.rows] == [
        ("//c", "clicks", 0, 5, 0, 7, "pending_consumption", 2),
        ("//c", "clicks", 1, 5, 0, 7, "pending_consumption", 2),
    ]
    assert all(row[8] > 0 for row in described.rows)
    session.run("START STREAM s", available_now=True)
    assert session.wait(120)
    assert sorted(session.run("SELECT n FROM copy")[0].fetch()) == [(n,) for n in range(14)]
    assert session.run("DESCRIBE CONSUMER '//c' FOR QUEUE clicks")[0].rows[0][3:] == (7, 0, 7, "up_to_date", 0, 0.0)


def test_queues_are_read_and_written_in_batch_by_their_names(session: StreamingSql, store: Store) -> None:
    append(store, 0, 4)
    *_, selected = session.run(
        "INSERT INTO copy SELECT user, n FROM clicks WHERE n < 3; INSERT INTO copy (n, user) VALUES (9L, 'x');"
        "SELECT user, n FROM COPY ORDER BY n"
    )
    assert selected.fetch() == [("u0", 0), ("u1", 1), ("u2", 2), ("x", 9)]
    session.run("INSERT OVERWRITE copy SELECT user, n FROM clicks WHERE n = 3")
    assert session.run("SELECT user, n FROM copy")[0].fetch() == [("u0", 3)]
    assert store.queue("copy").bounds()[0].lower == 4


def test_queues_are_shown_described_and_dropped(session: StreamingSql, store: Store) -> None:
    append(store, 0, 4)
    store.queue("clicks").trim(0, 1)
    store.create_queue("other", {"a": "int"})
    columns = ("name", "queue", "partitions", "rows")
    assert [row[:4] for row in session.run("SHOW QUEUES")[0].rows] == [
        ("clicks", "clicks", 2, 3), ("copy", "copy", 1, 0), (None, "other", 1, 0),
    ]  # fmt: skip
    assert session.run("SHOW QUEUES")[0].columns[:4] == columns
    described = session.run("DESCRIBE QUEUE Clicks")[0].rows
    assert [row[:5] for row in described] == [("clicks", 0, 1, 2, 1), ("clicks", 1, 0, 2, 2)]
    assert session.run("DESCRIBE QUEUE other")[0].rows[0][:5] == ("other", 0, 0, 0, 0)
    with pytest.raises(InUseError, match="received: scan click_stream, consumer //c; add CASCADE to drop it anyway"):
        session.run("DROP QUEUE clicks")
    (dropped,) = session.run("DROP QUEUE clicks CASCADE")
    assert dropped.message == "queue clicks dropped with its rows; it is still needed by scan click_stream"
    assert store.queues() == ["copy", "other"]
    session.run("DROP QUEUE IF EXISTS clicks; DROP QUEUE other")
    with pytest.raises(NotFoundError, match="valid: copy"):
        session.run("DESCRIBE QUEUE clicks")


def test_consumers_are_registered_shown_and_dropped(session: StreamingSql, store: Store) -> None:
    append(store, 0, 4)
    session.run("CREATE CONSUMER IF NOT EXISTS '//c'; CREATE CONSUMER d; REGISTER CONSUMER d FOR QUEUE copy")
    assert session.run("SHOW CONSUMERS FOR QUEUE clicks")[0].rows[0][:4] == ("//c", "clicks", True, 4)
    session.run("REGISTER CONSUMER '//c' FOR QUEUE clicks")
    shown = session.run("UNREGISTER CONSUMER d FROM QUEUE copy; SHOW CONSUMERS")[1].rows
    assert [row[:4] for row in shown] == [("//c", "clicks", False, 4), ("d", None, None, None)]
    session.run("DROP CONSUMER d; DROP CONSUMER IF EXISTS d")
    assert store.consumers() == ["//c"]
    with pytest.raises(InUseError, match="consumer //c is in use; received: queue clicks; add CASCADE"):
        session.run("DROP CONSUMER '//c'")
    session.run("DROP CONSUMER '//c' CASCADE")
    assert store.consumers() == []


def test_producers_are_shown_with_their_sessions(session: StreamingSql, store: Store) -> None:
    producer = store.create_producer("p")
    assert session.run("SHOW PRODUCERS")[0].rows == (("p", None, None, None, None),)
    producer.push(producer.open_session("copy", "s"), [{"n": 1}], sequence_number=7)
    assert session.run("SHOW PRODUCERS")[0].rows == (("p", "copy", "s", 0, 7),)


def test_a_script_with_queues_can_be_run_again(session: StreamingSql, store: Store, tmp_path: Path) -> None:
    again = CREATE.format(store=tmp_path / "shop")
    append(store, 0, 4)
    with pytest.raises(AlreadyExistsError, match="CREATE QUEUE IF NOT EXISTS"):
        session.run(again)
    session.run(re.sub("CREATE (QUEUE|CONSUMER)", r"CREATE \1 IF NOT EXISTS", again))
    assert session.run("SELECT count(*) FROM clicks")[0].fetch() == [(4,)]


def test_a_queue_is_read_with_the_options_of_spyt(session: StreamingSql, store: Store, tmp_path: Path) -> None:
    session.run(
        f"CREATE QUEUE q (a INT) USING yt OPTIONS (proxy='{tmp_path}/shop', path='<append=%true>//tmp/q', "
        "autoTrim=true, retainedRows=5, retainedSeconds='1h');"
        "CREATE CONSUMER '//tmp/c'; REGISTER CONSUMER '//tmp/c' FOR QUEUE '//tmp/q';"
        "CREATE SCAN s ON q USING STREAM OPTIONS (consumer_path='//tmp/c', include_service_columns=true)"
    )
    options = store.queue("//tmp/q").describe().options
    assert (options.auto_trim, options.retained_rows, options.retained_seconds) == (True, 5, 3600.0)
    assert session.run("DESCRIBE s")[0].fetch()[0][0] == "__spyt_streaming_src_tablet_index"
    session.run("INSERT INTO q (a) VALUES (1)")
    session.run(
        f"CREATE QUEUE q2 (row BIGINT, a INT) USING yt OPTIONS (proxy='{tmp_path}/shop', path='//tmp/q2');"
        f"CREATE STREAM copied OPTIONS (checkpointLocation='{tmp_path}/cp') INSERT INTO q2 "
        "SELECT __spyt_streaming_src_row_index AS row, a FROM s",
        available_now=True,
    )
    assert session.wait(120)
    assert session.run("SELECT row, a FROM q2")[0].fetch() == [(0, 1)]


def test_explain_shows_when_the_consumer_advances(session: StreamingSql, store: Store, tmp_path: Path) -> None:
    explain = f"EXPLAIN CREATE STREAM s OPTIONS (checkpointLocation='{tmp_path}/cp') INSERT INTO "
    properties = dict(session.run(explain + "copy SELECT user, n FROM click_stream")[0].rows)
    assert properties["guarantee"] == (
        "exactly once; consumer //c advances in the same transaction as the rows are written"
    )
    session.run(f"CREATE QUEUE far (n BIGINT) OPTIONS (store = '{tmp_path}/elsewhere')")
    properties = dict(session.run(explain + "far SELECT n FROM click_stream", available_now=True)[0].rows)
    assert properties["trigger"] == "AvailableNow"
    assert properties["guarantee"] == "exactly once; consumer //c advances when Spark asks for the next batch"


WRONG = (
    ("CREATE QUEUE click_stream (a INT) OPTIONS (store='x')", HeadraceError, "name of a scan"),
    ("CREATE QUEUE q (a INT)", OptionError, "option store is missing"),
    ("CREATE QUEUE q (a INT) OPTIONS (store='x', retainedRows='many')", OptionError, "retainedRows"),
    ("CREATE QUEUE q (a INT) OPTIONS (store='x', trim=true)", OptionError, "autoTrim, retainedRows, retainedSeconds"),
    ("DESCRIBE QUEUE q", NotFoundError, "clicks, copy"),
    ("DESCRIBE QUEUE t", UnsupportedError, "t is a table, not a queue"),
    ("DROP QUEUE IF EXISTS t", UnsupportedError, "t is a table, not a queue"),
    ("CREATE TUNNEL x ON clicks", UnsupportedError, "queues have consumers"),
    ("CREATE CONSUMER '//c'", AlreadyExistsError, "IF NOT EXISTS"),
    ("CREATE CONSUMER d OPTIONS (start='x')", OptionError, "valid: store"),
    ("REGISTER CONSUMER nope FOR QUEUE clicks", NotFoundError, "//c"),
    ("DESCRIBE CONSUMER nope", NotFoundError, "//c"),
)


def test_invalid_statements_are_errors_and_change_nothing(session: StreamingSql, store: Store, tmp_path: Path) -> None:
    store.create_table("T", {"k": "string"}, "k")
    session.run(f"CREATE TABLE t USING headrace OPTIONS (store='{tmp_path}/shop', table='T')")
    for statement, error, says in WRONG:
        with pytest.raises(error, match=re.escape(says)):
            session.run(statement)
    assert (store.tables(), store.queues(), store.consumers()) == (["T"], ["clicks", "copy"], ["//c"])
    assert not Path("x").exists()


def test_ambiguous_names_in_several_stores_are_errors(session: StreamingSql, tmp_path: Path) -> None:
    session.run(f"CREATE QUEUE far (n BIGINT) OPTIONS (store = '{tmp_path}/elsewhere', queue = 'copy')")
    with pytest.raises(OptionError, match="in several stores"):
        session.run("CREATE CONSUMER d")
    session.run(f"CREATE CONSUMER '//c' OPTIONS (store = '{tmp_path}/elsewhere')")
    with pytest.raises(OptionError, match="several stores of this workspace have a consumer"):
        session.run("DROP CONSUMER '//c'")
    session.run("REGISTER CONSUMER '//c' FOR QUEUE far")
    assert session.run("DESCRIBE CONSUMER '//c' FOR QUEUE far")[0].rows[0][:4] == ("//c", "copy", 0, 0)


def test_the_store_of_the_environment_is_the_default(
    session: StreamingSql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_STORE", str(tmp_path / "default"))
    session.run("CREATE QUEUE q (a INT); INSERT INTO q (a) VALUES (1)")
    assert headrace.open(tmp_path / "default").queue("q").bounds()[0].rows == 1


def test_the_example_of_the_documentation_runs(spark: SparkSession, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "sql.md").read_text()
    script = page.split("## Queues: an example")[1].split("```sql\n")[1].split("```")[0]
    # Spark's processes resolve relative paths in the directory in which Spark was started.
    script = re.sub('"(shop|checkpoints)', rf'"{tmp_path}/\1', script)
    session = headrace.sql(spark, tmp_path)
    results = session.run(script, available_now=True)
    assert session.wait(120)
    assert "in the same transaction" in str([result.rows for result in results])
    totals = session.run("SELECT url, count(*) FROM page_views GROUP BY url ORDER BY url")[0].fetch()
    assert totals == [("/", 2), ("/help", 1)]
    described = session.run('DESCRIBE CONSUMER "//home/pages"')[0].rows
    assert [row[6] for row in described] == ["up_to_date", "up_to_date"]
    session.stop()
