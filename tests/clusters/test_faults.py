"""Hosts that fail in the middle of batches change no result: each row is in the totals and in the copy once.

Slow tasks run twice (speculation), and executors come, go and are decommissioned.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.fixture
def own_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whose hosts and processes the test may replace."""
    yield cluster
    cluster.close()


def test_hosts_that_fail_in_the_middle_of_batches_change_no_result(own_cluster: Cluster, tables: Tables) -> None:
    cluster = own_cluster
    worker_1, worker_2 = (cluster.network.hosts[name] for name in ("worker-1", "worker-2"))
    driver = start_driver(cluster, cluster.driver)

    def in_the_middle() -> None:
        """Append rows, and return when the first of their batches are done."""
        before = tables.clicks()
        tables.append(ROWS)
        wait_until(lambda: tables.clicks() > before or driver.poll() is not None, "a batch", _PATIENCE)
        assert driver.poll() is None, cluster.driver.log("driver-log")[-4000:]

    in_the_middle()
    worker_2.run(["sh", "-c", "kill -PWR $(pgrep -f '[d]eploy.worker.Worker')"])
    tables.wait_for_all(driver, "after a worker was decommissioned", _PATIENCE)
    wait_until(lambda: cluster.workers() == 1, "the worker has left")
    worker_2.run(["sh", "-c", "kill $(pgrep -f '[d]eploy.worker.Worker') || true"])
    cluster.start_worker("worker-2")
    wait_until(lambda: cluster.workers() == 2, "the worker is back")

    in_the_middle()
    worker_1.power_off()
    tables.wait_for_all(driver, "after the power of a worker failed", _PATIENCE)
    worker_3 = cluster.add("worker-3")
    cluster.start_worker("worker-3")

    in_the_middle()
    worker_2.disconnect()
    tables.wait_for_all(driver, "without the network of a worker", _PATIENCE)
    worker_2.connect()

    worker_3.impair(delay=0.3, loss=0.02)
    in_the_middle()
    tables.wait_for_all(driver, "over a slow network with losses", _PATIENCE)
    worker_3.impair()
    assert '"Speculative":true' in "".join(path.read_text() for path in _events(cluster.driver))

    in_the_middle()
    cluster.driver.power_off()
    other = cluster.add("driver-2")
    driver = start_driver(cluster, other)
    tables.wait_for_all(driver, "by a driver on another host, from the checkpoint in the store", _PATIENCE)
    tables.append(ROWS)
    tables.wait_for_all(driver, "new rows", _PATIENCE)


def _events(host: Host) -> list[Path]:
    return [path for path in (host.own / "events").rglob("*") if path.is_file()]
