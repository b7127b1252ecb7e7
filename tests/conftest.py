"""Fixtures that all tests share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What an example may take says nothing on a machine that is shared.
hypothesis.settings.register_profile("headrace", deadline=None)
hypothesis.settings.load_profile("headrace")
# A shell that runs the tests in the background has them ignore interrupts, and so all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Java processes come and go here, those of documents and examples too: a quick start is worth more than peak speed.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for the tests of a module."""
    import headrace

    warehouse = tmp_path_factory.mktemp("warehouse")
    session = headrace.session(
        "tests",
        master="local[2,4]",
        conf={
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.warehouse.dir": str(warehouse),
        },
    )
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A fresh checkpoint location."""
    return str(tmp_path / "checkpoint")
