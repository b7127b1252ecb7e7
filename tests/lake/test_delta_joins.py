"""A followed join into a Delta table, whose rows and state are in the home: killed at each step, read by delta-rs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

import headrace
from headrace.support import failpoints
from headrace.testing.effort import THOROUGH
from tests.lake.lakes import foreign
from tests.spark.followed_histories import prepare
from tests.spark.following import Following
from tests.spark.test_gathered_queries import QUERIES, Shop, tables_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The home has steps of its own before those of the Delta table: its transaction decides the batch.
STEPS: tuple[tuple[str, int], ...] = (("rows-written", 1), ("intent-written", 1), ("marker-written", 2))
if THOROUGH:
    STEPS += (("rows-staged", 1), ("marker-written", 1), ("rows-written", 2), ("parts-written", 1), ("published", 1))


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
def test_a_join_that_is_killed_continues_with_its_state(
    spark: SparkSession, tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    prepare(spark)
    sql, columns, key = QUERIES[name]
    with headrace.open(f"delta://{tmp_path}/lake", create=True) as lake:
        lake.create_table(name, columns, key)
        with Following(spark, shop.store, sql, tables_in(sql), name, tmp_path, sink=lake) as query:
            assert query.advance() == query.expected()
            for point, times in STEPS:
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
