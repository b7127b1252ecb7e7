"""Followed queries at the edges: each either has the result over the current rows, or fails."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headrace
from headrace.errors import HeadraceError, own_message
from headrace.ports import Store, Table
from tests.spark.followed_histories import prepare
from tests.spark.following import Following

LONG = 2**62


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "shop", create=True, synchronous="off")


@pytest.fixture
def numbers(spark: SparkSession, store: Store) -> Table:
    """An empty table."""
    prepare(spark)
    return _numbers(store)


def _numbers(store: Store) -> Table:
    return store.create_table("numbers", {"id": "long", "g": "string", "k": "long"}, "id", pre_images=True)


def row(number: int, k: int | None, g: str | None = "a") -> dict[str, Any]:
    return {"id": number, "g": g, "k": k}


QUOTIENTS = ("SELECT id, 100 DIV k AS q FROM numbers", {"id": "long", "q": "long"}, "id")
SUMS = (
    "SELECT coalesce(g, '') AS g, sum(k) AS s, max(100 DIV k) AS q FROM numbers GROUP BY coalesce(g, '')",
    {"g": "string", "s": "long", "q": "long"},
    "g",
)
ALL = (
    "SELECT 'all' AS one, count(*) AS n, sum(k) AS s, min(g) AS low, count(DISTINCT g) AS d FROM numbers",
    {"one": "string", "n": "long", "s": "long", "low": "string", "d": "long"},
    "one",
)
LARGE = (
    "SELECT g, count(*) AS n FROM numbers WHERE g IS NOT NULL GROUP BY g HAVING count(*) > 1",
    {"g": "string", "n": "long"},
    "g",
)


def following(
    spark: SparkSession, store: Store, directory: Path, query: tuple[str, dict[str, str], str], **arguments: Any
) -> Following:
    sql, columns, key = query
    target = f"t{len(store.tables())}"
    store.create_table(target, columns, key)
    return Following(spark, store, sql, ["numbers"], target, directory, arguments=arguments)


def test_rows_that_come_and_go_within_a_batch_are_not_computed(
    spark: SparkSession, store: Store, numbers: Table, tmp_path: Path
) -> None:
    numbers.put([row(1, 4), row(2, 5)])
    with following(spark, store, tmp_path, QUOTIENTS) as rows, following(spark, store, tmp_path, SUMS) as groups:
        assert rows.advance() == rows.expected()
        assert groups.advance() == groups.expected()
        rows.stop()
        groups.stop()
        # Neither a row that is replaced nor one that is deleted is in the table, and a sum of all would not fit.
        numbers.put([row(1, 0), row(3, 0), row(4, LONG), row(5, LONG)])
        numbers.put([row(1, 20), row(4, 1)])
        numbers.delete([{"id": 3}, {"id": 5}, {"id": 2}])
        numbers.put([row(2, 0)])
        numbers.put([row(2, 50)])
        assert rows.advance() == rows.expected()
        assert groups.advance() == groups.expected()
        numbers.put([row(6, 0)])
        with pytest.raises(StreamingQueryException) as caught:
            rows.advance()
        message = own_message(str(caught.value)) or ""
        assert f"expression 100 DIV k of the query into {rows.target!r} fails for a row" in message
        assert "DIVIDE_BY_ZERO" in message
        assert "new checkpoint location, a new tunnel and overwrite" in message


def test_a_sum_fails_only_if_its_result_does_not_fit(
    spark: SparkSession, store: Store, numbers: Table, tmp_path: Path
) -> None:
    numbers.put([row(1, LONG), row(2, LONG), row(3, -LONG)])
    with following(spark, store, tmp_path, ALL) as query:
        assert [each["s"] for each in query.advance()] == [LONG]
        numbers.delete([{"id": 3}])
        with pytest.raises(StreamingQueryException, match="does not fit the type of the result"):
            query.advance()


def test_the_row_of_all_rows_exists_before_the_first_row_and_after_the_last_one(
    spark: SparkSession, store: Store, numbers: Table, tmp_path: Path
) -> None:
    with following(spark, store, tmp_path, ALL) as query:
        assert query.advance() == query.expected() == [{"one": "all", "n": 0, "s": None, "low": None, "d": 0}]
        numbers.put([row(1, 3)])
        assert query.advance() == query.expected()
        numbers.delete([{"id": 1}])
        assert query.advance() == query.expected()


def test_long_groups_enter_and_leave_a_result_with_having(
    spark: SparkSession, store: Store, numbers: Table, tmp_path: Path
) -> None:
    groups = ["x" * 600 + "1", "x" * 600 + "2", "\x00", ""]
    with following(spark, store, tmp_path, LARGE) as query:
        for count in (1, 2, 0, 3, 1):
            numbers.delete([{"id": number} for number in range(20)])
            numbers.put([row(number, 1, groups[number % 4]) for number in range(count * 4)])
            assert query.advance() == query.expected()


def test_maps_are_equal_in_any_order_of_their_entries(
    spark: SparkSession, store: Store, numbers: Table, tmp_path: Path
) -> None:
    maps = "IF(id % 2 = 0, map('a', k, 'b', 0.0D), map('b', -0.0D, 'a', k))"
    sql = (
        "SELECT 'all' AS one, count(DISTINCT m) AS n, count(DISTINCT struct(m)) AS s, count(DISTINCT array(m), g) AS a "
        f"FROM (SELECT g, {maps} AS m FROM (SELECT * EXCEPT (k), CAST(k AS DOUBLE) AS k FROM numbers))"
    )
    numbers.put([row(1, 5), row(2, 5), row(3, 6), row(4, None), row(5, None)])
    columns = {"one": "string", "n": "long", "s": "long", "a": "long"}
    with following(spark, store, tmp_path, (sql, columns, "one")) as query:
        assert query.advance() == query.expected() == [{"one": "all", "n": 3, "s": 3, "a": 3}]
        numbers.delete([{"id": 1}, {"id": 3}, {"id": 4}])
        assert query.advance() == query.expected() == [{"one": "all", "n": 2, "s": 2, "a": 2}]


def test_two_queries_do_not_share_a_target(spark: SparkSession, store: Store, numbers: Table, tmp_path: Path) -> None:
    numbers.put([row(1, 3)])
    with following(spark, store, tmp_path, ALL) as first:
        first.start()
        second = Following(spark, store, ALL[0], ["numbers"], first.target, tmp_path / "other", tunnels="other")
        try:
            with second:
                second.advance()
            failed = None
        except (HeadraceError, StreamingQueryException) as error:
            failed = error
        if failed is None:
            with pytest.raises(StreamingQueryException, match="another query"):
                first.advance()
        else:
            assert first.advance() == first.expected()


def test_a_table_that_was_dropped_and_created_again_is_not_followed_further(
    spark: SparkSession, store: Store, numbers: Table, tmp_path: Path
) -> None:
    numbers.put([row(1, 3), row(2, 3)])
    with following(spark, store, tmp_path, ALL) as query:
        assert query.advance() == query.expected()
        query.stop()
        store.drop_table("numbers")
        _numbers(store).put([row(1, 4)])
        with pytest.raises((HeadraceError, StreamingQueryException), match=r"numbers|tunnel"):
            query.advance()


def test_a_query_without_its_checkpoint_needs_another_tunnel(
    spark: SparkSession, store: Store, numbers: Table, tmp_path: Path
) -> None:
    numbers.put([row(1, 3), row(2, 3)])
    with following(spark, store, tmp_path, ALL) as query:
        assert query.advance() == query.expected()
        numbers.put([row(1, 5)])
        numbers.delete([{"id": 2}])
        assert query.advance() == query.expected()
        query.stop()
        shutil.rmtree(tmp_path / query.target)
        numbers.put([row(3, 7)])
        with pytest.raises(HeadraceError, match="needs an empty target"):
            query.start()
        query.arguments = {"overwrite": True}
        with pytest.raises(StreamingQueryException, match="create a new tunnel"):
            query.advance()
        query.stop()
        shutil.rmtree(tmp_path / query.target)
        store.drop_tunnel(f"{query.target}_numbers", "numbers")
        assert query.advance() == query.expected()
