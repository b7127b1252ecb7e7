"""Random changes of two joined tables on one slot of a server that is killed; see `tests.spark.join_histories`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headrace.testing.effort import thorough
from tests.postgres_server import PostgresServer
from tests.spark import join_histories


@pytest.fixture(scope="module")
def killed() -> Iterator[PostgresServer]:
    server = PostgresServer.start()
    yield server
    server.remove()


@pytest.mark.parametrize("seed", range(thorough(10)))
def test_a_target_is_the_join_or_the_query_names_the_change(
    spark: SparkSession, killed: PostgresServer, seed: int
) -> None:
    join_histories.play(spark, killed, seed, 6)
