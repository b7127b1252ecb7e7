"""Long errors of batch functions: the query ends as it would with a short one, and the log has all of it."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import BatchFailedError, DataLossError
from headrace.spark.batch_errors import with_short_errors


def started(spark: SparkSession, directory: Path, write: Callable[[DataFrame, int], None]) -> Any:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    stream = rows.writeStream.foreachBatch(with_short_errors(write)).option("checkpointLocation", str(directory))
    return stream.start()


def test_a_query_that_is_stopped_in_a_job_with_a_long_plan_has_not_failed(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running, texts = threading.Event(), []

    def write(batch: DataFrame, number: int) -> None:
        try:
            running.set()
            batch.sparkSession.sparkContext._jvm.java.lang.Thread.sleep(600_000)  # type: ignore[union-attr]
        except Exception as error:
            raise RuntimeError("long plan " * 20_000) from error

    def recorded(batch: DataFrame, number: int) -> None:
        try:
            with_short_errors(write)(batch, number)
        except Exception:
            texts.append(traceback.format_exc())
            raise

    query = started(spark, tmp_path, recorded)
    assert running.wait(120)
    query.stop()
    assert query.exception() is None
    (text,) = texts
    assert len(text) < 8_000
    assert not [record for record in caplog.records if record.name == "headrace"]
    # Spark's own check, which overflows the stack for the whole text.
    java: Any = spark.sparkContext._jvm
    execution = java.org.apache.spark.sql.execution.streaming.runtime.StreamExecution
    scala = spark.sparkContext._jsc.sc()
    assert execution.isInterruptionException(java.py4j.Py4JException(text), scala)


def test_a_long_error_with_one_of_headrace_has_its_name_and_message() -> None:
    def write(batch: object, number: int) -> None:
        raise RuntimeError(f"{'long ' * 20_000}\nheadrace.errors.NumericOverflowError: 1 does not fit\nin a task")

    with pytest.raises(BatchFailedError, match="batch 7 failed: NumericOverflowError: 1 does not fit; the log"):
        with_short_errors(write)(None, 7)  # type: ignore[arg-type]


def test_a_long_error_is_logged_and_replaced_by_a_short_one(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def write(batch: DataFrame, number: int) -> None:
        raise RuntimeError(f"the plan is {'long ' * 20_000}and has an end")

    with caplog.at_level(logging.ERROR, "headrace"):
        query = started(spark, tmp_path, write)
        with pytest.raises(StreamingQueryException) as caught:
            query.processAllAvailable()
    shown = str(caught.value)
    assert "headrace.errors.BatchFailedError: batch 0 failed: RuntimeError: the plan is long" in shown
    assert "long and has an end" in shown
    assert len(str(caught.value)) < 20_000
    assert "and has an end" in caplog.text


def test_an_error_of_headrace_is_raised_without_its_long_cause(spark: SparkSession, tmp_path: Path) -> None:
    def write(batch: DataFrame, number: int) -> None:
        try:
            raise RuntimeError("x" * 100_000)
        except RuntimeError as error:
            raise DataLossError("rows are lost") from error

    query = started(spark, tmp_path, write)
    with pytest.raises(StreamingQueryException, match="DataLossError: rows are lost") as caught:
        query.processAllAvailable()
    assert "RuntimeError" not in str(caught.value)
