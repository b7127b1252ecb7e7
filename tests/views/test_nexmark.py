"""The queries of Nexmark over tables that change: right after every batch, by the rules and in streams."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import headrace
from headrace.testing.effort import THOROUGH
from tests.spark.followed_histories import prepare
from tests.views.changes import Changer
from tests.views.gathered import Gathered
from tests.views.nexmark import NOT_NULL, TABLES, first_rows, queries
from tests.views.rules import Comparison
from tests.views.streams import Run, follow
from tests.views.tables import Database


def test_the_rules_keep_all_queries_of_nexmark() -> None:
    with Database(TABLES, first_rows(1)) as database:
        comparison = Comparison(Gathered, {name: view.sql for name, view in queries().items()}, database)
        changer = Changer(database, seed=1, not_null=NOT_NULL)
        for number in range(20 if THOROUGH else 2):
            comparison.play(changer.batch(40), f"batch {number}")


def test_answers_to_nexmark_have_keys_and_are_not_empty() -> None:
    with Database(TABLES, first_rows(1)) as database:
        for name, view in queries().items():
            answer = database.query(view.sql)
            keys = {tuple(row.values()) for row in answer.select(view.key).to_pylist()}
            assert len(keys) == answer.num_rows > 0, name


def test_streams_keep_queries_of_nexmark(spark: SparkSession, tmp_path: Path) -> None:
    prepare(spark)
    for name in queries() if THOROUGH else ("q5",):
        with (
            headrace.open(tmp_path / name, create=True, synchronous="off") as store,
            Run(spark, store, tmp_path, TABLES, first_rows(2), follow) as run,
        ):
            run.keep(name, queries()[name])
            changer = Changer(run.database, seed=2, not_null=NOT_NULL)
            for number in range(5 if THOROUGH else 2):
                run.play(changer.batch(40), restart=number == 1)
            run.compare_with_spark()
