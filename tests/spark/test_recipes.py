"""The recipes of docs/recipes.md: jobs of schedulers, of Spark's operator, and of systemd."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

import headrace
from tests.documents import ROOT

DEPLOY = ROOT / "deploy"
ENVIRONMENTS = ROOT / "build" / "recipes"
APPLICATION = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "spark-application.yaml").read_text()))
JOB = """
CREATE TABLE orders USING headrace OPTIONS (store = '{store}', table = 'orders');
CREATE TABLE totals USING headrace OPTIONS (store = '{store}', table = 'totals');
CREATE TUNNEL IF NOT EXISTS totals ON orders;
CREATE SCAN orders_now ON orders USING STREAM OPTIONS (tunnel = 'totals', readAs = 'table');
CREATE STREAM totals_per_customer OPTIONS (outputMode = 'update')
INSERT INTO totals SELECT customer, count(*) AS orders, sum(price) AS spent FROM orders_now GROUP BY customer;
"""


@pytest.fixture
def store(tmp_path: Path) -> headrace.Store:
    """A store with the tables of the job."""
    store = headrace.open(tmp_path / "shop", create=True)
    orders = store.create_table(
        "orders", {"id": "long", "customer": "string", "price": "double"}, "id", pre_images=True
    )
    store.create_table("totals", {"customer": "string", "orders": "long", "spent": "double"}, "customer")
    orders.put([{"id": n, "customer": f"c{n % 2}", "price": 1.0} for n in range(4)])
    return store


def totals(store: headrace.Store) -> dict[str, int]:
    return {row["customer"]: row["orders"] for row in store.table("totals")}


def run_by(scheduler: str, command: list[str], jobs: Path, **variables: str) -> None:
    """Run a command of a scheduler's environment, which does not have headrace."""
    program = ENVIRONMENTS / scheduler / "bin" / command[0]
    if not program.exists():
        pytest.skip(f"{scheduler} is not installed: make test-recipes")
    home = jobs.parent / "home"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {
        "HEADRACE": str(jobs / "headrace"),
        "HEADRACE_JOBS": str(jobs),
        "AIRFLOW_HOME": str(home),
        "DAGSTER_HOME": str(home),
        **variables,
    }
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        [program, *command[1:]], env=environment, cwd=home, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@pytest.fixture
def jobs(tmp_path: Path, store: headrace.Store) -> Path:
    """The directory of the jobs, with a command that runs headrace of this environment."""
    directory = tmp_path / "jobs"
    directory.mkdir()
    (directory / "totals.sql").write_text(JOB.format(store=tmp_path / "shop"))
    path = os.environ.get("PYTHONPATH", "")
    command = f'#!/bin/sh\nPYTHONPATH="{path}" exec {sys.executable} -m headrace.cli.main "$@"\n'
    (directory / "headrace").write_text(command)
    (directory / "headrace").chmod(0o755)
    return directory


def test_a_task_of_airflow_runs_the_job(jobs: Path, store: headrace.Store) -> None:
    dags = DEPLOY / "airflow"
    settings = {"AIRFLOW__CORE__DAGS_FOLDER": str(dags), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    run_by("apache-airflow", ["airflow", "db", "migrate"], jobs, **settings)
    dag = str(dags / "headrace_totals.py")
    run_by("apache-airflow", ["airflow", "dags", "test", "--dagfile-path", dag, "headrace_totals"], jobs, **settings)
    assert totals(store) == {"c0": 2, "c1": 2}


def test_an_asset_of_dagster_runs_the_job(jobs: Path, store: headrace.Store) -> None:
    asset = str(DEPLOY / "dagster" / "headrace_totals.py")
    run_by("dagster", ["dagster", "asset", "materialize", "--select", "totals", "-f", asset], jobs)
    assert totals(store) == {"c0": 2, "c1": 2}


def test_the_job_of_the_spark_application_runs(
    spark: SparkSession, store: headrace.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = APPLICATION[0]["data"]
    monkeypatch.setenv("HEADRACE_STORE", str(tmp_path / "shop"))
    (tmp_path / "job.sql").write_text(data["job.sql"])
    # A stream of the service would go on.
    program = data["job.py"].replace("/job/", f"{tmp_path}/").replace('"/work"', f'"{tmp_path}/work"')
    assert "sql.run(" in program
    exec(program.replace("read_text())", "read_text(), available_now=True)"), {"__name__": "job"})
    assert totals(store) == {"c0": 2, "c1": 2}
    store.close()


def test_the_unit_of_systemd_is_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    unit = (DEPLOY / "systemd" / "headrace@.service").read_text()
    # The program has to exist.
    (tmp_path / "headrace@.service").write_text(unit.replace("/opt/headrace/bin/headrace", sys.executable))
    command = ["systemd-analyze", "verify", str(tmp_path / "headrace@.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
