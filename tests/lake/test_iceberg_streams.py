"""Streams of Spark into Iceberg tables, read by pyiceberg."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headrace
from headrace.ports import Store
from tests.lake.icebergs import rows_of, url_of, use_postgres
from tests.lake.streaming import ONCE, change, reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["sqlite", "postgresql"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgresql":
        use_postgres(tmp_path / "lake")
    with headrace.open(url_of(tmp_path / "lake"), create=True, warehouse=str(tmp_path / "lake")) as store:
        yield store


def test_a_followed_query_with_its_state_in_the_home(
    spark: SparkSession, tmp_path: Path, shop: Store, lake: Store
) -> None:
    shop.create_tunnel("orders", "totals")
    lake.create_table("totals", {"user": "string", "orders": "long", "n": "long"}, "user")
    for attempt in ("the start", "a restart"):
        query = headrace.follow(
            spark,
            "SELECT user, count(*) AS orders, sum(n) AS n FROM o GROUP BY user",
            scans={"o": reader(spark, shop, "totals", readAs="table")},
            store=lake.url,
            table="totals",
            options={"icebergWarehouse": str(tmp_path / "lake")},
            checkpoint=tmp_path / "checkpoint",
            trigger=ONCE,
        )
        query.start().awaitTermination()
        if attempt == "the start":
            assert list(lake.table("totals")) == [
                {"user": "u0", "orders": 3, "n": 6},
                {"user": "u1", "orders": 3, "n": 9},
            ]
            change(shop)
    assert rows_of(tmp_path / "lake", "totals") == [
        {"user": "u0", "orders": 3, "n": 16},
        {"user": "u1", "orders": 2, "n": 8},
        {"user": "u2", "orders": 1, "n": 6},
    ]
