"""Streams keep views: the targets equal DuckDB's and Spark's answers after each batch, also after a restart."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import headrace
from headrace.errors import SqlError
from headrace.testing.effort import THOROUGH
from tests.spark.followed_histories import prepare
from tests.views.changes import Changer
from tests.views.scenarios import random_scenario
from tests.views.streams import KeyedView, Run, follow
from tests.views.tpch_data import TABLES, tpch
from tests.views.tpch_queries import queries

_SCALE = 0.01 if THOROUGH else 0.001
_QUERIES = queries(_SCALE)


def test_streams_keep_queries_of_tpch(spark: SparkSession, tmp_path: Path) -> None:
    prepare(spark)
    not_null = frozenset(column for query in _QUERIES.values() for column in query.null_keys)
    for name in _QUERIES if THOROUGH else ["q3", "q16"]:
        with (
            headrace.open(tmp_path / name, create=True, synchronous="off") as store,
            Run(spark, store, tmp_path, TABLES, tpch(_SCALE), follow) as run,
        ):
            run.keep(name, KeyedView.of_tpch(_QUERIES[name]))
            changer = Changer(run.database, seed=1, not_null=not_null)
            for number in range(20 if THOROUGH else 2):
                run.play(changer.batch(200 if THOROUGH else 40), restart=number % 5 == 1)
            run.compare_with_spark()


def test_streams_keep_random_queries(spark: SparkSession, tmp_path: Path) -> None:
    prepare(spark)
    kept = 0
    for seed in range(20 if THOROUGH else 1):
        scenario = random_scenario(seed, queries=5 if THOROUGH else 3)
        rows = {name: table.arrow(scenario.rows[name]) for name, table in scenario.tables.items()}
        for number, query in enumerate(scenario.queries):
            place = tmp_path / f"{seed}_{number}"
            with (
                headrace.open(place, create=True, synchronous="off") as store,
                Run(spark, store, place, scenario.tables, rows, follow) as run,
            ):
                columns = run.database.query(str(query)).column_names
                try:
                    run.keep("view", KeyedView.of_bag(query, columns, scenario.tables))
                except SqlError:
                    # Its result depends on an order of rows that the query does not determine.
                    continue
                for batch in scenario.batches:
                    run.play(batch)
                run.compare_with_spark()
                kept += 1
    assert kept
