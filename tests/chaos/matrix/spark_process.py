"""A process with a Spark session that runs the queries of storms, one after the other, until it is killed."""

from __future__ import annotations

import contextlib
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace.testing.processes import CONTEXT
from tests.chaos.matrix.places import ENVIRONMENT, Place, write_output_to
from tests.spark_session import FAST_FILE_MANAGER

_START_SECONDS, _ANSWER_SECONDS = 180, 150
# A storm kills workers faster than Spark's default of four attempts of a task permits.
_MASTER = "local[2,64]"


class SparkProcess:
    """A driver: a Python process and its Java process. It starts in the background."""

    def __init__(self, log: Path, launcher: Path) -> None:
        self.log = log
        self._connection, other = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_run, args=(other, str(launcher), str(log)))
        self.process.start()
        other.close()
        self._ready = False

    def wait(self) -> None:
        """Wait until the session has started."""
        if not self._ready:
            assert self._connection.poll(_START_SECONDS), f"Spark does not start: {self.log}"
            assert self._connection.recv() == "ready", self.log
            self._ready = True

    def start(self, place: Place) -> str:
        """Start the query of a storm; return the error, if there is one."""
        self.wait()
        return self._ask("start", place)[0]

    def finish(self) -> tuple[str, int]:
        """Stop the query when it has read all rows; return the error, if there is one, and the repeated tasks."""
        return self._ask("finish", None)

    def failed(self) -> bool:
        """Return whether the query has ended by itself."""
        return self._ask("state", None)[0] != ""

    def _ask(self, command: str, place: Place | None) -> tuple[str, int]:
        try:
            self._connection.send((command, place and place.text()))
            if not self._connection.poll(_ANSWER_SECONDS):
                return f"no answer to {command}", 0
            answer: tuple[str, int] = self._connection.recv()
        except (EOFError, OSError):
            return "the driver is dead", 0
        return answer

    def java(self) -> list[psutil.Process]:
        """Return the Java process."""
        return [each for each in psutil.Process(self.process.pid).children(recursive=True) if each.name() == "java"]

    def kill_java(self) -> None:
        """Kill the Java process; the driver then ends, as it does not have a session any more."""
        for each in self.java():
            each.kill()
        self.kill()

    def kill(self) -> None:
        """Kill the driver with its Java process."""
        assert self.process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        self._connection.close()


def _run(connection: Connection, launcher: str, log: str) -> None:
    os.setsid()
    write_output_to(log)
    os.environ.update(ENVIRONMENT)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = launcher
    spark = headrace.session(
        "storms",
        master=_MASTER,
        conf={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 2, **FAST_FILE_MANAGER},
    )
    spark.sparkContext.setLogLevel("ERROR")
    connection.send("ready")
    query: StreamingQuery | None = None
    while True:
        try:
            command, text = connection.recv()
        except EOFError:
            break
        error, tasks = "", 0
        try:
            if command == "start":
                from tests.chaos.matrix.queries import QUERIES

                place = Place.of(text)
                query = QUERIES[place.query].start(spark, place)
            elif command == "state":
                error = "" if query is not None and query.isActive else "ended"
            elif query is not None:
                query.processAllAvailable()
                tasks = _failed_tasks(spark, query)
                query.stop()
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
            print(error, flush=True)  # noqa: T201
        connection.send((error, tasks))
    os.killpg(os.getpid(), signal.SIGKILL)


def _failed_tasks(spark: SparkSession, query: StreamingQuery) -> int:
    """Return the number of tasks of a query that failed, and so were repeated."""
    tracker, failed = spark.sparkContext.statusTracker(), 0
    for job in tracker.getJobIdsForGroup(query.runId):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            found = tracker.getStageInfo(stage)
            failed += found.numFailedTasks if found else 0
    return failed
