"""Random changes of a table and its columns under a mirror whose batches fail; see `tests.spark.mirror_histories`."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from headrace.testing.effort import thorough
from tests.spark import mirror_histories


@pytest.mark.parametrize("seed", range(thorough(10)))
def test_a_copy_is_the_table_or_the_mirror_names_the_change(spark: SparkSession, seed: int) -> None:
    mirror_histories.play(spark, seed, 8)
