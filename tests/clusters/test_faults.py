"""Hosts that fail in the middle of batches change no result: each row is in the totals and in the copy once.

Slow tasks run twice (speculation), and executors come, go and are decommissioned.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping

import pytest

from tests.clusters.event_log import EventLog
from tests.clusters.hosts import Host, wait_until
from tests.clusters.standalone import Cluster
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
    # By default, an executor that has results of shuffles never leaves.
    "spark.dynamicAllocation.shuffleTracking.timeout": "20s",
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
}
# The only task of a stage runs twice, too. Without it, Spark first notices that a host is lost.
SPECULATIVE = {"spark.speculation.task.duration.threshold": "2s"}
# Reasons in the event log, as Spark 4.3 writes them. Only dynamic allocation scales down.
DECOMMISSIONED = "Executor decommission: worker decommissioned"
SCALED_DOWN = "Executor decommission: spark scale down"
_ROUNDS = 5


def start_driver(cluster: Cluster, host: Host, conf: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the jobs on a host; a later driver continues them."""
    given = {"checkpoint": "headrace:///checkpoints/totals", "rows_per_batch": 60, "follow": True}
    return cluster.start_job("totals", given, conf={**CONF, **conf, **EventLog(host).settings}, host=host)


class Jobs:
    """The running jobs. Each fault happens in the middle of their batches; afterwards each row must be there once."""

    def __init__(self, cluster: Cluster, tables: Tables) -> None:
        self.cluster, self.tables = cluster, tables
        self._start(cluster.driver, {})

    def _start(self, host: Host, conf: Mapping[str, str]) -> None:
        self.host, self.log = host, EventLog(host)
        self.driver = start_driver(self.cluster, host, conf)

    def in_the_middle(self) -> Host:
        """Append rows, and return a worker that runs their tasks when the first of their batches are done."""
        before = self.tables.clicks()
        self.tables.append(ROWS)
        self._wait(lambda: self.tables.clicks() > before, "a batch")
        executors = self.log.executors()
        name = next(task.host for task in reversed(self.log.tasks()) if task.executor in executors)
        return self.cluster.network.hosts[name]

    def complete(self, what: str) -> None:
        self.tables.wait_for_all(self.driver, what, _PATIENCE)

    def decommission(self) -> None:
        worker = self.in_the_middle()
        executor = {host: name for name, host in self.log.executors().items()}[worker.name]
        worker.run(["sh", "-c", "kill -PWR $(pgrep -f '[d]eploy.worker.Worker')"])
        # The driver takes the executor off its list for new tasks, and then tells it.
        told = f"Decommission executor {executor}."
        self._wait(lambda: any(told in path.read_text() for path in worker.own.glob("work/*/*/stderr")), told)
        known = _now()
        self.complete("after a worker was decommissioned")
        self._wait(lambda: executor in self.log.removed(DECOMMISSIONED), "the executor has left")
        later = {task.executor for task in self.log.tasks() if task.launched > known}
        assert later
        assert executor not in later
        wait_until(lambda: self.cluster.workers() == 1, "the worker has left")
        worker.run(["sh", "-c", "kill $(pgrep -f '[d]eploy.worker.Worker') || true"])
        self.cluster.start_worker(worker.name)
        wait_until(lambda: self.cluster.workers() == 2, "the worker is back")

    def scale(self) -> None:
        """Wait until dynamic allocation has removed all idle executors, and has added one for new rows."""
        self._wait(lambda: not self.log.executors(), "idle executors are removed")
        assert self.log.removed(SCALED_DOWN)
        self.in_the_middle()
        self.complete("after all executors were removed")
        assert self.log.executors()

    def replace(self, name: str) -> None:
        self.in_the_middle().power_off()
        self.complete("after the power of a worker failed")
        self.cluster.add(name)
        self.cluster.start_worker(name)

    def cut(self) -> None:
        worker = self.in_the_middle()
        worker.disconnect()
        self.complete("without the network of a worker")
        worker.connect()

    def slow_down(self) -> None:
        worker = self.in_the_middle()
        worker.impair(delay=0.3, loss=0.02)
        began = _now()
        for _ in range(_ROUNDS):
            self.complete("over a slow network with losses")
            if self._copied(worker, began):
                break
            self.in_the_middle()
        assert self._copied(worker, began)
        worker.impair()

    def _copied(self, worker: Host, began: int) -> bool:
        """Return whether another worker has run a copy of a slow task of this one since a time."""
        tasks = [task for task in self.log.tasks() if task.launched >= began]
        slow = {task.work for task in tasks if task.host == worker.name and not task.speculative}
        return any(task.speculative and task.host != worker.name and task.work in slow for task in tasks)

    def move_driver(self, name: str, conf: Mapping[str, str]) -> None:
        self.in_the_middle()
        self.host.power_off()
        self._start(self.cluster.add(name), conf)
        self.complete("by a driver on another host, from the checkpoint in the store")
        self.tables.append(ROWS)
        self.complete("new rows")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds, as long as the driver runs."""
        wait_until(lambda: condition() or self.driver.poll() is not None, what, _PATIENCE)
        assert self.driver.poll() is None, self.host.log("driver-log")[-4000:]


def test_a_lost_worker_and_a_driver_on_another_host_change_no_result(own_cluster: Cluster, own_tables: Tables) -> None:
    jobs = Jobs(own_cluster, own_tables)
    jobs.replace("worker-3")
    jobs.move_driver("driver-2", {})


@pytest.mark.storm
@pytest.mark.timeout(1800)
def test_hosts_that_leave_are_cut_off_or_slow_change_no_result(own_cluster: Cluster, own_tables: Tables) -> None:
    jobs = Jobs(own_cluster, own_tables)
    jobs.decommission()
    jobs.scale()
    jobs.replace("worker-3")
    jobs.cut()
    jobs.move_driver("driver-2", SPECULATIVE)
    jobs.slow_down()


def _now() -> int:
    """Return the time as in the event log. All hosts have the same clock."""
    return int(time.time() * 1000)
