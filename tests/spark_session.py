"""The Spark session that the tests of one process share.

Tests that start Spark in a process of their own, because a shared session cannot show what they are about:

- ``spark/test_connect.py``: Spark Connect; classic Spark and Connect cannot be in one process.
- ``spark/test_demo.py``: the demo kills its driver and starts another one; then ``headrace run`` and ``headrace sql``.
- ``spark/test_checkpoints_in_stores.py``: a query goes on in another process, from another directory.
- ``spark/test_streaming_sql.py``: a stream of another process is stopped from here.
- ``chaos``: drivers are killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.spark.session import carry_environment

# A test names stores by variables that begin so. Spark's processes keep the environment of their start.
_VARIABLES = ("HEADRACE_", "YT_")


def start(warehouse: Path) -> SparkSession:
    """Start Spark with an environment that names no store."""
    with pytest.MonkeyPatch.context() as environment:
        for name in [name for name in os.environ if name.startswith(_VARIABLES)]:
            environment.delenv(name)
        return headrace.session(
            "tests",
            master="local[2,4]",
            conf={
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": 2,
                "spark.sql.warehouse.dir": str(warehouse),
            },
        )


@contextmanager
def lent(session: SparkSession) -> Iterator[SparkSession]:
    """Lend the session to a test: undo its settings, its environment and its views, and stop its queries."""
    settings, environment = session.conf.getAll, dict(session.sparkContext.environment)
    carry_environment(session)
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
        for view in session.catalog.listTables():
            if view.isTemporary:
                session.catalog.dropTempView(view.name)
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
        for source in (headrace.HeadraceDataSource, headrace.TablestoreDataSource, headrace.YtDataSource):
            session.dataSource.register(source)
