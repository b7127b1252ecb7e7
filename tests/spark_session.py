"""The Spark session that the tests of one process share.

These save more than half of its work, and nothing that the tests are about depends on them:

- ``startup/python_server.py`` forks its Python processes, which otherwise load pyspark and headrace one by one.
- ``FileSystemBasedCheckpointFileManager`` writes its checkpoints. Spark's default for files uses another class of
  Hadoop, which runs ``chmod`` in a process for each file. ``spark/test_checkpoints_in_stores.py`` has the default.
- pyspark finds a class of Java once. It otherwise asks for the class at each use, and for each package of its name, and
  Java looks into 280 jars: a tenth of the Java process's work.
- Spark does not write the messages that pyspark does not show.
- ``startup/spark_archive.py`` has the options of Java.

The tests below start Spark as users do, with Spark's own Python processes and file manager.

Tests that start Spark in a process of their own, because a shared session cannot show what they are about:

- ``spark/test_docs.py`` (1): the stream of the README as a user runs it, with relative paths.
- ``spark/test_demo.py`` (6): the demo kills its driver and starts another; ``headrace run`` and ``headrace sql``.
- ``spark/test_prompt.py`` (1): the prompt in a terminal.
- ``spark/test_checkpoints_in_stores.py`` (1): a query goes on in another process, from another directory.
- ``spark/test_sql_streams.py`` (1): a session stops a stream of another process.
- ``spark/test_failpoints.py`` (1): kills the driver with its Java process.
- ``chaos``: drivers are killed; ``make test`` has one such storm.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from py4j import java_gateway  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

import headrace
from headrace.spark import bare_locations
from headrace.spark.session import carry_environment
from headrace.spark.versions import INSTALLED, register
from headrace.streaming_sql import definition_checks, running_streams

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_PACKAGE = "org.apache.spark.sql.execution.streaming" + (".checkpointing" if INSTALLED >= (4, 1) else "")
_SECOND_FILE_MANAGER = f"{_PACKAGE}.FileSystemBasedCheckpointFileManager"
FAST_FILE_MANAGER = {FILE_MANAGER: _SECOND_FILE_MANAGER}
# A test names stores by variables that begin so. Spark's processes keep the environment of their start.
_VARIABLES = ("HEADRACE_", "YT_")


def start(warehouse: Path, python: Path) -> SparkSession:
    """Start Spark with an environment that names no store, and with a program for its Python processes."""
    # Sessions of streaming SQL look for the ends of streams. By default, they wait half a second between two looks.
    running_streams._POLL_SECONDS = 0.1
    # A machine under load needs more than the 2 seconds that a person waits for a note about a definition.
    definition_checks._SECONDS_TO_ANSWER = 60.0
    for names in (java_gateway.JVMView, java_gateway.JavaPackage):
        names.__getattr__ = _kept(names.__getattr__)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", str(python))
        environment.setenv("PYSPARK_DRIVER_PYTHON", str(python))
        for name in [name for name in os.environ if name.startswith(_VARIABLES)]:
            environment.delenv(name)
        return headrace.session(
            "tests",
            master="local[2,4]",
            conf={
                "spark.ui.enabled": "false",
                # pyspark shows no others, either, but drops them when they are written.
                "spark.log.level": "WARN",
                "spark.sql.shuffle.partitions": 2,
                "spark.sql.warehouse.dir": str(warehouse),
                "spark.connect.grpc.binding.address": "127.0.0.1",
                "spark.connect.grpc.binding.port": "0",
                **FAST_FILE_MANAGER,
            },
        )


def _kept(find: Callable[[Any, str], object]) -> Callable[[Any, str], object]:
    """Return an ``__getattr__`` that keeps what it finds, so that it is not asked again."""

    def find_once(names: Any, name: str) -> object:
        found = vars(names)[name] = find(names, name)
        return found

    return find_once


def start_connect(session: SparkSession) -> str:
    """Start a Spark Connect server in the session's Java process, and return its address.

    Its clients are other processes, because Spark Connect and classic Spark cannot be in one. Their sessions are their
    own; tables are those of the session.
    """
    context: Any = session.sparkContext
    java = psutil.Process(context._gateway.proc.pid)
    before = _listening(java)
    context._jvm.org.apache.spark.sql.connect.service.SparkConnectService.start(context._jsc.sc())
    (port,) = _listening(java) - before
    return f"sc://127.0.0.1:{port}"


def _listening(process: psutil.Process) -> set[int]:
    return {each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN}


@contextmanager
def lent(session: SparkSession) -> Iterator[SparkSession]:
    """Lend the session to a test: undo its settings and environment, drop its tables, stop its queries."""
    settings, environment = session.conf.getAll, dict(session.sparkContext.environment)
    carry_environment(session)
    # Each test may have a store of its own for bare checkpoint locations: no query of an earlier test runs.
    bare_locations._used = None
    try:
        yield session
    finally:
        for query in session.streams.active:
            query.stop()
        now = session.conf.getAll
        for name in now.keys() - settings.keys():
            session.conf.unset(name)
        for name, value in settings.items():
            if now.get(name) != value:
                session.conf.set(name, value)
        # Spark's own list of tables is a query, which takes a tenth of a second; most tests leave no table.
        catalog: Any = session._jsparkSession.sessionState().catalog()
        if not catalog.listTables("default").isEmpty():
            for table in session.catalog.listTables():
                session.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} IF EXISTS `{table.name}`")
        _set_environment(session, environment)


@contextmanager
def processes_with(session: SparkSession, **variables: str) -> Iterator[None]:
    """Give the Python processes that Spark starts more variables, which begin with HEADRACE_."""
    before = dict(session.sparkContext.environment)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in variables.items():
            environment.setenv(name, value)
        carry_environment(session)
    try:
        yield
    finally:
        _set_environment(session, before)


def _set_environment(session: SparkSession, environment: dict[str, str]) -> None:
    known = session.sparkContext.environment
    if known != environment:
        known.clear()
        known.update(environment)
        # A registered format keeps the environment of its registration.
        register(session, (headrace.HeadraceDataSource, headrace.TablestoreDataSource, headrace.YtDataSource), ())
