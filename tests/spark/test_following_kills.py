"""A followed query is killed at each step of its batches: it continues with the right target and the right state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headrace
from headrace.ports import Table
from headrace.support import failpoints
from headrace.testing.effort import THOROUGH
from tests.spark.followed_histories import prepare
from tests.spark.following import Following
from tests.spark.test_following_stores import COLUMNS, TOTALS, sink
from tests.spark_session import processes_with

# A task stages rows of the target, then of the state, in a step each. A store without transactions shows them at once.
IN_TASKS = ["rows-staged:1", "rows-staged:2", "rows-staged:3"] if THOROUGH else ["rows-staged:2"]
IN_DRIVER = ["rows-written", "marker-written", "published"] if THOROUGH else ["rows-written", "published"]


class Killed(Exception):
    """Ends a publication at one of its steps, as the death of the driver does, without the start of another one."""


@pytest.mark.parametrize("kind", ["embedded", "tablestore"])
def test_a_query_killed_at_any_step_continues_with_its_state(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    prepare(spark)
    store = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    orders = store.create_table("orders", {"id": "long", "user": "string", "price": "double"}, "id", pre_images=True)
    orders.put([{"id": n, "user": f"u{n % 3}", "price": float(n)} for n in range(12)])
    with sink(kind, tmp_path) as to:
        to.store.create_table("totals", COLUMNS, "user")
        arguments = {"options": to.options}
        query = Following(spark, store, TOTALS, ["orders"], "totals", tmp_path, sink=to.store, arguments=arguments)
        with query:
            assert query.advance() == query.expected()
            for number, point in enumerate([*IN_TASKS, *IN_DRIVER]):
                # A group loses its greatest value, another one goes, and a new one comes.
                _change(orders, number)
                query.restart()
                if point in IN_TASKS:
                    with processes_with(spark, **{failpoints.VARIABLE: point}), pytest.raises(StreamingQueryException):
                        query.advance()
                else:
                    with monkeypatch.context() as patch:
                        patch.setattr(failpoints, "reach", killing(point))
                        with pytest.raises(StreamingQueryException, match=point):
                            query.advance()
                query.restart()
                assert query.advance() == query.expected(), point


def _change(orders: Table, number: int) -> None:
    highest = max(orders.scan().read_all().to_pylist(), key=lambda row: row["price"])
    orders.delete([{"id": highest["id"]}])
    orders.put([{"id": n, "user": f"v{number}", "price": n / 2} for n in range(number, 12, 3)])


def killing(wanted: str) -> Callable[[str], None]:
    def reach(point: str) -> None:
        if point == wanted:
            raise Killed(point)

    return reach
