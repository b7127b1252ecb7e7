"""Random queries follow random tables: the targets are DuckDB's results over the current rows, after each step."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import SparkSession

import headrace
from headrace.ports import Store
from headrace.testing.effort import THOROUGH
from tests.spark.followed_histories import History, Run, histories, prepare
from tests.spark.random_queries import RandomQuery
from tests.spark.test_following_stores import sink

_EXAMPLES = settings(
    max_examples=100 if THOROUGH else 2,
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


def _fits(store: Store, query: RandomQuery) -> bool:
    """Return whether a store has the types of the target's columns."""
    permitted = store.capabilities.column_types
    kinds = {data_type.partition("(")[0] for data_type in query.columns.values()}
    return permitted is None or kinds <= set(permitted)


@pytest.mark.parametrize("kind", ["embedded", "tablestore", "ytsaurus"])
def test_targets_in_another_store_are_the_results_over_the_current_rows(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    prepare(spark)
    with sink(kind, tmp_path) as to:
        directory = "//home/" if kind == "ytsaurus" else ""

        @given(history=histories(steps=2, queries=2, fits=lambda query: _fits(to.store, query)))
        @settings(_EXAMPLES, max_examples=25 if THOROUGH else 1)
        def check(history: History) -> None:
            root = tmp_path / str(next(_NUMBERS))
            with headrace.open(root / "shop", create=True, synchronous="off") as store:
                Run(spark, history, store, to.store, root, to.options, directory).check()

        check()
