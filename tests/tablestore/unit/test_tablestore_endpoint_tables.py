"""Tables of the Tablestore endpoint that several clients create, update, drop and use at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UnsupportedError
from headrace.stores.embedded.tables.table import EmbeddedTable
from headrace_tablestore.endpoint.errors import service_error
from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.rows import transactions
from headrace_tablestore.endpoint.rows.batches import batch_write_row
from headrace_tablestore.endpoint.rows.ranges import get_range
from headrace_tablestore.endpoint.rows.single_rows import get_row, put_row
from headrace_tablestore.endpoint.tables import table_operations
from headrace_tablestore.endpoint.tables.settings import TableSettings
from headrace_tablestore.endpoint.tables.table_operations import (
    create_table,
    delete_table,
    describe_table,
    update_table,
)
from headrace_tablestore.endpoint.tunnels import tunnel_operations
from headrace_tablestore.endpoint.tunnels.stream_bounds import STREAM_BOUNDS_TABLE
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire import tunnel_pb2
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.plainbuffer.rows import encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, Marker, Row

DAY = 86400
IGNORED = pb.Condition(row_existence=pb.IGNORE)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    instance = Instance("shop", tmp_path / "shop")
    yield instance
    instance.store.close()


def create(instance: Instance, name: str = "t", kind: pb.PrimaryKeyType = pb.INTEGER) -> None:
    request = pb.CreateTableRequest(table_meta=pb.TableMeta(table_name=name))
    request.table_meta.primary_key.add(name="k", type=kind)
    request.table_meta.defined_column.add(name="a", type=pb.DCT_INTEGER)
    request.reserved_throughput.capacity_unit.read = 0
    create_table(instance, request)


def drop(instance: Instance, name: str = "t") -> None:
    delete_table(instance, pb.DeleteTableRequest(table_name=name))


def create_tunnel(instance: Instance, **config: Any) -> str:
    tunnel = tunnel_pb2.Tunnel(table_name="t", tunnel_name="tunnel", tunnel_type="Stream", stream_tunnel_config=config)
    return tunnel_operations.create_tunnel(instance, tunnel_pb2.CreateTunnelRequest(tunnel=tunnel)).tunnel_id


def at_once(*calls: Callable[[], Any]) -> list[str]:
    """Make concurrent calls; return their error codes."""
    ready = threading.Barrier(len(calls))

    def code(call: Callable[[], Any]) -> str:
        ready.wait()
        try:
            call()
        except Exception as error:
            told = service_error(error)
            return repr(error) if told is None else told.code
        return "OK"

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(code, calls))


# -- updates of tables ------------------------------------------------------------------------------------------


def test_concurrent_updates_of_a_table_lose_nothing(instance: Instance) -> None:
    stream = pb.StreamSpecification(enable_stream=True, expiration_time=24)
    wanted = [{"table_options": pb.TableOptions(time_to_live=3 * DAY)}, {"stream_spec": stream}]
    wanted.append({"table_options": pb.TableOptions(allow_update=False)})
    for number in range(10):
        name = f"t{number}"
        create(instance, name)
        requests = [pb.UpdateTableRequest(table_name=name, **each) for each in wanted]  # type: ignore[arg-type]
        at_once(*(lambda request=request: update_table(instance, request) for request in requests))
        described = describe_table(instance, pb.DescribeTableRequest(table_name=name))
        assert described.table_options.time_to_live == 3 * DAY
        assert not described.table_options.allow_update
        assert described.stream_details.expiration_time == 24


def test_the_first_tunnel_of_a_table_keeps_concurrent_updates(instance: Instance) -> None:
    for _ in range(10):
        create(instance)
        request = pb.UpdateTableRequest(table_name="t", table_options=pb.TableOptions(time_to_live=3 * DAY))
        assert at_once(lambda r=request: update_table(instance, r), lambda: create_tunnel(instance)) == ["OK", "OK"]  # type: ignore[misc]
        described = describe_table(instance, pb.DescribeTableRequest(table_name="t"))
        assert described.table_options.time_to_live == 3 * DAY
        assert described.stream_details.enable_stream
        drop(instance)


def test_a_table_created_while_its_predecessor_is_dropped_is_complete(instance: Instance) -> None:
    create(instance)
    for _ in range(20):
        dropped, made = at_once(lambda: drop(instance), lambda: create(instance))
        assert (dropped, made) in (("OK", "OK"), ("OK", "OTSObjectAlreadyExist"))
        if made == "OK":
            described = describe_table(instance, pb.DescribeTableRequest(table_name="t"))
            assert [column.name for column in described.table_meta.defined_column] == ["a"]
        else:
            create(instance)


def test_a_table_is_created_once_and_dropped_once(instance: Instance) -> None:
    for _ in range(5):
        assert sorted(at_once(*[lambda: create(instance)] * 4)) == ["OK", *["OTSObjectAlreadyExist"] * 3]
        assert sorted(at_once(*[lambda: drop(instance)] * 4)) == ["OK", *["OTSObjectNotExist"] * 3]


def test_concurrent_creations_respect_the_limit_of_tables(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_operations, "MAX_TABLES", 3)
    codes = at_once(*(lambda name=f"t{number}": create(instance, name) for number in range(8)))
    assert sorted(codes) == [*["OK"] * 3, *["OTSQuotaExhausted"] * 5]


def test_a_dropped_table_gets_no_settings(instance: Instance) -> None:
    create(instance)
    instance.table("t")
    instance.store.drop_table("t")
    instance.settings.delete("t")
    request = pb.UpdateTableRequest(table_name="t", table_options=pb.TableOptions(time_to_live=DAY))
    assert at_once(lambda: update_table(instance, request)) == ["OTSObjectNotExist"]
    assert instance.settings.get("t") == TableSettings()


def test_dropping_a_table_deletes_its_tunnels(instance: Instance) -> None:
    create(instance)
    create_tunnel(instance, flag=tunnel_pb2.EARLIEST)
    bounds = instance.store.table(STREAM_BOUNDS_TABLE)
    assert len(bounds.scan().read_all()) == 1
    drop(instance)
    assert len(bounds.scan().read_all()) == 0


# -- rows of a table that is created again -------------------------------------------------------------------


def change(number: int, *cells: Cell) -> bytes:
    return encode_row(Row((("k", number),), cells))


def put(instance: Instance) -> None:
    put_row(instance, pb.PutRowRequest(table_name="t", row=change(1, Cell("b", 1)), condition=IGNORED))


def update(instance: Instance) -> None:
    write(instance, pb.UPDATE, 1)


def put_many(instance: Instance) -> None:
    write(instance, pb.PUT, 10)


def update_many(instance: Instance) -> None:
    write(instance, pb.UPDATE, 10)


def write(instance: Instance, kind: pb.OperationType, count: int) -> None:
    request = pb.BatchWriteRowRequest()
    rows = request.tables.add(table_name="t").rows
    for number in range(count):
        rows.add(type=kind, row_change=change(number, Cell("b", 1)), condition=IGNORED)
    for row in batch_write_row(instance, request).tables[0].rows:
        if not row.is_ok:
            raise ServiceError(row.error.code, row.error.message)


def get(instance: Instance) -> None:
    get_row(instance, pb.GetRowRequest(table_name="t", primary_key=change(1), max_versions=1))


def scan(instance: Instance) -> None:
    bounds = [encode_row(Row((("k", marker),))) for marker in (Marker.INF_MIN, Marker.INF_MAX)]
    request = pb.GetRangeRequest(table_name="t", direction=pb.FORWARD, max_versions=1, columns_to_get=["b"])
    request.inclusive_start_primary_key, request.exclusive_end_primary_key = bounds
    get_range(instance, request)


@pytest.mark.parametrize("has_columns", [True, False])
@pytest.mark.parametrize("kind", [pb.INTEGER, pb.STRING])
@pytest.mark.parametrize("method", ["add_columns", "transact", "put", "find", "page"])
@pytest.mark.parametrize("call", [put, update, put_many, update_many, get, scan])
def test_a_request_during_the_recreation_of_its_table_can_be_retried(
    instance: Instance,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Instance], None],
    method: str,
    kind: pb.PrimaryKeyType,
    has_columns: bool,
) -> None:
    create(instance)
    if has_columns:
        put(instance)
    owner: Any = transactions if hasattr(transactions, method) else EmbeddedTable
    method_itself = getattr(owner, method)
    replaced: list[str] = []

    def replaces_first(table: EmbeddedTable, *arguments: Any, **named: Any) -> Any:
        if table.name == "t" and not replaced:
            replaced.append(method)
            drop(instance)
            create(instance, kind=kind)
        return method_itself(table, *arguments, **named)

    monkeypatch.setattr(owner, method, replaces_first)
    has_what_it_needs = kind == pb.INTEGER and method in ("add_columns", "find")
    if call is scan and not has_columns:
        has_what_it_needs = True
    assert at_once(lambda: call(instance)) == ["OTSTableNotReady" if replaced and not has_what_it_needs else "OK"]
    has_other_key = replaced and kind == pb.STRING and call is not scan
    assert at_once(lambda: call(instance)) == ["OTSInvalidPK" if has_other_key else "OK"]


def test_a_table_with_a_key_that_tablestore_does_not_have_is_refused(instance: Instance) -> None:
    instance.store.create_table("dated", {"day": "date"}, "day")
    with pytest.raises(UnsupportedError, match="received: date; valid: string, long, binary"):
        instance.table("dated")
