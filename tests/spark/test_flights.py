"""Real data: the statistics of a stream of flights equal DuckDB's result over the raw file.

A thorough run has the whole year, a quick one four months, and five weeks of them in PostgreSQL.
"""

from __future__ import annotations

import datetime
import runpy
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.demo.processes import Child, Children
from headrace.demo.story import QUICK_JAVA
from headrace.testing.effort import THOROUGH
from tests.conformance import serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights" / "run.py"
# Two batches of the changes, and two of the flights before December.
FIRST = datetime.date(2013, 1 if THOROUGH else 9, 1)
FIRST_IN_POSTGRES = datetime.date(2013, 1, 1) if THOROUGH else datetime.date(2013, 11, 24)


def test_the_stream_of_flights_equals_the_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The example sets these variables; monkeypatch restores them.
    monkeypatch.setenv("FLIGHTS_STORE", "")
    monkeypatch.setenv("FLIGHTS_CHECKPOINT", "")
    assert runpy.run_path(str(EXAMPLE))["main"](tmp_path, FIRST) == 0


def _wait(driver: Child, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        driver.check()
        time.sleep(0.005)


@pytest.mark.timeout(1200)
def test_the_stream_of_flights_in_postgresql_equals_the_batch_after_a_kill_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = runpy.run_path(str(EXAMPLE))
    raw = example["extract"](tmp_path)
    checkpoints = [tmp_path / "checkpoint", tmp_path / "checkpoint-carriers"]
    with headrace.open(serving.postgres_database(f"t{uuid.uuid4().hex}")) as store, Children() as children:
        example["create_tables"](store)
        example["write_flights"](store, example["read_flights"](raw, FIRST_IN_POSTGRES))
        monkeypatch.setenv("FLIGHTS_STORE", store.url)
        monkeypatch.setenv("FLIGHTS_CHECKPOINT", str(checkpoints[0]))
        arguments = ["-m", "headrace.cli.main", "run", str(example["SCRIPT"]), "--available-now", "--json"]
        arguments += ["--workspace", str(tmp_path), "--master", "local[2,4]"]
        arguments += ["--conf", f"spark.driver.extraJavaOptions={QUICK_JAVA}"]
        first = children.start("first driver", arguments, tmp_path / "first.log")
        # Both streams run their first batch.
        _wait(first, lambda: all((place / "offsets" / "0").exists() for place in checkpoints))
        assert first.kill() > 1
        assert not all((place / "commits" / "0").exists() for place in checkpoints)
        second = children.start("second driver", arguments, tmp_path / "second.log")
        while second.running:
            time.sleep(0.1)
        assert example["is_right"](store, raw, FIRST_IN_POSTGRES), (tmp_path / "second.log").read_text()[-4000:]
        for tunnel in store.tunnels():
            store.drop_tunnel(tunnel.id)
