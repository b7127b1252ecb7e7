"""Random queries follow random tables: the targets are DuckDB's results over the current rows, after each step."""

from __future__ import annotations

import itertools
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import SparkSession

import headrace
from tests.effort import THOROUGH
from tests.spark.followed_histories import History, Run, histories, prepare

_EXAMPLES = settings(
    max_examples=100 if THOROUGH else 3,
    # An example takes seconds; a failed one is reported as it is.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
_NUMBERS = itertools.count()


@given(history=histories())
@_EXAMPLES
def test_targets_are_the_results_over_the_current_rows(spark: SparkSession, tmp_path: Path, history: History) -> None:
    prepare(spark)
    directory = tmp_path / str(next(_NUMBERS))
    with headrace.open(directory / "shop", create=True, synchronous="off") as store:
        Run(spark, history, store, store, directory).check()
