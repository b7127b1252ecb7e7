"""The number of columns and the nesting of their types are checked at their declaration, the same in all places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.errors import HeadraceError, SchemaError, SqlError, UnsupportedError
from headrace.model.tables.column_limits import MAX_COLUMNS
from headrace.model.tunnels.values import Start
from headrace.model.types import MAX_NESTING, parse_type
from headrace.stores.embedded.store import EmbeddedStore
from headrace.streaming_sql.language.grammar import parse
from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.rows.single_rows import put_row
from headrace_tablestore.endpoint.tables.table_operations import create_table
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.plainbuffer.rows import encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, Row
from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.store.schemas import QueueLayout, TableLayout
from headrace_ytsaurus.wire.types import YtColumn
from tests.unit.conftest import Run
from tests.ytsaurus.unit.ytsaurus_cluster import call

KINDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "array": ("array<{}>", lambda value: [value]),
    "map": ("map<string,{}>", lambda value: [("k", value)]),
    "struct": ("struct<a:{}>", lambda value: {"a": value}),
}
TOO_DEEP = "nested too deep"
TOO_MANY = rf"too many columns.*received: \d+.*at most {MAX_COLUMNS}"


def nested(kind: str, levels: int) -> tuple[str, Any]:
    """Return a type with this number of levels, and a value of it."""
    name, value = "long", 1
    for _ in range(levels):
        name, value = KINDS[kind][0].format(name), KINDS[kind][1](value)
    return name, value


def arrow(levels: int) -> pa.DataType:
    data_type = pa.int64()
    for _ in range(levels):
        data_type = pa.list_(data_type)
    return data_type


def wide(columns: int, kind: str = "string") -> dict[str, str]:
    return {"id": "long"} | {f"c{number}": kind for number in range(columns - 1)}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[EmbeddedStore]:
    store = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    assert isinstance(store, EmbeddedStore)
    yield store
    store.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "cluster")
    yield cluster
    cluster.close()


# -- nesting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_the_deepest_types_are_written_read_followed_and_dropped(shop: EmbeddedStore, kind: str) -> None:
    name, value = nested(kind, MAX_NESTING)
    table = shop.create_table("t", {"id": "long", "x": name}, "id", pre_images=True)
    tunnel = shop.create_tunnel("t", "changes", "Stream")
    row = {"id": 1, "x": value}
    table.put([row, {"id": 2}])
    table.update({"id": 2, "x": value})
    assert table.get({"id": 1}) == row
    assert table.scan().read_all().to_pylist() == [row, row | {"id": 2}]
    ((channel, position),) = tunnel.start_positions(Start.parse("earliest")).items()
    assert tunnel.read(channel, position, 10).changes.rows.to_pylist()[0] == row
    queue = shop.create_queue("q", {"x": name})
    queue.append({"x": value}, partition=0)
    assert queue.read(0, 0).rows.to_pylist() == [{"x": value}]
    shop.drop_table("t")
    shop.drop_queue("q")


@pytest.mark.parametrize("levels", [MAX_NESTING + 1, 64, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_deeper_types_are_refused_when_they_are_declared(shop: EmbeddedStore, kind: str, levels: int) -> None:
    name, _ = nested(kind, levels)
    table = shop.create_table("there", {"id": "long"}, "id")
    for declare in (
        lambda: shop.create_table("t", {"id": "long", "x": name}, "id"),
        lambda: shop.create_queue("q", {"x": f"{name} not null"}),
        lambda: table.add_columns({"x": name}),
        lambda: parse_type(name),
        lambda: parse(f"CREATE QUEUE q (a int, x {name})"),
        lambda: parse(f"CREATE TABLE t (a int, x {name}) USING headrace"),
    ):
        with pytest.raises((SchemaError, SqlError), match=TOO_DEEP):
            declare()
    assert (shop.tables(), shop.queues()) == (["there"], [])


def test_deeper_types_of_arrow_are_refused_when_they_are_declared(shop: EmbeddedStore) -> None:
    shop.create_table("t", pa.schema([("id", pa.int64()), ("x", arrow(MAX_NESTING))]), "id")
    for levels in (MAX_NESTING + 1, 2000):
        with pytest.raises(SchemaError, match=TOO_DEEP):
            shop.create_table("u", pa.schema([("id", pa.int64()), ("x", arrow(levels))]), "id")
        with pytest.raises(SchemaError, match=TOO_DEEP):
            shop.create_queue("q", {"x": arrow(levels)})


def test_the_command_line_refuses_deeper_types(run: Run) -> None:
    name, _ = nested("array", MAX_NESTING + 1)
    failed = run("queue", "create", "q", "-c", f"x={name}", code=1)
    assert TOO_DEEP in failed["error"]["message"]


@pytest.mark.parametrize("levels", [MAX_NESTING + 1, 64, 2000])
@pytest.mark.parametrize("kind", ["table", "queue"])
def test_a_ytsaurus_table_of_deeper_types_is_not_created(cluster: Cluster, kind: str, levels: int) -> None:
    deep: Any = "int64"
    for _ in range(levels):
        deep = {"type_name": "list", "item": deep}
    key = [{"name": "k", "type_v3": "int64", "sort_order": "ascending"}] if kind == "table" else []
    attributes = {"dynamic": True, "schema": [*key, {"name": "x", "type_v3": deep}]}
    with pytest.raises(HeadraceError, match=TOO_DEEP):
        call(cluster, "create", type="table", path="//tmp/t", attributes=attributes)
    assert call(cluster, "exists", path="//tmp/t").value["value"] is False


def test_a_foreign_ytsaurus_table_of_deeper_types_cannot_be_read() -> None:
    deep: Any = "int64"
    for _ in range(MAX_NESTING + 1):
        deep = {"type_name": "list", "item": deep}
    columns = [YtColumn.of("k", "int64", sort_order="ascending"), YtColumn.of("x", deep)]
    with pytest.raises(SchemaError, match=f"column 'x' is {TOO_DEEP}"):
        TableLayout.of(columns, "t")
    with pytest.raises(SchemaError, match=f"column 'x' is {TOO_DEEP}"):
        QueueLayout.of(columns[1:])


@pytest.mark.parametrize(("kind", "levels"), [("array", 64), ("map", 40), ("map", 70)])
def test_too_deep_tables_of_an_earlier_version_can_be_dropped(shop: EmbeddedStore, kind: str, levels: int) -> None:
    shop.create_table("t", {"id": "long", "x": "array<long>"}, "id")
    shop.create_queue("q", {"x": "array<long>"})
    shop.create_tunnel("t", "changes")
    _, value = nested(kind, levels)
    deep: Any = pa.int64()
    for _ in range(levels):
        deep = pa.list_(deep) if kind == "array" else pa.map_(pa.string(), deep)
    with shop.database.write() as connection:
        for object_name, fields in (("t", [pa.field("id", pa.int64(), nullable=False)]), ("q", [])):
            schema = pa.schema([*fields, pa.field("x", deep)]).serialize().to_pybytes()
            connection.execute(
                "UPDATE object_schema SET schema = ? WHERE object = (SELECT id FROM object WHERE name = ?)",
                (schema, object_name),
            )
    for use in (
        lambda: shop.table("t").put({"id": 1, "x": value}),
        lambda: shop.queue("q").append({"x": value}),
    ):
        with pytest.raises(UnsupportedError, match="nested"):
            use()
    assert (shop.tables(), shop.queues()) == (["t"], ["q"])
    shop.drop_table("t")
    shop.drop_queue("q")
    assert (shop.tables(), shop.queues()) == ([], [])
    shop.create_table("t", {"id": "long"}, "id").put({"id": 1})


# -- number of columns ------------------------------------------------------------------------------------


def test_a_table_and_a_queue_can_have_the_maximum_of_columns(shop: EmbeddedStore) -> None:
    columns = wide(MAX_COLUMNS)
    row: dict[str, Any] = dict.fromkeys(columns, "x") | {"id": 1}
    table = shop.create_table("t", columns, "id", pre_images=True)
    tunnel = shop.create_tunnel("t", "base", "BaseAndStream")
    table.put(row)
    table.update({"id": 1, "c7": "y"})
    assert table.get({"id": 1}) == row | {"c7": "y"}
    assert table.scan(where=[("c8", "=", "x")]).read_all().to_pylist() == [row | {"c7": "y"}]
    (channel,) = [each.id for each in tunnel.channels() if each.id in tunnel.start_positions(Start.parse("earliest"))]
    assert tunnel.read(channel, tunnel.start_positions(Start.parse("earliest"))[channel], 10).changes.num_rows
    table.delete({"id": 1})
    queue = shop.create_queue("q", columns)
    queue.append(row)
    assert queue.read(0, 0).rows.to_pylist() == [row]


def test_rows_with_the_maximum_of_columns_that_exceed_a_page_are_read(shop: EmbeddedStore) -> None:
    table = shop.create_table("t", wide(MAX_COLUMNS), "id")
    table.put([{"id": number, "c1": "x" * (33 << 20), "c2": "y"} for number in range(2)])
    assert [page.num_rows for page in table.scan()] == [1, 1]


@pytest.mark.parametrize("kind", ["string", "double"])
def test_more_columns_are_refused_when_they_are_declared(shop: EmbeddedStore, kind: str) -> None:
    columns = wide(MAX_COLUMNS + 1, kind)
    with pytest.raises(SchemaError, match=TOO_MANY):
        shop.create_table("t", columns, "id")
    with pytest.raises(SchemaError, match=TOO_MANY):
        shop.create_queue("q", columns)
    table = shop.create_table("there", wide(MAX_COLUMNS, kind), "id")
    with pytest.raises(SchemaError, match=TOO_MANY):
        table.add_columns({"more": kind})
    assert (shop.tables(), shop.queues()) == (["there"], [])
    table.put({"id": 1})


def test_the_endpoints_refuse_more_columns(cluster: Cluster, tmp_path: Path) -> None:
    schema = [{"name": name, "type": "int64"} for name in wide(MAX_COLUMNS + 1)]
    attributes = {"dynamic": True, "schema": schema}
    with pytest.raises(HeadraceError, match=TOO_MANY):
        call(cluster, "create", type="table", path="//tmp/q", attributes=attributes)
    instance = Instance("shop", tmp_path / "instance")
    request = pb.CreateTableRequest(table_options=pb.TableOptions())
    request.table_meta.table_name = "t"
    request.table_meta.primary_key.add(name="k", type=pb.INTEGER)
    request.reserved_throughput.capacity_unit.read = 0
    create_table(instance, request)
    cells = [Cell(f"c{number}", number) for number in range(MAX_COLUMNS + 1)]
    condition = pb.Condition(row_existence=pb.IGNORE)

    def put(some: list[Cell]) -> None:
        row = encode_row(Row((("k", 1),), tuple(some)))
        put_row(instance, pb.PutRowRequest(table_name="t", row=row, condition=condition))

    put(cells[:1000])
    with pytest.raises(HeadraceError, match=TOO_MANY):
        put(cells[1000:])
    put(cells[1000:1800])
    instance.store.close()
