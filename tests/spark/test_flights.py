"""Real data: the statistics of a stream of flights equal DuckDB's result over the raw file.

A thorough run has the whole year, a quick one four months.
"""

from __future__ import annotations

import datetime
import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.effort import THOROUGH

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights" / "run.py"
# Two batches of the changes, and two of the flights before December.
FIRST = datetime.date(2013, 1 if THOROUGH else 9, 1)


def test_the_stream_of_flights_equals_the_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The example sets these variables; monkeypatch restores them.
    monkeypatch.setenv("FLIGHTS_STORE", "")
    monkeypatch.setenv("FLIGHTS_CHECKPOINT", "")
    assert runpy.run_path(str(EXAMPLE))["main"](tmp_path, FIRST) == 0
