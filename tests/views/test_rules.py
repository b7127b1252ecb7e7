"""The rules of headrace without Spark: what they read is enough, for every kind of query."""

from __future__ import annotations

import duckdb

from headrace.testing.effort import THOROUGH
from tests.views.changes import Changer
from tests.views.gathered import Gathered
from tests.views.rules import Comparison
from tests.views.scenarios import InvalidQuery, outcomes, random_scenario
from tests.views.tables import Database
from tests.views.tpch_data import TABLES, tpch
from tests.views.tpch_queries import queries

_SCALE = 0.01 if THOROUGH else 0.001


def test_all_queries_of_tpch_are_right_after_every_batch() -> None:
    with Database(TABLES, tpch(_SCALE)) as database:
        views = {name: query.sql for name, query in queries(_SCALE).items()}
        comparison = Comparison(Gathered, views, database)
        changer = Changer(database, seed=7)
        for number in range(20 if THOROUGH else 2):
            comparison.play(changer.batch(100), f"batch {number}")


def test_random_queries_are_right_after_every_batch() -> None:
    kept = 0
    for seed in range(1000 if THOROUGH else 3):
        try:
            found = outcomes(Gathered, random_scenario(seed))
        except (duckdb.Error, InvalidQuery):
            continue
        wrong = [each for each in found if not isinstance(each, str)]
        assert wrong == [], f"seed {seed}"
        kept += found.count("right")
    assert kept > 15
