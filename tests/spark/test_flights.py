"""Real input: a year of flights, streamed, must equal DuckDB's batch over the raw file."""

from __future__ import annotations

import runpy
from pathlib import Path

from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights" / "run.py"


def test_a_year_of_flights_equals_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    assert runpy.run_path(str(EXAMPLE))["main"](tmp_path) == 0
