"""The oracle of kept views over TPC-H: its answers are not empty, its batches have every change, it notices faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.testing.effort import THOROUGH
from tests.views.changes import Changer, apply
from tests.views.gathering import Fault, Gathering
from tests.views.rules import Comparison, Recomputed, WrongAnswer
from tests.views.tables import Database
from tests.views.tpch_data import TABLES, tpch
from tests.views.tpch_queries import queries

_SCALE = 0.01 if THOROUGH else 0.001
_BATCHES = 20 if THOROUGH else 2
# They cover every kind of block.
_QUERIES = list(queries(_SCALE)) if THOROUGH else ["q3", "q13", "q16", "q17", "q21", "q22"]


def test_each_query_of_tpch_has_an_answer_that_is_not_empty() -> None:
    with Database(TABLES, tpch(_SCALE)) as database:
        for name, query in queries(_SCALE).items():
            answer = database.query(query.sql)
            assert answer.num_rows, name
            assert all(column.null_count < len(column) for column in answer), name
            keys = answer.select(query.key).to_pylist()
            assert len({tuple(key.values()) for key in keys}) == answer.num_rows, name


def test_views_of_tpch_equal_the_oracle_after_every_batch() -> None:
    with Database(TABLES, tpch(_SCALE)) as database:
        views = {name: queries(_SCALE)[name].top for name in _QUERIES}
        comparison = Comparison(Recomputed, views, database)
        changer = Changer(database, seed=1)
        for number in range(_BATCHES):
            comparison.play(changer.batch(200), f"batch {number}")


def test_keys_are_never_null_without_nulls_in_their_columns() -> None:
    chosen = queries(_SCALE)
    columns = frozenset(column for query in chosen.values() for column in query.null_keys)
    with Database(TABLES, tpch(_SCALE)) as database:
        changer = Changer(database, seed=2, not_null=columns)
        for _ in range(_BATCHES):
            apply(database, changer.batch(300))
            for name, query in chosen.items():
                keys = [tuple(key.values()) for key in database.query(query.sql).select(query.key).to_pylist()]
                assert len(set(keys)) == len(keys), name
                assert not any(None in key for key in keys), name


def test_batches_have_every_kind_of_change() -> None:
    with Database(TABLES, tpch(0.001)) as database:
        changer, seen = Changer(database, seed=3), set()
        for _ in range(3):
            batch = changer.batch(400)
            seen |= {(change.table, change.kind) for change in batch}
            keys = [
                (change.table, database.tables[change.table].key_of(row)) for change in batch for row in change.rows
            ]
            assert len(set(keys)) < len(keys)
            deltas = apply(database, batch)
            assert sum(delta.removed.num_rows + delta.added.num_rows for delta in deltas.values()) < 2 * len(batch)
        assert seen >= {(name, kind) for name in TABLES for kind in ("put", "update", "delete")}
        orphans = database.query("SELECT count(*) AS n FROM lineitem ANTI JOIN orders ON l_orderkey = o_orderkey")
        assert orphans["n"][0].as_py()
        assert database.query("SELECT count(*) AS n FROM lineitem WHERE l_suppkey IS NULL")["n"][0].as_py()


_EDGES = (
    (("nation", "n_nationkey"), ("customer", "c_nationkey")),
    (("customer", "c_custkey"), ("orders", "o_custkey")),
)
_ANTI = """
SELECT c_custkey, n_name FROM customer JOIN nation ON c_nationkey = n_nationkey
WHERE NOT EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey AND o_orderpriority = '1-URGENT')
"""
_LEFT = """
SELECT c_custkey, o_orderkey, n_name FROM customer JOIN nation ON c_nationkey = n_nationkey
LEFT JOIN orders ON o_custkey = c_custkey AND o_totalprice > 100000
"""
_NOT_IN = (
    "SELECT c_custkey FROM customer WHERE c_nationkey NOT IN (SELECT s_nationkey FROM supplier WHERE s_acctbal > 0)"
)
_LISTS = Gathering(
    [(("customer", "c_nationkey"), ("supplier", "s_nationkey"))], ("supplier",), [("supplier", "s_nationkey")]
)


@pytest.mark.parametrize(
    ("sql", "engine", "faults"),
    [
        (_ANTI, Gathering(_EDGES, ("orders",)), ("no completion", "old rows stay", "one way")),
        (_LEFT, Gathering(_EDGES, ("orders",)), ("no completion", "old rows stay", "one way")),
        (_NOT_IN, _LISTS, ("nulls of lists", "old rows stay")),
    ],
    ids=["anti", "left", "not in"],
)
def test_faults_of_an_engine_are_noticed(sql: str, engine: Gathering, faults: Sequence[Fault]) -> None:
    _play(sql, engine)
    for fault in faults:
        with pytest.raises(WrongAnswer):
            _play(sql, replace(engine, fault=fault))


def _play(sql: str, engine: Gathering) -> None:
    with Database(TABLES, tpch(0.001)) as database:
        comparison = Comparison(engine, {"view": sql}, database)
        changer = Changer(database, seed=4, weights={"lineitem": 0, "part": 0, "partsupp": 0, "supplier": 40})
        for number in range(4):
            comparison.play(changer.batch(80), f"batch {number}")
