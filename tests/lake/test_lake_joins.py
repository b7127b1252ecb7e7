"""Followed joins into partitioned lake tables, killed at steps of their batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import headrace
from headrace.support import failpoints
from headrace.testing.effort import THOROUGH
from headrace_lake.maintenance import LakeStore
from tests.lake import icebergs
from tests.lake.ducklakes import catalog, database, opened
from tests.lake.lakes import foreign
from tests.spark.followed_histories import prepare
from tests.spark.following import Following
from tests.spark.test_gathered_queries import QUERIES, Shop, tables_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The home, which has the state, decides the batch in a transaction with steps of its own, before those of the table.
DELTA_STEPS: tuple[tuple[str, int], ...] = (("rows-written", 1), ("intent-written", 1), ("marker-written", 2))
if THOROUGH:
    DELTA_STEPS += (
        ("rows-staged", 1),
        ("marker-written", 1),
        ("rows-written", 2),
        ("parts-written", 1),
        ("published", 1),
    )


class Killed(Exception):
    """Ends a publication at one of its steps, as the death of the driver does, without the start of another one."""


def killing(wanted: str, times: int) -> Callable[[str], None]:
    """Return a function for `failpoints.reach` that fails when a step is reached for the n-th time."""
    left = times

    def reach(point: str) -> None:
        nonlocal left
        left -= point == wanted
        if point == wanted and not left:
            raise Killed(point)

    return reach


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with headrace.open(tmp_path / "shop", create=True, synchronous="off") as store:
        yield Shop(store)


@pytest.mark.parametrize("name", ["by_nation", "without_large_orders"] if THOROUGH else ["by_nation"])
def test_a_join_into_delta_that_is_killed_continues_with_its_state(
    spark: SparkSession, tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    prepare(spark)
    sql, columns, key = QUERIES[name]
    with headrace.open(f"delta://{tmp_path}/lake", create=True) as lake:
        # Many rows of a batch move to another partition.
        lake.create_table(name, columns, key, partition_by=list(columns)[1])
        with Following(spark, shop.store, sql, tables_in(sql), name, tmp_path, sink=lake) as query:
            assert query.advance() == query.expected()
            for point, times in DELTA_STEPS:
                shop.change()
                with monkeypatch.context() as patch:
                    patch.setattr(failpoints, "reach", killing(point, times))
                    with pytest.raises(StreamingQueryException, match=point):
                        query.advance()
                query.restart()
                # Another program rewrites the files meanwhile.
                foreign(tmp_path / "lake", name).optimize.compact()
                shop.change()
                assert query.advance() == query.expected(), (point, times)
            assert foreign(tmp_path / "lake", name).to_pyarrow_table().sort_by(str(key)).to_pylist() == query.expected()


@pytest.mark.parametrize("system", ["ducklake", "iceberg"])
def test_rows_files_and_marker_of_a_join_beside_a_database_agree_at_every_kill(
    spark: SparkSession, tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    prepare(spark)
    sql, columns, key = QUERIES["by_nation"]
    url = database() if system == "ducklake" else icebergs.use_postgres(tmp_path)
    arguments = {} if system == "ducklake" else {"options": {"icebergWarehouse": str(tmp_path)}}

    def batches() -> int:
        ((number,),) = catalog(url, "SELECT sum(batch + 1) FROM headrace.marker")
        return int(number)

    with opened(url, tmp_path) if system == "ducklake" else icebergs.opened(tmp_path) as lake:
        assert isinstance(lake, LakeStore)
        lake.create_table("by_nation", columns, key, partition_by="orders")

        def rows() -> list[dict[str, Any]]:
            return list(lake.table("by_nation"))

        with Following(
            spark, shop.store, sql, tables_in(sql), "by_nation", tmp_path, sink=lake, arguments=arguments
        ) as query:
            assert query.advance() == query.expected()
            query.restart()
            shop.change()
            steps: list[str] = []
            with monkeypatch.context() as patch:
                patch.setattr(failpoints, "reach", steps.append)
                query.advance()
            assert {"rows-staged", "rows-written"} < set(steps)
            for point in dict.fromkeys(steps) if THOROUGH else ("marker-written", "published"):
                query.stop()
                shop.change()
                before, number, after = rows(), batches(), query.expected()
                assert before != after
                with monkeypatch.context() as patch:
                    patch.setattr(failpoints, "reach", killing(point, 1))
                    with pytest.raises((StreamingQueryException, Killed), match=point):
                        query.advance()
                assert rows() == (after if batches() > number else before), point
                query.stop()
                lake.maintenance("by_nation").compact()
                shop.change()
                assert query.advance() == query.expected(), point
