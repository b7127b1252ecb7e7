"""Fixtures that all tests share, the stores of the conformance tests, and the order in which tests run."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from tests.conformance import serving
from tests.conformance.stores import STORES, fits
from tests.isolation import process_as_found
from tests.order import longest_first, record
from tests.startup import spark_archive

from headrace.testing import Place
from headrace.testing.effort import LEVEL
from headrace.testing.processes import CONTEXT, PRELOADED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTUP = Path(__file__).parent / "tests" / "startup"
# A package of its own, with tests of its own.
collect_ignore = ["tests/plugin_store"]
# Files of tests are in memory where there is room: a commit that waits for a disk takes milliseconds.
MEMORY, ROOM = Path("/dev/shm"), 6 << 30
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# Half of the time of the collection would be the search for garbage among three million objects, which has none.
gc.disable()
# The time that an example takes says nothing on a machine that is shared.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=20)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=100)
hypothesis.settings.load_profile(LEVEL)
CONTEXT.set_forkserver_preload([*PRELOADED, "forked_processes"])
# A shell that runs the tests in the background has them ignore interrupts, and so all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["SPARK_SUBMIT_OPTS"] = spark_archive.options()
# Processes that tests start load headrace from bytecode, and pyspark from its package: see tests/startup.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(STARTUP), os.environ.get("PYTHONPATH")]))
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", action="store_true", help="Write how long each test file took.")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("record_durations"):
        stats = terminalreporter.stats.values()
        record((each for found in stats for each in found if isinstance(each, pytest.TestReport)), config.rootpath)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that the stores can run. Run long files first; pytest-randomly has shuffled them before this."""
    items[:] = [item for item in items if fits(item)]
    longest_first(items)


def pytest_collection_finish() -> None:
    """From here on, search for garbage among the objects of the tests alone.

    Python searches after 700 new objects. A search among so few frees little, and all of them take a twentieth of the
    processor time of tests in one process.
    """
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


@pytest.fixture(autouse=True)
def _process_as_found() -> Iterator[None]:
    """Let a test fail that leaves its process changed: other tests share it."""
    with process_as_found():
        yield


@pytest.fixture(scope="session", autouse=True)
def _servers() -> Iterator[None]:
    """The servers that tests of one process share: they start when a test asks for them, and stop after Spark."""
    yield
    serving.stop()


@pytest.fixture(scope="session")
def _spark_of_process(_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of a test process: starting another one takes ten seconds of a core."""
    from tests.spark_session import start

    session = start(tmp_path_factory.mktemp("warehouse"), serving.python())
    yield session
    session.stop()


@pytest.fixture
def spark(_spark_of_process: SparkSession) -> Iterator[SparkSession]:
    """The session, with the settings and environment that it began with."""
    from tests.spark_session import lent

    with lent(_spark_of_process) as session:
        yield session


@pytest.fixture(scope="session")
def connect(_spark_of_process: SparkSession) -> str:
    """The address of a Spark Connect server, in the Java process of the session."""
    from tests.spark_session import start_connect

    return start_connect(_spark_of_process)


@pytest.fixture(params=sorted(STORES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The location of the store of a conformance test."""
    kind = STORES[request.param]
    return replace(kind.at(tmp_path), traits=kind.traits)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A fresh checkpoint location."""
    return str(tmp_path / "checkpoint")
