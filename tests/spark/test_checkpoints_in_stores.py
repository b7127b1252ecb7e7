"""Checkpoints in a store: queries continue from them, in this process, in another one, on another machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace.checkpoint_server import server
from headrace.checkpoint_server.operations import Operations
from headrace.checkpoint_server.protocol import Request, Response
from headrace.errors import AlreadyExistsError, OptionError
from headrace.ports import Files, FileStatus, Store
from headrace.spark import bare_locations, checkpoint_location
from tests.spark import checkpoint_jobs as jobs
from tests.spark_session import FILE_MANAGER, processes_with

ROOT = Path(__file__).parents[2]
NOW = {"availableNow": True}


@pytest.fixture(autouse=True)
def _file_manager_of_users(spark: SparkSession) -> None:
    """Write checkpoints as Spark does by default, because these tests are about its requests."""
    spark.conf.unset(FILE_MANAGER)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with jobs.create(tmp_path / "store") as created:
        yield created


def below(files: Files, path: str) -> list[FileStatus]:
    """Return all files below a directory."""
    found: list[FileStatus] = []
    for status in files.list(path):
        found += below(files, status.path) if status.directory else [status]
    return found


def in_queue(store: Store, name: str) -> list[int]:
    queue = store.queue(name)
    return [
        row["key"] for n, rows in queue.bounds().items() for row in queue.read(n, rows.lower, 10_000).rows.to_pylist()
    ]


def counts(store: Store, table: str) -> dict[int, int]:
    return {row["key"]: row["count"] for row in store.table(table).scan().read_all().to_pylist()}


def clicks(spark: SparkSession, store: Store, job: str = "copied") -> Any:
    return spark.readStream.format("headrace").options(store=store.url, consumer=jobs.consumer(job)).load("clicks")


def end(query: StreamingQuery) -> StreamingQuery:
    query.awaitTermination()
    return query


def run_elsewhere(directory: Path, place: Path) -> None:
    """Run the jobs in another process, with another working directory and another port."""
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.spark.checkpoint_jobs", str(directory)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_queries_continue_from_a_checkpoint_on_another_machine(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    first, second = [n % 7 for n in range(90)], [n % 11 for n in range(60)]
    jobs.append(store, first)
    run_elsewhere(tmp_path / "store", tmp_path / "elsewhere")
    store.close()
    shutil.copytree(tmp_path / "store", tmp_path / "moved")
    shutil.rmtree(tmp_path / "store")
    with headrace.open(tmp_path / "moved") as moved:
        jobs.append(moved, second)
        for job in jobs.JOBS:
            jobs.run(spark, moved, job, len(second))
        assert in_queue(moved, "copied") == first + second
        expected = Counter(first + second)
        for job in jobs.JOBS:
            files = below(moved.files(), f"/checkpoints/{job}")
            names = [status.path.removeprefix(f"/checkpoints/{job}/") for status in files]
            commits = [name for name in names if name.startswith("commits/")]
            # The first batch of a queue is empty and fixes the starting position.
            assert len(commits) == 2 * jobs.BATCHES + 1, (job, names)
            # No file of the checkpoint contains the address of the server.
            assert not [status.path for status in files if b"localhost" in (moved.files().read(status.path) or b"")]
            if job != "copied":
                assert counts(moved, job) == expected, job
            assert moved.consumer(jobs.consumer(job)).offsets("clicks") == {0: 150}
        kinds = {
            job: {Path(s.path).suffix for s in below(moved.files(), f"/checkpoints/{job}/state")}
            for job in jobs.JOBS
            if job != "copied"
        }
        assert ".delta" in kinds["hdfs"]
        assert ".zip" in kinds["snapshots"]
        assert {".changelog", ".crc"} <= kinds["second_format"]

        recorded = [moved.files().read(s.path) or b"" for s in below(moved.files(), "/checkpoints/own_state/state")]
        assert any(b"webhdfs://headrace/" in content for content in recorded)


def test_a_native_sink_finds_the_checkpoint_in_its_store(spark: SparkSession, store: Store) -> None:
    def run() -> None:
        location = headrace.checkpoint("headrace:///native", store=store, spark=spark)
        writer = clicks(spark, store).writeStream.format("headrace").options(store=store.url, queue="copied")
        end(writer.option("checkpointLocation", location).trigger(**NOW).start())

    jobs.append(store, [1, 2, 3])
    run()

    assert store.consumer(jobs.consumer("copied")).offsets("clicks") == {0: 3}
    jobs.append(store, [4])
    run()
    assert in_queue(store, "copied") == [1, 2, 3, 4]
    assert store.files().status("/native/commits/1") is not None


def test_a_repeated_batch_replaces_its_state_atomically(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    files = store.files()
    answer = Operations.respond

    def watched(operations: Operations, request: Request) -> Response:
        result = answer(operations, request)
        if request.operation == "DELETE DELETE" and "/state/" in request.path:
            path = "/" + request.path.split("/", 2)[2]
            removed.append(path)
            assert request.flag("recursive") or files.status(path) is not None
        return result

    monkeypatch.setattr(Operations, "respond", watched)
    jobs.append(store, [1, 1, 2])
    jobs.run(spark, store, "hdfs", 3)
    last = max(int(status.name) for status in files.list("/checkpoints/hdfs/commits"))
    before = {status.path: status.modified for status in below(files, "/checkpoints/hdfs/state/0/0")}
    files.remove(f"/checkpoints/hdfs/commits/{last}")
    jobs.append(store, [3])
    jobs.run(spark, store, "hdfs", 1)
    assert [path for path in removed if path.endswith(f"/{last + 1}.delta")]
    after = {status.path: status.modified for status in below(files, "/checkpoints/hdfs/state/0/0")}
    assert any(after[path] != modified for path, modified in before.items() if path.endswith(f"/{last + 1}.delta"))
    assert counts(store, "hdfs") == {1: 2, 2: 1, 3: 1}


def test_streaming_sql_keeps_a_checkpoint_in_the_store(
    spark: SparkSession, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_STORE", store.url)
    monkeypatch.delenv("YT_PROXY", raising=False)
    jobs.append(store, [1, 2, 2])
    sql = headrace.sql(spark, tmp_path)
    sql.run(f"""
        CREATE TABLE clicks USING headrace OPTIONS (store = '{store.url}', queue = 'clicks');
        CREATE TABLE hdfs USING headrace OPTIONS (store = '{store.url}', table = 'hdfs');
        CREATE SCAN some ON clicks USING STREAM OPTIONS (consumer = '//consumers/copied');
        CREATE SCAN others ON clicks USING STREAM OPTIONS (consumer = '//consumers/hdfs');
        CREATE STREAM counted OPTIONS (
            checkpointLocation = 'yt:///home/counted', outputMode = 'update', triggerType = 'AvailableNow'
        ) INSERT INTO hdfs SELECT key, count(*) AS count FROM some GROUP BY key;
        CREATE TABLE files USING parquet OPTIONS (path = '{tmp_path / "parquet"}');
        CREATE STREAM written OPTIONS (
            checkpointLocation = 'headrace:///written', triggerType = 'AvailableNow'
        ) INSERT INTO files SELECT key FROM others;
    """)
    assert sql.wait(120)
    described = str(sql.run("DESCRIBE STREAM counted"))
    sql.stop()
    assert "yt:///home/counted" in described
    assert counts(store, "hdfs") == {1: 1, 2: 2}
    assert spark.read.parquet(str(tmp_path / "parquet")).count() == 3
    for path in ("/home/counted/commits/1", "/written/commits/1"):
        assert store.files().status(path) is not None


def test_spark_itself_opens_a_bare_location(
    spark: SparkSession, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("YT_PROXY", raising=False)
    with processes_with(spark, HEADRACE_STORE=store.url):
        monkeypatch.setenv("HEADRACE_STORE", store.url)
        bare_locations.register_bare_locations(spark)
        jobs.append(store, [1, 2, 3])
        for number in (3, 4):
            writer = clicks(spark, store).writeStream.format("headrace").options(store=store.url, queue="copied")
            end(writer.option("checkpointLocation", "yt:///home/native").trigger(**NOW).start())
            # The consumer advances in the transaction of the batch, as with other checkpoints in a store.
            assert store.consumer(jobs.consumer("copied")).offsets("clicks") == {0: number}
            jobs.append(store, [number + 1])
            store.back_up(tmp_path / f"backup of {number}")
        assert in_queue(store, "copied") == [1, 2, 3, 4]
        counted = clicks(spark, store, "hdfs").groupBy("key").count().writeStream.format("noop").outputMode("update")
        end(counted.option("checkpointLocation", "headrace:///home/state").trigger(**NOW).start())
        state = spark.read.format("statestore").load("headrace:///home/state").selectExpr("key.key", "value.count")
        assert {row.key: row["count"] for row in state.collect()} == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
    assert store.files().status("/home/native/commits/1") is not None
    # The job continues in the state of a backup: the queue has a row that it has not read there.
    headrace.restore(tmp_path / "backup of 3", tmp_path / "restored")
    with headrace.open(tmp_path / "restored") as restored:
        stream = headrace.write_stream(
            clicks(spark, restored), store=restored.url, queue="copied", checkpoint="headrace:///home/native"
        )
        assert in_queue(restored, "copied") == [1, 2, 3]
        end(stream.trigger(**NOW).start())
        assert in_queue(restored, "copied") == [1, 2, 3, 4]
    with headrace.open(tmp_path / "other", create=True) as other:
        monkeypatch.setenv("HEADRACE_STORE", other.url)
        with pytest.MonkeyPatch.context() as logged:
            warnings: list[str] = []
            logged.setattr(bare_locations._log, "warning", lambda text, *_: warnings.append(text))
            bare_locations.register_bare_locations(spark)
        assert "stay in the store" in warnings[0]


def test_a_stream_without_a_checkpoint_location_keeps_it_under_its_name(spark: SparkSession, store: Store) -> None:
    def run(name: str, table: str = "hdfs") -> None:
        counted = clicks(spark, store, "hdfs").groupBy("key").count()
        stream = headrace.write_stream(counted, store=store.url, table=table, name=name, mode="update")
        end(stream.trigger(**NOW).start())

    jobs.append(store, [1, 1, 2])
    run("counted")
    jobs.append(store, [2])
    run("Counted")
    assert counts(store, "hdfs") == {1: 2, 2: 2}
    assert store.files().status("/streams/counted/commits/2") is not None
    with pytest.raises(AlreadyExistsError, match="the checkpoint of another stream counted: it writes hdfs"):
        run("counted", "own_state")


def test_a_stream_in_sql_may_leave_out_its_checkpoint_location(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    jobs.append(store, [1, 2, 2])
    sql = headrace.sql(spark, tmp_path)
    stream = (
        "OPTIONS (outputMode = 'update', triggerType = 'AvailableNow') INSERT INTO hdfs SELECT key, count(*) AS count"
    )
    sql.run(f"""
        CREATE TABLE clicks USING headrace OPTIONS (store = '{store.url}', queue = 'clicks');
        CREATE TABLE hdfs USING headrace OPTIONS (store = '{store.url}', table = 'hdfs');
        CREATE TABLE files USING parquet OPTIONS (path = '{tmp_path / "parquet"}');
        CREATE SCAN some ON clicks USING STREAM OPTIONS (consumer = '//consumers/hdfs');
        CREATE STREAM Counted {stream} FROM some GROUP BY key;
    """)
    assert sql.wait(120)
    assert "headrace:///streams/counted" in str(sql.run("DESCRIBE STREAM counted"))
    assert counts(store, "hdfs") == {1: 1, 2: 2}
    with pytest.raises(OptionError, match="stream written needs option checkpointLocation"):
        sql.run("CREATE STREAM written INSERT INTO files SELECT key FROM some")
    sql.run("DROP STREAM counted")
    jobs.append(store, [2])
    sql.run(f"CREATE STREAM counted {stream} FROM some GROUP BY key")
    assert sql.wait(120)
    assert counts(store, "hdfs") == {1: 1, 2: 3}
    sql.run("DROP STREAM counted")
    with pytest.raises(AlreadyExistsError, match="its query differs"):
        sql.run(f"CREATE STREAM counted {stream} FROM some WHERE key > 1 GROUP BY key")
    sql.stop()


def test_spark_reads_a_checkpoint_in_a_store(spark: SparkSession, store: Store) -> None:
    jobs.append(store, [5, 5, 6])
    jobs.run(spark, store, "hdfs", 3)
    location = headrace.checkpoint("headrace:///checkpoints/hdfs", store=store.url, spark=spark)
    state = spark.read.format("statestore").load(location).selectExpr("key.key", "value.count")
    assert {row.key: row["count"] for row in state.collect()} == {5: 2, 6: 1}


def test_plans_shown_settings_and_queries_do_not_contain_the_secret(spark: SparkSession, store: Store) -> None:
    location = headrace.checkpoint("headrace:///copied", store=store, spark=spark)
    secret = next(iter(server._servers.values())).access.refresh_token
    assert secret == spark.conf.get("dfs.webhdfs.oauth2.refresh.token")
    jobs.append(store, [1])
    stream = headrace.write_stream(clicks(spark, store), store=store.url, queue="copied", checkpoint=location)
    query = end(stream.trigger(**NOW).start())
    shown = [repr(stream), str(query.recentProgress), str(spark.sql("SET").collect()), location]
    shown.append(str(query._jsq.toString()))
    shown.append(spark.sql("EXPLAIN EXTENDED SELECT 1").collect()[0][0])
    assert secret not in "".join(shown)


def test_a_request_of_spark_without_the_secret_is_refused(spark: SparkSession, store: Store) -> None:
    location = headrace.checkpoint("headrace:///copied", store=store, spark=spark)
    stranger = spark.newSession()
    for name in (
        "dfs.nameservices",
        "dfs.ha.namenodes.headrace",
        "dfs.namenode.http-address.headrace.driver",
        "dfs.client.failover.proxy.provider.headrace",
    ):
        stranger.conf.set(name, str(spark.conf.get(name)))
    stranger.conf.set("fs.webhdfs.impl.disable.cache", "true")
    with pytest.raises(Exception, match=r"(?i)driver and the executors|unauthorized|AccessControl"):
        stranger.read.text(f"{location}/metadata").collect()


def test_the_host_is_loopback_unless_spark_runs_on_other_machines(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Conf:
        def __init__(self, **values: str) -> None:
            self.values = {f"spark.{name}": value for name, value in values.items()}

        def get(self, name: str, default: str | None = None) -> str | None:
            return self.values.get(name, default)

    class Session:
        def __init__(self, **values: str) -> None:
            self.conf = Conf(**values)

    def host(**values: str) -> str:
        return checkpoint_location.server_host(Session(**values))  # type: ignore[arg-type]

    monkeypatch.delenv("HEADRACE_CHECKPOINT_HOST", raising=False)
    assert checkpoint_location.server_host(spark) == "localhost"
    assert host(master="local[2,4]") == "localhost"
    assert host(**{"master": "spark://a:7077", "driver.host": "driver.example"}) == "driver.example"
    assert host(**{"master": "local-cluster[2,1,1024]", "driver.host": "localhost"}) == "localhost"
    with pytest.raises(OptionError, match="HEADRACE_CHECKPOINT_HOST"):
        host(master="spark://a:7077")
    monkeypatch.setenv("HEADRACE_CHECKPOINT_HOST", "10.0.0.7")
    assert host(master="spark://a:7077") == "10.0.0.7"
