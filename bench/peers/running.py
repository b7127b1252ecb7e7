"""Runs of a benchmark on the peers' release of Spark, in a process of its own, and the costs of alternating runs."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import psutil
from pyspark.sql import SparkSession

from bench.measure import Ratio, Result, rate, spark_session
from bench.peers.releases import SPARK, spark_home
from bench.postgres_server import cpu_seconds


class Cost(NamedTuple):
    """The time of a run by the clock, and the CPU time of all processes that it used, in seconds."""

    clock: float
    cpu: float

    def text(self, rows: int) -> str:
        """Return the rate, and the CPU time for a million rows."""
        return f"{rate(rows, self.clock)}, {self.cpu * 1e6 / rows:.2f} s of CPU for a million"


def alternately(repeats: int, runs: Mapping[str, Callable[[], float]]) -> dict[str, Cost]:
    """Run each once to warm up, then all alternately; return the medians of each.

    Args:
        runs: functions that return the seconds that count. The CPU time is that of this process and its descendants.
    """
    for run in runs.values():
        run()
    taken: dict[str, list[Cost]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            before = cpu_seconds(psutil.Process())
            clock = run()
            taken[name].append(Cost(clock, cpu_seconds(psutil.Process()) - before))
    return {
        name: Cost(statistics.median(each.clock for each in costs), statistics.median(each.cpu for each in costs))
        for name, costs in taken.items()
    }


def load() -> str:
    """Return the average load of the machine in the last minute and in the last quarter of an hour, as text."""
    last, _, long = os.getloadavg()
    return f"{last:.1f} (1 min), {long:.1f} (15 min) on {os.cpu_count()} cores"


def megabytes(directory: Path) -> float:
    """Return the size of all files in a directory in megabytes, as they lie on the disk."""
    return sum(file.stat().st_blocks for file in directory.rglob("*") if file.is_file()) * 512 / 1e6


def peers_session(
    packages: Sequence[Path], conf: Mapping[str, str] | None = None
) -> AbstractContextManager[SparkSession]:
    """Start a session of two cores and 2 GB with the jars of a peer."""
    settings = {
        "spark.jars": ",".join(map(str, packages)),
        "spark.driver.memory": "2g",
        # As docs/operations.md says for small rows.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    }
    return spark_session(settings | dict(conf or {}))


def on_peers_spark(name: str) -> Callable[[Path, float], Result]:
    """Return a benchmark of `bench.peers.__main__` that runs on the peers' release of Spark."""

    def run(directory: Path, scale: float) -> Result:
        paths = [str(spark_home()), str(Path(__file__).parents[2]), *sys.path]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYSPARK_PYTHON": sys.executable}
        environment.pop("SPARK_HOME", None)
        with tempfile.NamedTemporaryFile("r", suffix=".json") as output:
            command = [sys.executable, "-m", "bench.peers", name, str(directory), str(scale), output.name]
            subprocess.run(command, check=True, env=environment)
            found = json.load(output)
        ratios = [Ratio(**ratio) for ratio in found.pop("ratios")]
        return Result(**found, ratios=ratios)

    return run


def versions(**others: str) -> str:
    """Return the versions of all sides as text."""
    return ", ".join(f"{name} {version}" for name, version in ({"Spark": SPARK} | others).items())
