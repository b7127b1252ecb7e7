"""Real data: the statistics of a stream of flights equal DuckDB's result over the raw file.

A thorough run has the whole year, a quick one four months, and five weeks of them in PostgreSQL.
"""

from __future__ import annotations

import datetime
import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.testing.effort import THOROUGH
from tests.conformance import serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights" / "run.py"
# Two batches of the changes, and two of the flights before December.
FIRST = datetime.date(2013, 1 if THOROUGH else 9, 1)
FIRST_IN_POSTGRES = datetime.date(2013, 1, 1) if THOROUGH else datetime.date(2013, 11, 24)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["embedded", "postgres"])
def test_the_stream_of_flights_equals_the_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # The example sets these variables; monkeypatch restores them.
    monkeypatch.setenv("FLIGHTS_STORE", "")
    monkeypatch.setenv("FLIGHTS_CHECKPOINT", "")
    main = runpy.run_path(str(EXAMPLE))["main"]
    if kind == "embedded":
        assert main(tmp_path, FIRST) == 0
        return
    url = serving.postgres_database()
    assert main(tmp_path, FIRST_IN_POSTGRES, url) == 0
    with headrace.open(url) as store:
        for tunnel in store.tunnels():
            store.drop_tunnel(tunnel.id)
