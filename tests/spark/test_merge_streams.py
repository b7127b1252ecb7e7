"""MERGE as a stream: DuckDB's MERGE over the last change of each key is the oracle."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.derived.merge.stream import MergeStream
from headrace.errors import HeadraceError, SqlError, own_message
from headrace.ports import Publisher, Store
from headrace.streaming_sql.session import StreamingSql
from tests.conformance import serving
from tests.spark.sql_scripts import sql_session

COLUMNS = {"id": "long", "customer": "string", "price": "double", "note": "string"}
MIRROR = """MERGE INTO {target} t USING orders s ON t.id = s.id
    WHEN MATCHED AND s._change_type = 'delete' THEN DELETE
    WHEN MATCHED THEN UPDATE SET *
    WHEN NOT MATCHED AND s._change_type <> 'delete' THEN INSERT *"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with a table of orders, a tunnel of its changes, and tables to merge into."""
    opened = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    opened.create_table("orders", COLUMNS, "id", pre_images=True)
    opened.create_table("copy", COLUMNS, "id")
    opened.create_table("counts", {"nr": "long", "price": "double", "seen": "int not null", "note": "string"}, "nr")
    opened.create_table("customers", {"customer": "string", "id": "long"}, "customer")
    opened.create_queue("log", {"id": "long"})
    opened.create_tunnel("orders", "all", kind="Stream")
    return opened


@pytest.fixture
def session(spark: SparkSession, store: Store, tmp_path: Path) -> Iterator[StreamingSql]:
    with sql_session(spark, tmp_path / "workspace") as opened:
        tables = [("orders", "orders"), ("copy", "copy"), ("counts", "counts"), ("log", "log")]
        for name, table in tables:
            opened.run(f"CREATE TABLE {name} USING headrace OPTIONS (store='{store.url}', table='{table}')")
        opened.run("CREATE SCAN changes ON orders USING STREAM OPTIONS (tunnel='all')")
        yield opened


def rows(store: Store, table: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in store.table(table).scan().read_all().to_pylist()]


def orders_of(spark: SparkSession, store: Store) -> DataFrame:
    return spark.readStream.format("headrace").options(store=store.url, tunnel="all").load()


class Orders:
    """Random writes into the table of orders, and the last change of each key since the last reading."""

    def __init__(self, store: Store, seed: int) -> None:
        self._table = store.table("orders")
        self._random = random.Random(seed)
        self._current: dict[int, dict[str, Any]] = {}
        self._last: dict[int, dict[str, Any]] = {}

    def write(self, times: int) -> None:
        for _ in range(times):
            key = self._random.randrange(12)
            known = key in self._current
            if known and self._random.random() < 0.4:
                self._table.delete([{"id": key}])
                self._last[key] = {**self._current.pop(key), "_change_type": "delete"}
                continue
            row = {
                "id": key,
                "customer": self._random.choice("abc"),
                "price": self._random.choice([0.0, 1.0, 2.5, None]),
                "note": self._random.choice(["x", None]),
            }
            self._table.put([row])
            self._current[key] = row
            self._last[key] = {**row, "_change_type": "update_postimage" if known else "insert"}

    def last_changes(self) -> pa.Table:
        found, self._last = list(self._last.values()), {}
        fields = [("id", pa.int64()), ("customer", pa.string()), ("price", pa.float64()), ("note", pa.string())]
        return pa.Table.from_pylist(found, pa.schema([*fields, ("_change_type", pa.string())]))


# The division fails for most rows of the other branches.
COUNTS = """MERGE INTO counts AS t USING {source} AS s ON t.nr = s.id
    WHEN MATCHED AND s._change_type = 'delete' AND t.seen >= 2 THEN DELETE
    WHEN MATCHED AND s._change_type = 'delete' THEN UPDATE SET note = 'gone'
    WHEN MATCHED AND s.price > 0 THEN UPDATE SET price = s.price / s.price + 1 / s.price, t.seen = seen + 1
    WHEN MATCHED THEN UPDATE SET price = NULL, seen = t.seen + 1, note = s.note
    WHEN NOT MATCHED AND customer = 'c' AND price = 0 THEN INSERT (nr, seen) VALUES (s.id, 0)
    WHEN NOT MATCHED AND s._change_type <> 'delete' THEN INSERT (nr, price, note, seen)
      VALUES (id, price, customer || note, 1)"""


