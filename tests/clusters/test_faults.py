"""Hosts that fail in the middle of batches change no result: each row is in the totals and in the copy once.

Slow tasks run twice (speculation), and executors come, go and are decommissioned.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.clusters.hosts import Host, wait_until
from tests.clusters.standalone import WORKERS, Cluster
from tests.clusters.totals import Tables

ROWS = 400
_PATIENCE = 240.0
CONF = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.4",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "20s",
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.eventLog.enabled": "true",
}


def start_driver(cluster: Cluster, host: Host) -> subprocess.Popen[bytes]:
    """Start the jobs on a host; a later driver continues them."""
    (host.own / "events").mkdir()
    given = {"checkpoint": "headrace:///checkpoints/totals", "rows_per_batch": 60, "follow": True}
    return cluster.start_job(
        "totals", given, conf={**CONF, "spark.eventLog.dir": f"{host.home.as_uri()}/events"}, host=host
    )


class Jobs:
    """The running jobs. Each fault happens in the middle of their batches; afterwards each row must be there once."""

    def __init__(self, cluster: Cluster, tables: Tables) -> None:
        self.cluster, self.tables = cluster, tables
        self.driver = start_driver(cluster, cluster.driver)

    def in_the_middle(self) -> None:
        """Append rows, and return when the first of their batches are done."""
        before = self.tables.clicks()
        self.tables.append(ROWS)
        wait_until(lambda: self.tables.clicks() > before or self.driver.poll() is not None, "a batch", _PATIENCE)
        assert self.driver.poll() is None, self.cluster.driver.log("driver-log")[-4000:]

    def complete(self, what: str) -> None:
        self.tables.wait_for_all(self.driver, what, _PATIENCE)

    def decommission(self, worker: Host) -> None:
        self.in_the_middle()
        worker.run(["sh", "-c", "kill -PWR $(pgrep -f '[d]eploy.worker.Worker')"])
        self.complete("after a worker was decommissioned")
        wait_until(lambda: self.cluster.workers() == 1, "the worker has left")
        worker.run(["sh", "-c", "kill $(pgrep -f '[d]eploy.worker.Worker') || true"])
        self.cluster.start_worker(worker.name)
        wait_until(lambda: self.cluster.workers() == 2, "the worker is back")

    def replace(self, worker: Host, name: str) -> Host:
        self.in_the_middle()
        worker.power_off()
        self.complete("after the power of a worker failed")
        new = self.cluster.add(name)
        self.cluster.start_worker(name)
        return new

    def cut(self, worker: Host) -> None:
        self.in_the_middle()
        worker.disconnect()
        self.complete("without the network of a worker")
        worker.connect()

    def slow_down(self, worker: Host) -> None:
        worker.impair(delay=0.3, loss=0.02)
        self.in_the_middle()
        self.complete("over a slow network with losses")
        worker.impair()
        assert '"Speculative":true' in "".join(path.read_text() for path in _events(self.cluster.driver))

    def move_driver(self, name: str) -> None:
        self.in_the_middle()
        self.cluster.driver.power_off()
        self.driver = start_driver(self.cluster, self.cluster.add(name))
        self.complete("by a driver on another host, from the checkpoint in the store")
        self.tables.append(ROWS)
        self.complete("new rows")


def test_a_lost_worker_and_a_driver_on_another_host_change_no_result(own_cluster: Cluster, own_tables: Tables) -> None:
    jobs = Jobs(own_cluster, own_tables)
    jobs.replace(own_cluster.network.hosts["worker-1"], "worker-3")
    jobs.move_driver("driver-2")


@pytest.mark.storm
@pytest.mark.timeout(1800)
def test_hosts_that_leave_are_cut_off_or_slow_change_no_result(own_cluster: Cluster, own_tables: Tables) -> None:
    jobs = Jobs(own_cluster, own_tables)
    worker_1, worker_2 = (own_cluster.network.hosts[name] for name in WORKERS)
    jobs.decommission(worker_2)
    worker_3 = jobs.replace(worker_1, "worker-3")
    jobs.cut(worker_2)
    jobs.slow_down(worker_3)
    jobs.move_driver("driver-2")


def _events(host: Host) -> list[Path]:
    return [path for path in (host.own / "events").rglob("*") if path.is_file()]
