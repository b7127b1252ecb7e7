"""A standalone cluster of Spark on the machines of a network: a master, workers, and drivers in client mode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pyspark

from tests.clusters.driver import MARK
from tests.clusters.network import Host

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
_SMALL = {"SPARK_DAEMON_MEMORY": "192m", "SPARK_NO_DAEMONIZE": "1"}


class Remote:
    """A driver on a machine, which runs code."""

    def __init__(self, host: Host, environment: Mapping[str, str]) -> None:
        self.host = host
        self._log = (host.directory / "driver.log").open("w")
        self._process = host.start(
            [sys.executable, "-m", "tests.clusters.driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**_environment(host), **environment},
        )

    def run(self, code: str) -> Any:
        """Return what code assigns to ``result``; raise `AssertionError` with its error."""
        answer = self._ask(code)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def error(self, code: str) -> str:
        """Return the error of code."""
        return str(self._ask(code)["error"])

    def _ask(self, code: str) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(dedent(code)) + "\n")
        stdin.flush()
        for line in stdout:
            if line.startswith(MARK):
                answer: dict[str, Any] = json.loads(line[len(MARK) :])
                return answer
        raise AssertionError(f"the driver has ended: {Path(self._log.name).read_text()[-3000:]}")

    def kill(self) -> None:
        self.host.kill()
        self._log.close()


class Cluster:
    """A master. Workers register there, each with one core."""

    def __init__(self, host: Host) -> None:
        self.master = f"spark://{host.address}:7077"
        self._log = host.directory / "master.log"
        _daemon(host, self._log, ["deploy.master.Master", "--host", host.address, "--port", "7077"])

    def add_worker(self, host: Host, disks: Mapping[Path, Path] | None = None) -> None:
        """Start a worker on a machine; ``disks`` as in `Host.start`."""
        words = ["deploy.worker.Worker", self.master, "--host", host.address, "--cores", "1", "--memory", "1g"]
        _daemon(host, host.directory / "worker.log", [*words, "--work-dir", str(host.directory / "work")], disks)

    def conf(self, driver: Host) -> dict[str, str]:
        """Return the settings of a driver on a machine.

        A lost machine is noticed within seconds. Slow tasks run twice, and executors come and go with the work.
        """
        return {
            "spark.master": self.master,
            "spark.driver.host": driver.address,
            "spark.driver.bindAddress": driver.address,
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
            "spark.executor.heartbeatInterval": "1s",
            "spark.network.timeout": "8s",
            "spark.network.timeoutInterval": "2s",
            "spark.sql.shuffle.partitions": "2",
            "spark.speculation": "true",
            "spark.speculation.interval": "50ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.4",
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.minExecutors": "2",
            "spark.decommission.enabled": "true",
        }


def _daemon(host: Host, log: Path, words: list[str], disks: Mapping[Path, Path] | None = None) -> None:
    with log.open("w") as output:
        host.start(
            [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.{words[0]}", *words[1:]],
            disks=disks,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**_environment(host), **_SMALL},
        )


def _environment(host: Host) -> dict[str, str]:
    """Return the environment of a process: no store and no secret of this process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "YT_", "SPARK_"))}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**kept, "PYTHONPATH": path, "SPARK_LOCAL_IP": host.address, "SPARK_HOME": str(SPARK)}
