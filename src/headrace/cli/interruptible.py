"""Statements that Ctrl-C cancels, while the prompt and its streams continue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JOB_GROUP = "headrace-prompt"
_SECONDS_BETWEEN_CANCELS = 0.3


def run_interruptibly(spark: SparkSession, work: Callable[[], None]) -> bool:
    """Run Spark's jobs of ``work``; Ctrl-C cancels them. Return whether they ended without Ctrl-C.

    The work runs in a thread: an interrupted call of Spark's gateway would leave its answer for the next call. Streams
    that the work has started have job groups of their own, so they continue. A second Ctrl-C stops the wait for work
    that is no job of Spark.

    Raises:
        BaseException: the error of the work.
    """
    from pyspark.util import InheritableThread

    failures: list[BaseException] = []
    # An interrupted Thread.join of Python 3.11 and 3.12 takes a running thread for an ended one.
    ended = threading.Event()

    def target() -> None:
        try:
            _mark_jobs(spark)
            work()
        except BaseException as error:
            failures.append(error)
        finally:
            ended.set()

    InheritableThread(target=target, session=spark, daemon=True).start()
    try:
        # A wait without a limit would not let Python handle signals on every platform.
        while not ended.wait(0.5):
            pass
    except KeyboardInterrupt:
        try:
            while not ended.is_set():
                # The work can start another job after one was cancelled.
                _cancel_jobs(spark)
                ended.wait(_SECONDS_BETWEEN_CANCELS)
        except KeyboardInterrupt:
            pass
        return False
    if failures:
        raise failures[0]
    return True


def _mark_jobs(spark: SparkSession) -> None:
    from headrace.spark.connect import is_connect

    if is_connect(spark):
        spark.addTag(_JOB_GROUP)
    else:
        spark.sparkContext.setJobGroup(_JOB_GROUP, "statement at the prompt")


def _cancel_jobs(spark: SparkSession) -> None:
    from headrace.spark.connect import is_connect

    if is_connect(spark):
        spark.interruptTag(_JOB_GROUP)
    else:
        spark.sparkContext.cancelJobGroup(_JOB_GROUP)
