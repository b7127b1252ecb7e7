"""A job from the README on a standalone cluster: each host has its own addresses, files and Python environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.clusters.hosts import Host
from tests.clusters.standalone import TOKEN, WORKERS, Cluster
from tests.clusters.totals import Tables, expected

ROWS = 1000


def test_a_job_runs_on_a_cluster_and_its_secrets_are_nowhere_to_be_read(cluster: Cluster, tables: Tables) -> None:
    tables.append(ROWS)
    events = cluster.driver.own / "events"
    events.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": cluster.driver.home.as_uri() + "/events",
        "spark.ui.showConsoleProgress": "true",
    }
    given = {
        "checkpoint": "headrace:///checkpoints/totals",
        "rows_per_batch": 500,
        "pages": str(cluster.driver.home / "pages"),
        # The environment has it, too.
        "options": {"token": TOKEN},
    }
    done = cluster.run_job("totals", given, conf=conf)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["batches"] >= 2
    # Spark may start one of the two a little later than the last batch.
    assert set(result["executors"]) <= set(WORKERS)
    assert result["driver"] == "driver"
    totals, _, offsets = tables.read()
    assert totals == expected(ROWS)
    assert offsets["totals"] == {"0": ROWS // 2, "1": ROWS // 2}

    pages = cluster.driver.own / "pages"
    assert "headrace" in pages.read_text()
    shown = [pages, *_files(events), *(path for host in cluster.network.hosts.values() for path in _logs(host))]
    # The logs of the daemons and of two executors.
    assert len(shown) >= 7
    assert not [str(path) for path in shown if TOKEN in path.read_text(errors="replace")]
    assert TOKEN not in done.stdout + done.stderr
    assert TOKEN not in json.dumps(cluster.state())


def _logs(host: Host) -> list[Path]:
    """Return the logs of the daemons and of the executors of a host."""
    return [*host.own.glob("log"), *_files(host.own / "work")]


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]
