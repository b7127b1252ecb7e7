"""A standalone cluster of stock pyspark: a master, two workers, a server of tables, and a host for drivers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.clusters.environments import create, interpreter
from tests.clusters.hosts import Host, Network, wait_until
from tests.startup import spark_archive

MASTER_PORT, PAGE_PORT, STORE_PORT = 7077, 8080, 8585
TOKEN = "token-of-the-cluster"
WORKERS = ("worker-1", "worker-2")
_JOBS = Path(__file__).with_name("jobs")
_JAVA = f"{spark_archive.options()} -XX:-UsePerfData"
# Lost hosts are noticed in seconds instead of minutes.
SETTINGS = {
    "spark.executor.cores": 1,
    "spark.executor.memory": "600m",
    "spark.driver.memory": "700m",
    "spark.executor.extraJavaOptions": _JAVA,
    "spark.sql.shuffle.partitions": 2,
    "spark.network.timeout": "15s",
    "spark.network.timeoutInterval": "3s",
    "spark.executor.heartbeatInterval": "2s",
    "spark.shuffle.io.maxRetries": 1,
    "spark.shuffle.io.retryWait": "1s",
    "spark.shuffle.io.connectionTimeout": "10s",
    "spark.task.maxFailures": 8,
}


class Cluster:
    """The hosts and daemons of a cluster.

    Args:
        directory: the directory of the hosts' files.
    """

    def __init__(self, directory: Path) -> None:
        self.network = Network(directory)
        try:
            self._start()
        except BaseException:
            self.network.close()
            raise

    def _start(self) -> None:
        for name in ("store", "master", "driver", *WORKERS):
            self.add(name)
        serve = ["serve", "--ytsaurus", STORE_PORT, "--root", self.network.home / "cluster"]
        self.store.start(
            [self.python, "-m", "headrace.cli.main", *serve, "--host", self.store.address],
            {"HEADRACE_YT_TOKEN": TOKEN},
        )
        self.master.start(
            self._daemon("master.Master", "--host", "master", "--port", str(MASTER_PORT)),
            self._spark({"SPARK_MASTER_OPTS": "-Dspark.worker.timeout=10"}),
        )
        wait_until(lambda: self.master.listens(MASTER_PORT), "the master listens")
        for name in WORKERS:
            self.start_worker(name)
        wait_until(lambda: self.store.listens(STORE_PORT), "the store listens")
        wait_until(lambda: self.workers() == len(WORKERS), "the workers are registered")

    def add(self, name: str) -> Host:
        """Add a host with an environment."""
        host = self.network.add(name)
        create(host.own / "venv")
        return host

    def start_worker(self, name: str) -> None:
        """Start the daemon of a worker on its host."""
        host = self.network.hosts[name]
        command = self._daemon("worker.Worker", "--cores", "1", "--memory", "900m", "--host", name, self.master_url)
        host.start(command, self._spark({"SPARK_WORKER_OPTS": "-Dspark.decommission.enabled=true"}))

    @property
    def store(self) -> Host:
        return self.network.hosts["store"]

    @property
    def master(self) -> Host:
        return self.network.hosts["master"]

    @property
    def driver(self) -> Host:
        return self.network.hosts["driver"]

    @property
    def python(self) -> Path:
        """The interpreter of each host, at the same path."""
        return interpreter(self.network.home)

    @property
    def master_url(self) -> str:
        return f"spark://master:{MASTER_PORT}"

    @property
    def store_url(self) -> str:
        """The URL of the store, for every host."""
        return f"yt+http://store:{STORE_PORT}"

    def workers(self) -> int:
        """Return the number of workers that the master knows as alive."""
        return sum(each["state"] == "ALIVE" for each in self.state()["workers"])

    def state(self) -> dict[str, Any]:
        """Return what the page of the master shows, as JSON."""
        page = f"http://master:{PAGE_PORT}/json/"
        script = f"import urllib.request as r; print(r.urlopen({page!r}, timeout=10).read().decode())"
        done = self.master.run([self.python, "-I", "-c", script], check=False)
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"workers": [], "activeapps": []}
        return found

    def start_job(
        self,
        job: str,
        arguments: Mapping[str, Any],
        *,
        conf: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
        host: Host | None = None,
        log: str = "driver-log",
    ) -> subprocess.Popen[bytes]:
        """Start the driver of a job: a program in the folder ``jobs``, which gets its arguments as JSON."""
        host = self.driver if host is None else host
        return host.start(self._job(job, arguments, conf), self._variables(variables), log)

    def talk_to_job(
        self,
        job: str,
        arguments: Mapping[str, Any],
        *,
        conf: Mapping[str, Any] | None = None,
        host: Host | None = None,
    ) -> subprocess.Popen[str]:
        """Start a job with pipes for its input and output."""
        host = self.driver if host is None else host
        return host.talk(self._job(job, arguments, conf), self._variables(None), "driver-log")

    def run_job(
        self,
        job: str,
        arguments: Mapping[str, Any],
        *,
        conf: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
        host: Host | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run the driver of a job to its end."""
        host = self.driver if host is None else host
        return host.run(self._job(job, arguments, conf), self._variables(variables), check=check)

    def _job(self, job: str, arguments: Mapping[str, Any], conf: Mapping[str, Any] | None) -> list[str]:
        given = {
            "master": self.master_url,
            "store": self.store_url,
            **arguments,
            "conf": {**SETTINGS, **(conf or {})},
        }
        return [str(self.python), "-W", "ignore", str(_JOBS / f"{job}.py"), json.dumps(given)]

    def _variables(self, variables: Mapping[str, str] | None) -> dict[str, str]:
        return {"YT_TOKEN": TOKEN, "SPARK_SUBMIT_OPTS": _JAVA, **(variables or {})}

    def _daemon(self, name: str, *arguments: str) -> Sequence[str]:
        spark = next((self.store.own / "venv").glob("lib/python*/site-packages/pyspark")).relative_to(self.store.own)
        return [str(self.network.home / spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]

    def _spark(self, variables: Mapping[str, str]) -> dict[str, str]:
        work = str(self.network.home / "work")
        return {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _JAVA, "SPARK_WORKER_DIR": work, **variables}

    def close(self) -> None:
        self.network.close()
