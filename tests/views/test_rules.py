"""The rules of headrace without Spark: what they read is enough, for every kind of query."""

from __future__ import annotations

from contextlib import suppress
from itertools import combinations, permutations

import duckdb
import pytest

from headrace.derived.gathering.scopes import UnclearStructure, read_model
from headrace.derived.gathering.unique import determines
from headrace.sql_text.query_text import QueryText
from headrace.testing.effort import THOROUGH
from tests.views.changes import Changer
from tests.views.gathered import Gathered, columns_of, with_one_zero
from tests.views.gathered_groups import GatheredGroups
from tests.views.rules import Comparison, Engine
from tests.views.scenarios import InvalidQuery, outcomes, random_scenario
from tests.views.tables import Database
from tests.views.tpch_data import TABLES, tpch
from tests.views.tpch_queries import queries

_SCALE = 0.01 if THOROUGH else 0.001
_WITH_INNER_GROUPS = ("q11", "q13", "q15", "q18", "q22")


@pytest.mark.parametrize("engine", [Gathered, GatheredGroups])
def test_all_queries_of_tpch_are_right_after_every_batch(engine: Engine) -> None:
    with Database(TABLES, tpch(_SCALE)) as database:
        # With inner groups also those of the outermost query.
        names = _WITH_INNER_GROUPS if engine is GatheredGroups and not THOROUGH else queries(_SCALE)
        views = {name: queries(_SCALE)[name].sql for name in names}
        comparison = Comparison(engine, views, database)
        changer = Changer(database, seed=7)
        for number in range(20 if THOROUGH else 2):
            comparison.play(changer.batch(100), f"batch {number}")


@pytest.mark.parametrize("engine", [Gathered, GatheredGroups])
def test_random_queries_are_right_after_every_batch(engine: Engine) -> None:
    kept = 0
    for seed in range(1000 if THOROUGH else 3 if engine is Gathered else 1):
        try:
            found = outcomes(engine, random_scenario(seed))
        except (duckdb.Error, InvalidQuery):
            continue
        wrong = [each for each in found if not isinstance(each, str)]
        assert wrong == [], f"seed {seed}"
        kept += found.count("right")
    assert kept > (15 if engine is Gathered else 5)


def test_columns_that_others_determine_have_one_value_in_answers_of_random_queries() -> None:
    checked = 0
    for seed in range(300 if THOROUGH else 5):
        scenario = random_scenario(seed, batches=0)
        with scenario.database() as database:
            for query in map(str, scenario.queries):
                with suppress(duckdb.Error, UnclearStructure):
                    answer = with_one_zero(database.query(query))
                    model = read_model(QueryText(query), columns_of(database.tables))
                    count = answer.num_columns if len(model.outputs) == answer.num_columns else 0
                    rows = [
                        tuple(map(repr, row))
                        for row in zip(*(each.to_pylist() for each in answer.columns), strict=True)
                    ]
                    claims = [
                        *(((given,), other) for given, other in permutations(range(count), 2)),
                        *((given, o) for given in combinations(range(count), 2) for o in {*range(count)} - {*given}),
                    ]
                    for given, other in claims:
                        if determines(model, given, other):
                            keys = {tuple(row[each] for each in given) for row in rows}
                            both = {tuple(row[each] for each in (*given, other)) for row in rows}
                            assert len(keys) == len(both), (query, given, other)
                            checked += 1
    assert checked > 50
