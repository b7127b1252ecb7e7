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
    "spark.network.timeout": "25s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "2s",
    "spark.shuffle.io.maxRetries": 1,
    "spark.shuffle.io.retryWait": "1s",
    "spark.shuffle.io.connectionTimeout": "10s",
    "spark.task.maxFailures": 8,
}


class Site:
    """A server of tables and a host for drivers; the parts of each kind of cluster that do not depend on Spark.

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
        store, _ = self.add("store"), self.add("driver")
        serve = ["serve", "--ytsaurus", STORE_PORT, "--root", self.network.home / "cluster"]
        store.start(
            [self.python, "-m", "headrace.cli.main", *serve, "--host", store.address],
            {"HEADRACE_YT_TOKEN": TOKEN},
        )
        wait_until(lambda: store.listens(STORE_PORT), "the store listens")

    def add(self, name: str) -> Host:
        """Add a host with an environment."""
        host = self.network.add(name)
        create(host.own / "venv")
        return host

    def close(self) -> None:
        self.network.close()

    @property
    def store(self) -> Host:
        return self.network.hosts["store"]

    @property
    def driver(self) -> Host:
        return self.network.hosts["driver"]

    @property
    def python(self) -> Path:
        """The interpreter of each host, at the same path."""
        return interpreter(self.network.home)

    @property
    def spark(self) -> Path:
        """The directory of Spark in the environment of each host."""
        found = next((self.store.own / "venv").glob("lib/python*/site-packages/pyspark"))
        return self.network.home / found.relative_to(self.store.own)

    @property
    def store_url(self) -> str:
        """The URL of the store, for every host."""
        return f"yt+http://store:{STORE_PORT}"

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
        submit: Sequence[object] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run the driver of a job to its end; with ``submit`` by ``spark-submit`` with these options."""
        command = self._job(job, arguments, conf)
        if submit is not None:
            command = [str(self.spark / "bin" / "spark-submit"), *map(str, submit), *command[-2:]]
        return self.driver.run(command, self._variables(variables), check=check)

    def _job(self, job: str, arguments: Mapping[str, Any], conf: Mapping[str, Any] | None) -> list[str]:
        given = {"store": self.store_url, **arguments, "conf": {**SETTINGS, **(conf or {})}}
        return [str(self.python), "-W", "ignore", str(_JOBS / f"{job}.py"), json.dumps(given)]

    def _variables(self, variables: Mapping[str, str] | None) -> dict[str, str]:
        return {"YT_TOKEN": TOKEN, "SPARK_SUBMIT_OPTS": _JAVA, **(variables or {})}


class Cluster(Site):
    """A master and two workers of a standalone cluster, with their daemons."""

    def _start(self) -> None:
        super()._start()
        master = self.add("master")
        master.start(
            self._daemon("master.Master", "--host", "master", "--port", str(MASTER_PORT)),
            self._spark({"SPARK_MASTER_OPTS": "-Dspark.worker.timeout=30"}),
        )
        wait_until(lambda: master.listens(MASTER_PORT), "the master listens")
        for name in WORKERS:
            self.add(name)
            self.start_worker(name)
        wait_until(lambda: self.workers() == len(WORKERS), "the workers are registered")

    def start_worker(self, name: str) -> None:
        """Start the daemon of a worker on its host."""
        host = self.network.hosts[name]
        command = self._daemon("worker.Worker", "--cores", "1", "--memory", "900m", "--host", name, self.master_url)
        host.start(command, self._spark({"SPARK_WORKER_OPTS": "-Dspark.decommission.enabled=true"}))

    @property
    def master(self) -> Host:
        return self.network.hosts["master"]

    @property
    def master_url(self) -> str:
        return f"spark://master:{MASTER_PORT}"

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

    def _job(self, job: str, arguments: Mapping[str, Any], conf: Mapping[str, Any] | None) -> list[str]:
        return super()._job(job, {"master": self.master_url, **arguments}, conf)

    def _daemon(self, name: str, *arguments: str) -> Sequence[str]:
        return [str(self.spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]

    def _spark(self, variables: Mapping[str, str]) -> dict[str, str]:
        work = str(self.network.home / "work")
        return {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _JAVA, "SPARK_WORKER_DIR": work, **variables}
