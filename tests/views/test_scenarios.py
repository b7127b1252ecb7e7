"""Random queries over random tables: an engine equals the oracle after every batch, and faults get short queries."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from headrace.testing.effort import THOROUGH
from tests.views.faulty import Linear
from tests.views.grammar import Grammar, random_tables
from tests.views.queries import smaller
from tests.views.rules import Recomputed
from tests.views.scenarios import Failure, Outcome, Scenario, outcomes, random_scenario, shortest

_SCENARIOS = range(100 if THOROUGH else 1)


def test_answers_that_are_computed_again_are_those_of_the_oracle() -> None:
    for seed in _SCENARIOS:
        scenario = random_scenario(seed)
        assert _failures(outcomes(Recomputed, scenario)) == [], f"seed {seed}"


def test_a_scenario_depends_only_on_its_seed() -> None:
    assert random_scenario(7) == random_scenario(7)


def test_a_faulty_engine_gets_a_short_query() -> None:
    # Many fail; one of middle length is shortened.
    failed = sorted(_failed(random_scenario(0)), key=lambda each: len(str(each.queries[0])))
    long = failed[len(failed) // 2]
    short = shortest(Linear, long)
    assert len(str(short.queries[0])) < min(200, len(str(long.queries[0]))), short
    assert len(short.batches) <= 1
    assert sum(map(len, short.rows.values())) + sum(map(len, short.batches)) <= 6


def test_queries_have_every_construct() -> None:
    texts = []
    for seed in range(400):
        rng = random.Random(seed)
        texts.append(str(Grammar(rng, random_tables(rng)).query()))
    for construct in (
        "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN", "CROSS JOIN", " IN (SELECT", "NOT IN (SELECT",
        "NOT EXISTS (", "EXISTS (", "= (SELECT", "DISTINCT", "UNION ALL", "UNION (", "INTERSECT", "EXCEPT", "HAVING",
        "GROUP BY", "ROLLUP", "CUBE", "row_number()", "rank()", "lag(", "LIMIT", "WITH w", "IS NOT DISTINCT FROM",
        "sum(DISTINCT", "FILTER", "BETWEEN", "CASE WHEN", "LATERAL (", "LATERAL explode(",
        "SELECT explode(", "USING", "median(", ") IN (SELECT",
    ):  # fmt: skip
        assert any(construct in text for text in texts), construct
    assert max(text.count("SELECT") for text in texts) > 6


def test_smaller_queries_are_shorter() -> None:
    rng = random.Random(11)
    query = Grammar(rng, random_tables(rng)).query()
    for other in smaller(query):
        assert len(str(other)) <= len(str(query)) + len("CROSS ")


def _failed(scenario: Scenario) -> list[Scenario]:
    """Return the scenario with each query with which the faulty engine fails."""
    found = outcomes(Linear, scenario)
    return [
        replace(scenario, queries=(query,))
        for query, outcome in zip(scenario.queries, found, strict=True)
        if isinstance(outcome, Failure)
    ]


def _failures(found: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in found if outcome != "right"]
