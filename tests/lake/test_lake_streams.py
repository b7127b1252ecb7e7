"""Streams of Spark into lake tables of each format. delta-rs reads those of Delta Lake, pyiceberg those of Iceberg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import headrace
from headrace.ports import Store
from headrace.support import failpoints
from tests.lake import ducklakes, icebergs
from tests.lake.lakes import rows_of
from tests.lake.streaming import ONCE, change, reader
from tests.lake.test_lake_joins import Killed, killing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["delta", "ducklake", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "delta":
        with headrace.open(f"delta://{tmp_path}/lake", create=True) as store:
            yield store
    elif request.param == "iceberg":
        with headrace.open(icebergs.url_of(tmp_path / "lake"), create=True) as store:
            yield store
    else:
        with ducklakes.opened(ducklakes.database(), tmp_path) as store:
            yield store


def content(lake: Store, table: str) -> list[dict[str, Any]]:
    scheme, _, directory = lake.url.partition("://")
    if scheme == "iceberg+sqlite":
        return icebergs.rows_of(Path(directory).parent, table)
    return rows_of(Path(directory), table) if scheme == "delta" else list(lake.table(table))


def test_a_mirror_and_its_history(spark: SparkSession, tmp_path: Path, shop: Store, lake: Store) -> None:
    lake.create_table("orders", {"id": "long", "user": "string", "n": "long"}, "id", partition_by=["user", "n"])
    for attempt in ("the start", "a restart"):
        for history in (False, True):
            mirror = headrace.mirror(
                spark,
                source=shop.url,
                table="orders",
                to=lake.url,
                to_table="versions" if history else "orders",
                history=history,
                checkpoint=tmp_path / f"checkpoint-{history}",
                trigger=ONCE,
            )
            mirror.start().awaitTermination()
        if attempt == "the start":
            change(shop)
            shop.table("orders").add_columns({"note": "string"})
            for number in (6, 7):
                shop.table("orders").put([{"id": 7, "user": "u1", "n": number, "note": "new"}])
    assert content(lake, "orders") == list(shop.table("orders"))
    versions = content(lake, "versions")
    current = [row for row in versions if row["is_current"]]
    assert [{name: row[name] for name in ("id", "user", "n", "note")} for row in current] == list(shop.table("orders"))
    assert [(row["id"], row["n"]) for row in versions if not row["is_current"]] == [(0, 0), (1, 1), (7, 6)]
    assert headrace.diff_tables(shop.table("orders"), lake.table("orders")).changed == 0


@pytest.mark.parametrize("history", [False, True])
def test_a_mirror_that_dies_before_a_table_has_its_new_column_starts_again(
    spark: SparkSession, tmp_path: Path, shop: Store, lake: Store, monkeypatch: pytest.MonkeyPatch, history: bool
) -> None:
    def follow() -> None:
        mirror = headrace.mirror(
            spark,
            source=shop.url,
            table="orders",
            to=lake.url,
            history=history,
            checkpoint=tmp_path / "checkpoint",
            trigger=ONCE,
        )
        mirror.start().awaitTermination()

    follow()
    orders = shop.table("orders")
    # The batch is decided before its tables are changed, or with them.
    for point in ("intent-written", "rows-written", "marker-written"):
        name = point.replace("-", "_")
        orders.add_columns({name: "string"})
        orders.put([{"id": 7, "user": "u1", "n": len(orders.schema.names), name: "new"}])
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "reach", killing(point, 1))
            with suppress(StreamingQueryException, Killed):
                follow()
        follow()
        rows = [row for row in content(lake, "orders") if row.get("is_current", True)]
        assert [{name: row[name] for name in orders.schema.names} for row in rows] == list(orders), point


def test_merge_and_several_outputs(spark: SparkSession, tmp_path: Path, shop: Store, lake: Store) -> None:
    for name in ("last", "small", "large"):
        lake.create_table(name, {"id": "long", "n": "long"}, "id", partition_by="n")
        shop.create_tunnel("orders", name)
    statement = """
        MERGE INTO last AS t USING changes AS s ON t.id = s.id
        WHEN MATCHED AND s._change_type = 'delete' THEN DELETE
        WHEN MATCHED THEN UPDATE SET n = s.n
        WHEN NOT MATCHED AND s._change_type <> 'delete' THEN INSERT (id, n) VALUES (s.id, s.n)
    """
    outputs = [
        headrace.Output(table="small", select=lambda rows: rows.where("n < 3").select("id", "n")),
        headrace.Output(table="large", select=lambda rows: rows.where("n >= 3").select("id", "n")),
    ]
    for attempt in ("the start", "a restart"):
        scans = {"changes": reader(spark, shop, "last")}
        merge = headrace.merge(spark, statement, scans=scans, store=lake.url, checkpoint=tmp_path / "merge")
        merge.trigger(**ONCE).start().awaitTermination()
        rows = reader(spark, shop, "small").where("_change_type IN ('insert', 'update_postimage')")
        writer = headrace.write_stream(
            rows, store=lake.url, outputs=outputs, checkpoint=tmp_path / "outputs", trigger=ONCE
        )
        writer.start().awaitTermination()
        if attempt == "the start":
            change(shop)
    present = [{"id": row["id"], "n": row["n"]} for row in shop.table("orders")]
    assert content(lake, "last") == present
    # A row that grows is in both, and nothing deletes a row.
    assert [row["id"] for row in content(lake, "small")] == [0, 1, 2]
    assert [row["id"] for row in content(lake, "large")] == [1, 3, 4, 5, 6]


def test_complete_mode_batches_and_sql(spark: SparkSession, tmp_path: Path, shop: Store, lake: Store) -> None:
    shop.create_tunnel("orders", "counts", "BaseData")
    lake.create_table("counts", {"user": "string", "count": "long"}, "user").put([{"user": "old", "count": 1}])
    counts = reader(spark, shop, "counts").groupBy("user").count()
    # The home of the lake keeps the checkpoint.
    stream = headrace.write_stream(counts, name="counts", store=lake.url, table="counts", mode="complete", trigger=ONCE)
    stream.start().awaitTermination()
    assert list(lake.table("counts")) == [{"user": "u0", "count": 3}, {"user": "u1", "count": 3}]
    sql = headrace.sql(spark, tmp_path / "workspace")
    sql.run(f"CREATE TABLE counts USING headrace OPTIONS (store = '{lake.url}', table = 'counts')")
    sql.run("INSERT INTO counts SELECT 'u9' AS user, 9L AS count")
    assert sql.run("SELECT sum(count) FROM counts")[0].fetch()[0][0] == 15
    frame = spark.read.format("headrace").options(store=lake.url, table="counts").load()
    frame.where("user = 'u9'").write.format("headrace").options(store=lake.url, table="counts").mode("overwrite").save()
    assert list(lake.table("counts")) == [{"user": "u9", "count": 9}]
    sql.run(
        "CREATE TABLE days (id BIGINT, day INT, PRIMARY KEY (id)) USING headrace PARTITIONED BY (day)"
        f" OPTIONS (store = '{lake.url}')"
    )
    ((shown,),) = sql.run("SHOW CREATE TABLE days")[0].fetch()
    assert "USING headrace PARTITIONED BY (`day`) OPTIONS (" in shown
    sql.run("INSERT INTO days (id, day) VALUES (1, 7), (2, 8)")
    assert list(lake.table("days")) == [{"id": 1, "day": 7}, {"id": 2, "day": 8}]
    directories = {path.name for path in (tmp_path / "lake").rglob("day=*")}
    assert directories == ({"day=7", "day=8"} if lake.url.startswith("delta:") else set())
