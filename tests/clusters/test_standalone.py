"""A job from the README on a standalone cluster: each host has its own addresses, files and Python environment."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.clusters.environments import create, install, packages_of, remove
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
    assert totals == expected(tables.rows)
    assert offsets["totals"] == {"0": tables.rows // 2, "1": tables.rows // 2}

    pages = cluster.driver.own / "pages"
    assert "headrace" in pages.read_text()
    shown = [pages, *_files(events), *(path for host in cluster.network.hosts.values() for path in _logs(host))]
    # The logs of the daemons and of two executors.
    assert len(shown) >= 7
    assert not [str(path) for path in shown if TOKEN in path.read_text(errors="replace")]
    assert TOKEN not in done.stdout + done.stderr
    assert TOKEN not in json.dumps(cluster.state())


def test_an_archive_or_python_files_bring_headrace_to_executors(cluster: Cluster, tables: Tables) -> None:
    driver = cluster.driver
    # An archive as venv-pack makes it. The driver has it unpacked in its directory: see docs/deployment.md.
    create(driver.own / "environment")
    subprocess.run(
        ["tar", "-czf", driver.own / "environment.tar.gz", "-C", driver.own / "environment", "."], check=True
    )
    (driver.own / "sources").mkdir()
    install(driver.own / "sources")
    shutil.make_archive(str(driver.own / "headrace"), "zip", driver.own / "sources")
    with ExitStack() as undo:
        for name in WORKERS:
            remove(packages_of(cluster.network.hosts[name].own / "venv"), undo)
        given = {"checkpoint": "headrace:///checkpoints/totals"}

        tables.append(100)
        archive = {"spark.archives": f"{driver.home}/environment.tar.gz#environment"}
        cluster.run_job("totals", given, conf=archive, variables={"PYSPARK_PYTHON": "./environment/bin/python"})
        assert tables.read()[0] == expected(tables.rows)

        tables.append(100)
        files = ["--master", cluster.master_url, "--py-files", driver.home / "headrace.zip"]
        python = {"PYSPARK_PYTHON": str(cluster.python)}
        cluster.run_job("totals", given, submit=files, variables=python)
        assert tables.read()[0] == expected(tables.rows)


def _logs(host: Host) -> list[Path]:
    """Return the logs of the daemons and of the executors of a host."""
    return [*host.own.glob("log"), *_files(host.own / "work")]


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]
