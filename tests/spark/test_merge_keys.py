"""The row that counts for each key of a MERGE, of random changes by which rows take keys of others: a plain model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace.derived.merge.batches import sql_over
from headrace.derived.merge.queries import MergeQueries
from headrace.model.tables.schema import TableSchema
from tests.unit.test_merge_grammar import plan

# A history is the names of some rows and free names (None: the row does not exist), and commits that exchange them.
_ROWS, _PLACES = 5, 8
_exchanges = st.lists(st.tuples(st.integers(0, _PLACES - 1), st.integers(0, _PLACES - 1)), min_size=1, max_size=4)
_histories = st.tuples(
    st.permutations(["a", "b", "c", "d", "e", None, None, None]),
    st.lists(st.tuples(_exchanges, st.booleans()), min_size=1, max_size=4),
)
History: TypeAlias = "tuple[list[str | None], list[tuple[list[tuple[int, int]], bool]]]"
Event: TypeAlias = "tuple[str, int, str, int]"

TARGET = TableSchema.of({"history": "long", "name": "string", "id": "long"}, ["history", "name"])
SOURCE = ("history", "name", "id", "_change_type", "_commit_version")
CLAUSES = "WHEN MATCHED AND s._change_type IN ('delete', 'update_preimage') THEN DELETE WHEN MATCHED THEN UPDATE SET *"
DDL = "name STRING, id LONG, _change_type STRING, _commit_version LONG, history LONG"


def events(history: History) -> Iterator[Event]:
    """Yield the changes of a history: name, row, type and commit."""
    places, commits = list(history[0]), history[1]
    for version, (exchanges, backwards) in enumerate(commits):
        before = places[:_ROWS]
        for one, other in exchanges:
            places[one], places[other] = places[other], places[one]
        for row in sorted(range(_ROWS), reverse=backwards):
            old, new = before[row], places[row]
            if old is not None and old != new:
                yield old, row, "delete" if new is None else "update_preimage", version
            if new is not None and old != new:
                yield new, row, "insert" if old is None else "update_postimage", version


def final(history: History) -> dict[str, int]:
    """Return the row of each name after all commits."""
    places = list(history[0])
    for one, other in (each for exchanges, _ in history[1] for each in exchanges):
        places[one], places[other] = places[other], places[one]
    return {name: row for row, name in enumerate(places[:_ROWS]) if name is not None}


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories=st.lists(_histories, min_size=1, max_size=100))
def test_each_key_gets_the_row_that_has_it_at_the_end_of_the_batch(
    spark: SparkSession, histories: list[History]
) -> None:
    on = "ON t.history = s.history AND t.name = s.name"
    queries = MergeQueries(
        plan(CLAUSES, on=on, target=TARGET, source=SOURCE, row_key=("id",)), SOURCE, TARGET.primary_key, ("id",)
    )
    changes = [(*event, number) for number, history in enumerate(histories) for event in events(history)]
    # One partition keeps the order of the changes, as the task of a channel does.
    batch = spark.createDataFrame(changes, DDL).coalesce(1).select(*SOURCE)
    found = sql_over(spark, queries.keyed, batch).select("history", "name", "id", "_change_type").collect()
    target = {
        (number, name): row
        for number, (places, _) in enumerate(histories)
        for row, name in enumerate(places[:_ROWS])
        if name is not None
    }
    assert len(found) == len({(change.history, change.name) for change in found})
    for change in found:
        if change._change_type in ("delete", "update_preimage"):
            # A row that takes a free key and gives it up again matches nothing.
            target.pop((change.history, change.name), None)
        else:
            target[change.history, change.name] = change.id
    assert target == {
        (number, name): row for number, history in enumerate(histories) for name, row in final(history).items()
    }


@pytest.mark.parametrize(
    ("key", "row_key", "expected"),
    [("name", ("id",), ("id",)), ("id", ("id",), ()), ("id", ("id", "name"), ("name",)), ("name", (), ())],
)
def test_source_rows_are_told_apart_where_a_key_can_have_several(
    key: str, row_key: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    target = TableSchema.of({"k": "string"}, "k")
    clauses = "WHEN MATCHED THEN DELETE"
    assert plan(clauses, on=f"ON t.k = s.{key}", target=target, source=SOURCE, row_key=row_key).row_key == expected
    assert not plan(clauses, on=f"ON t.k = s.{key}", target=target, source=("id", "name"), row_key=row_key).row_key
