"""Real data: the statistics of a stream of a year of flights equal DuckDB's result over the raw file."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights" / "run.py"


def test_a_year_of_flights_equals_the_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The example sets these variables; monkeypatch restores them.
    monkeypatch.setenv("FLIGHTS_STORE", "")
    monkeypatch.setenv("FLIGHTS_CHECKPOINT", "")
    assert runpy.run_path(str(EXAMPLE))["main"](tmp_path) == 0
