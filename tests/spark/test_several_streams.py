"""Several streams of one session: one that fails is named and leaves the others, and slow processes get another try."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.streaming_sql.running_streams import RunningStreams
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace
from tests.spark.sql_scripts import wait_for


@pytest.fixture
def registry(tmp_path: Path) -> StreamRegistry:
    return StreamRegistry(Workspace(tmp_path / "workspace"))


def starting(
    spark: SparkSession, registry: StreamRegistry, directory: Path, name: str, write: Callable[[DataFrame, int], None]
) -> Callable[[], StreamingQuery]:
    """Record a stream, and return the function that starts its query."""
    registry.record_start(name, script="", fingerprint="", target="t", checkpoint=str(directory / name))
    rows = spark.readStream.format("rate").load()
    return rows.writeStream.foreachBatch(write).option("checkpointLocation", str(directory / name)).start


def test_a_stream_that_fails_is_named_and_the_others_go_on(
    spark: SparkSession, registry: StreamRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written: list[int] = []

    def fail(batch: DataFrame, number: int) -> None:
        raise RuntimeError("no more space")

    streams = RunningStreams(registry)
    try:
        good = streams.start(
            "good", starting(spark, registry, tmp_path, "good", lambda _, number: written.append(number))
        )
        streams.start("bad", starting(spark, registry, tmp_path, "bad", fail))
        with caplog.at_level(logging.ERROR, "headrace"):
            wait_for(lambda: registry.get("bad").state == "failed")
        assert "stream bad failed: StreamingQueryException" in caplog.text
        assert not streams.wait(0.1)
        with pytest.raises(StreamingQueryException, match="no more space"):
            streams.wait(60, fail_fast=True)
        count = len(written)
        wait_for(lambda: len(written) > count)
        assert good.isActive
        streams.stop("good")
        with pytest.raises(StreamingQueryException) as caught:
            streams.wait(60)
        assert caught.value.__notes__ == ["the error is of stream bad"]
        assert registry.get("good").state == "stopped"
    finally:
        streams.stop_all()


def test_a_stream_whose_processes_were_slow_is_started_again(
    spark: SparkSession, registry: StreamRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    starts: list[str] = []

    def write(batch: DataFrame, number: int) -> None:
        if len(starts) < 2:
            raise RuntimeError("org.apache.spark.SparkException: Python worker failed to connect back.")

    begin = starting(spark, registry, tmp_path, "slow", write)

    def start() -> StreamingQuery:
        starts.append("start")
        return begin()

    streams = RunningStreams(registry)
    try:
        streams.start("slow", start)
        wait_for(lambda: registry.get("slow").batch is not None)
        assert len(starts) == 2
        assert "stream slow is started again" in caplog.text
        assert registry.get("slow").state == "running"
    finally:
        streams.stop_all()


def test_a_stream_starts_when_the_one_before_has_read_its_first_offsets(
    spark: SparkSession, registry: StreamRegistry, tmp_path: Path
) -> None:
    streams = RunningStreams(registry)
    try:
        first = streams.start("first", starting(spark, registry, tmp_path, "first", lambda *_: None))
        streams.start("second", starting(spark, registry, tmp_path, "second", lambda *_: None))
        assert first.lastProgress is not None or not first.status["message"].startswith(("Initializing", "Getting"))
    finally:
        streams.stop_all()