def test_a_merge_is_the_merge_of_the_last_changes_after_each_batch_also_after_failures(
    session: StreamingSql, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = duckdb.connect()
    oracle.execute("CREATE TABLE counts (nr BIGINT, price DOUBLE, seen INT, note VARCHAR)")
    orders = Orders(store, seed=7)
    publisher = type(store.publisher("any"))
    publish: Callable[..., bool] = publisher.publish
    failures: dict[int, str] = {1: "before", 2: "after"}

    def failing(self: Publisher, batch: int, *args: Any, **kwargs: Any) -> bool:
        failure = failures.pop(batch, None)
        if failure == "before":
            raise OSError("failed before publication")
        published = publish(self, batch, *args, **kwargs)
        if failure == "after":
            raise OSError("failed after publication")
        return published

    monkeypatch.setattr(publisher, "publish", failing)
    for number in range(4):
        orders.write(30)
        started = (
            "START STREAM totals"
            if number
            else f"CREATE STREAM totals OPTIONS (checkpointLocation='{tmp_path}/cp') " + COUNTS.format(source="changes")
        )
        fails = number in failures
        session.run(started, available_now=True)
        if fails:
            with pytest.raises(StreamingQueryException, match="publication"):
                session.wait(120)
            session.run("START STREAM totals", available_now=True)
        assert session.wait(120)
        changes = orders.last_changes()
        assert changes.num_rows
        oracle.register("source", changes)
        # DuckDB has no qualifiers on the left of an assignment.
        oracle.execute(COUNTS.format(source="source").replace("t.seen = ", "seen = "))
        expected = oracle.execute("SELECT * FROM counts ORDER BY nr").fetchall()
        assert rows(store, "counts") == expected
    assert not failures
    described = dict(session.run("DESCRIBE STREAM totals")[0].fetch())
    assert described["target"] == "counts"


def test_merge_in_python_moves_rows_whose_key_changes(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    text = """MERGE INTO customers t
        USING (SELECT customer, id, _change_type, _commit_version FROM changes WHERE customer IS NOT NULL) s
        ON t.customer = s.customer
        WHEN MATCHED AND s._change_type IN ('delete', 'update_preimage') THEN DELETE
        WHEN MATCHED THEN UPDATE SET id = s.id
        WHEN NOT MATCHED AND s._change_type NOT IN ('delete', 'update_preimage')
          THEN INSERT (customer, id) VALUES (customer, id)"""

    def run(statement: str = text, checkpoint: str = "cp") -> None:
        scans = {"changes": orders_of(spark, store)}
        stream = headrace.merge(
            spark, statement, scans=scans, store=store.url, checkpoint=tmp_path / checkpoint, name="customers"
        )
        stream.trigger(availableNow=True).start().awaitTermination()

    orders = store.table("orders")
    orders.put([{"id": 1, "customer": "a"}, {"id": 2, "customer": "b"}, {"id": 3, "customer": None}])
    run()
    assert rows(store, "customers") == [("a", 1), ("b", 2)]
    orders.update([{"id": 1, "customer": "c"}])
    orders.update([{"id": 2, "price": 1.0}])
    run()
    assert rows(store, "customers") == [("b", 2), ("c", 1)]
    assert not [view.name for view in spark.catalog.listTables() if view.name == "changes"]
    # Without commit versions, changes of a key have no order.
    orders.update([{"id": 2, "price": 2.0}])
    orders.update([{"id": 2, "price": 3.0}])
    unordered = """MERGE INTO copy t USING (SELECT id, price FROM changes) s ON t.id = s.id
        WHEN NOT MATCHED THEN INSERT (id, price) VALUES (s.id, s.price)"""
    store.create_tunnel("orders", "later", kind="Stream")
    with pytest.raises(StreamingQueryException, match="MERGE_CARDINALITY_VIOLATION"):
        run(unordered, "cp2")


BY_CUSTOMER = """MERGE INTO customers t
    USING (SELECT customer, id, _change_type, _commit_version FROM changes) s
    ON t.customer = s.customer
    WHEN MATCHED AND s._change_type IN ('delete', 'update_preimage') AND t.id = s.id THEN DELETE
    WHEN MATCHED AND s._change_type IN ('insert', 'update_postimage') THEN UPDATE SET id = s.id
    WHEN NOT MATCHED AND s._change_type IN ('insert', 'update_postimage')
      THEN INSERT (customer, id) VALUES (customer, id)"""


@pytest.mark.parametrize("limit", ["1000", "1"])
def test_rows_that_take_each_others_keys_keep_them(
    spark: SparkSession, store: Store, tmp_path: Path, limit: str
) -> None:
    orders = store.table("orders")
    scan = spark.readStream.format("headrace").options(store=store.url, tunnel="all", maxRowsPerChannel=limit)
    stream = headrace.merge(
        spark, BY_CUSTOMER, scans={"changes": scan.load()}, store=store.url, checkpoint=tmp_path / "cp"
    )
    query = stream.start()

    def merged(*names: tuple[int, str]) -> list[tuple[Any, ...]]:
        orders.put([{"id": key, "customer": name} for key, name in names])
        query.processAllAvailable()
        return rows(store, "customers")

    try:
        assert merged((1, "a"), (2, "b"), (3, "c")) == [("a", 1), ("b", 2), ("c", 3)]
        assert merged((1, "b"), (2, "a")) == [("a", 2), ("b", 1), ("c", 3)]
        assert merged((1, "c"), (2, "b"), (3, "d"), (4, "a")) == [("a", 4), ("b", 2), ("c", 1), ("d", 3)]
        orders.delete([{"id": 1}])
        assert merged((5, "c"), (2, "e")) == [("a", 4), ("c", 5), ("d", 3), ("e", 2)]
    finally:
        query.stop()


def test_create_stream_refuses_invalid_merges(session: StreamingSql, store: Store, tmp_path: Path) -> None:
    session.run(f"CREATE TABLE files USING parquet LOCATION '{tmp_path}/files' AS SELECT 1L AS id")
    session.run("CREATE SCAN batch_orders ON orders USING BATCH")
    cases = [
        ("INTO log t USING changes s ON t.id = s.id WHEN MATCHED THEN DELETE", "a queue only appends"),
        ("INTO files t USING changes s ON t.id = s.id WHEN MATCHED THEN DELETE", "must be a table of format"),
        ("INTO changes t USING changes s ON t.id = s.id WHEN MATCHED THEN DELETE", "can only be read"),
        ("INTO copy t USING batch_orders s ON t.id = s.id WHEN MATCHED THEN DELETE", "is not a stream"),
        ("INTO copy t USING changes s ON t.id = s.customer WHEN MATCHED THEN DELETE", "column 'id' has another type"),
        (
            "INTO copy t USING changes s ON t.id = s.id WHEN MATCHED THEN UPDATE SET price = s.note",
            "column 'price' has another type",
        ),
        (
            "INTO copy t USING changes s ON t.id = s.id WHEN MATCHED THEN UPDATE SET price = 1 "
            "WHEN NOT MATCHED THEN INSERT (id, price) VALUES (s.id, s.price)",
            "'price' have different types in the clauses",
        ),
        ("INTO copy t USING (SELECT id, id FROM changes) s ON t.id = s.id WHEN MATCHED THEN DELETE", "two columns"),
    ]
    for text, message in cases:
        with pytest.raises(HeadraceError, match=message):
            session.run(f"CREATE STREAM m OPTIONS (checkpointLocation='{tmp_path}/cp') MERGE {text}")
    with pytest.raises(HeadraceError, match="how rows are written"):
        session.run(
            f"CREATE STREAM m OPTIONS (checkpointLocation='{tmp_path}/cp', rowChange='update') "
            + MIRROR.format(target="copy").replace("orders", "changes")
        )
    with pytest.raises(HeadraceError, match="no complete mode"):
        session.run(
            f"CREATE STREAM m OPTIONS (checkpointLocation='{tmp_path}/cp', outputMode='complete') "
            + MIRROR.format(target="copy").replace("orders", "changes")
        )
    for condition in ("price > 1", "t.prize > 1", "s.id", "sum(s.id) > 1"):
        with pytest.raises(SqlError):
            session.run(
                f"CREATE STREAM m OPTIONS (checkpointLocation='{tmp_path}/cp') MERGE INTO copy t USING changes s "
                f"ON t.id = s.id WHEN MATCHED AND {condition} THEN DELETE"
            )
    assert not session.streams()


def test_a_store_without_transactions_gets_what_a_replay_cannot_change(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    endpoint, instance = serving.tablestore_endpoint(), "t" + uuid.uuid4().hex[:15]
    url = f"tablestore+{endpoint}/{instance}"
    options = {"accessKeyId": serving.KEY_ID, "accessKeySecret": serving.KEY_SECRET}

    def merged(statement: str, name: str = "cp") -> MergeStream:
        return headrace.merge(
            spark,
            statement,
            scans={"orders": orders_of(spark, store)},
            store=url,
            checkpoint=tmp_path / name,
            options=options,
        ).trigger(availableNow=True)

    with headrace.open(url, access_key_id=serving.KEY_ID, access_key_secret=serving.KEY_SECRET) as remote:
        remote.create_table("copy", COLUMNS, "id")
        for clauses in (
            "WHEN MATCHED THEN UPDATE SET price = t.price + s.price",
            "WHEN MATCHED THEN UPDATE SET note = 'u' WHEN NOT MATCHED THEN INSERT *",
        ):
            with pytest.raises(HeadraceError, match="no transactions, and a repeated batch"):
                merged(f"MERGE INTO copy t USING orders s ON t.id = s.id {clauses}")
        orders = Orders(store, seed=3)
        orders.write(30)
        for _ in range(2):
            merged(MIRROR.format(target="copy")).start().awaitTermination()
            assert rows(remote, "copy") == rows(store, "orders")
            orders.write(20)
        either = "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"
        with pytest.raises(StreamingQueryException) as caught:
            merged(f"MERGE INTO copy t USING orders s ON t.id = s.id {either}", "cp2").start().awaitTermination()
        assert "conditions that exclude each other" in (own_message(str(caught.value)) or str(caught.value))
