"""Logs in which a delete is two entries, as older releases wrote them, are read like new ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.batches.feeds.channel_reading import read_channel
from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.cli.main import main
from headrace.model.tables.change_columns import ChangeShape, SignedShape
from headrace.model.tables.changes import ChangeOp, Changes, RowChange
from headrace.model.tunnels.records import INITIAL_BATCH
from headrace.ports import Store, Table, Write
from headrace.stores.embedded import chunks
from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.tables import table_operations
from headrace_tablestore.format.columns import TablestoreShape, parse_catalog
from headrace_tablestore.wire import table_pb2
from headrace_tablestore.wire import tunnel_pb2 as pb
from headrace_tablestore.wire.plainbuffer.rows import decode_row
from tests.older_logs import write_older_logs
from tests.tablestore.unit.tablestore_endpoint import Service, values

SHOWN = ("_change_type", "id", "name")


def write(table: Table) -> None:
    """Write one of each kind of change; row 4 is deleted by a replacement of all rows."""
    table.put([{"id": number, "name": f"n{number}"} for number in range(1, 5)])
    table.put({"id": 1, "name": "new"})
    table.delete([{"id": 1}, {"id": 2}])


def replace_all(store: Store) -> None:
    publisher = store.publisher("job")
    rows = pa.Table.from_pylist([{"id": 3, "name": "other"}], store.table("items").schema.arrow)
    staged = tuple(publisher.stage(0, rows.to_batches()))
    publisher.publish(0, [Write("items", RowChange.REPLACE_ALL, staged)])


EXPECTED = [
    *[("insert", number, f"n{number}") for number in range(1, 5)],
    ("update_preimage", 1, "n1"),
    ("update_postimage", 1, "new"),
    ("delete", 1, "new"),
    ("delete", 2, "n2"),
    ("update_preimage", 3, "n3"),
    ("update_postimage", 3, "other"),
    ("delete", 4, "n4"),
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "shop", create=True, synchronous="off")


@pytest.fixture(params=["older", "new"])
def tunnel(request: pytest.FixtureRequest, store: Store, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a tunnel over the log of an older release, or over that of this one."""
    table = store.create_table("items", {"id": "long", "name": "string"}, "id", pre_images=True)
    store.create_tunnel("items", "all", "Stream")
    with monkeypatch.context() as patched:
        if request.param == "older":
            write_older_logs(patched)
        write(table)
        replace_all(store)
    (part,) = table.describe().partitions
    assert part.next == {"older": len(EXPECTED) + 3, "new": len(EXPECTED)}[request.param]
    assert part.rows == 1
    return "all"


def shown(rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in SHOWN) for row in rows.to_pylist()]


def read(feed: TunnelFeed, batch: str) -> list[Changes]:
    (part,) = feed.plan(batch)
    return list(read_channel(feed.tunnel, batch, part))


@pytest.mark.parametrize("limit", [None, 1, 2, 3])
def test_queries_read_a_delete_as_one_row(store: Store, tunnel: str, limit: int | None) -> None:
    feed, batch = TunnelFeed(store.tunnel(tunnel), limits=Limits(rows_per_channel=limit)), INITIAL_BATCH
    schema = feed.tunnel.table.schema
    found = []
    while (following := feed.latest(batch)) != batch:
        batch = following
        pages = read(feed, batch)
        assert [page.ops for page in read(feed, batch)] == [page.ops for page in pages]
        for page in pages:
            rows = ChangeShape(schema).rows(page)
            assert SignedShape(schema, "items").rows(page) == rows
            found += shown(rows)
    assert found == EXPECTED


def test_a_batch_that_was_read_before_the_upgrade_has_the_same_changes(store: Store, tunnel: str) -> None:
    """Ends are positions and numbers of entries, and both stay what they were."""
    opened = store.tunnel(tunnel)
    first = TunnelFeed(opened, limits=Limits(rows_per_channel=8))
    batch = first.latest(INITIAL_BATCH)
    before = read(first, batch)
    (end,) = opened.batches.ends(batch).values()
    assert end.rows == sum(page.num_rows for page in before)
    again = read(TunnelFeed(headrace.open(store.url).tunnel(tunnel)), batch)
    assert [page.rows for page in again] == [page.rows for page in before]
    rows = [row for page in again for row in shown(ChangeShape(opened.table.schema).rows(page))]
    assert rows == EXPECTED[: len(rows)]
    assert len(rows) in (7, 8)


@pytest.mark.parametrize("batch_rows", [1, 2, 5000])
def test_workers_read_a_delete_as_one_row(store: Store, tunnel: str, batch_rows: int) -> None:
    batches = store.tunnel(tunnel).consume(idle="stop", batch_rows=batch_rows)
    found: list[tuple[Any, ...]] = []
    for batch in batches:
        assert len(batch) == batch.to_arrow().num_rows == batch.changes.num_rows
        found += shown(batch.to_arrow())
    assert found == EXPECTED


def test_the_command_line_shows_a_delete_as_one_row(
    store: Store, tunnel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tunnel", "tail", tunnel, "--no-follow", "--json", "-s", store.url]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [tuple(line[name] for name in SHOWN) for line in lines] == EXPECTED


def test_format_tablestore_shows_the_key_of_a_delete(store: Store, tunnel: str) -> None:
    feed = TunnelFeed(store.tunnel(tunnel))
    (page,) = read(feed, feed.latest(INITIAL_BATCH))
    catalog = parse_catalog('{"columns": {"id": {"type": "long"}, "name": {"type": "string"}}}')
    rows = TablestoreShape(feed.tunnel.table.schema, catalog).rows(page).to_pylist()
    assert [(row["__ots_record_type__"], row["id"], row["name"]) for row in rows] == [
        ("DELETE" if kind == "delete" else "PUT", key, None if kind == "delete" else name)
        for kind, key, name in EXPECTED
        if kind != "update_preimage"
    ]


@pytest.mark.parametrize("older", [True, False])
def test_records_of_the_endpoint_have_the_old_row_of_a_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    service = Service(Instance("shop", tmp_path / "shop"))
    meta = table_pb2.TableMeta(table_name="T", primary_key=[{"name": "id", "type": table_pb2.INTEGER}])
    stream = table_pb2.StreamSpecification(enable_stream=True, expiration_time=24, columns_to_get=["text"])
    request = table_pb2.CreateTableRequest(
        table_meta=meta,
        reserved_throughput={"capacity_unit": {}},
        table_options={"max_versions": 1},
        stream_spec=stream,
    )
    table_operations.create_table(service.instance, request)
    table = service.store.table("T")
    table.add_columns({"text": "string"})
    tunnel = service.create("Stream")
    if older:
        write_older_logs(monkeypatch)
    table.put([{"id": 1, "text": "old"}, {"id": 2, "text": "second"}])
    table.delete([{"id": 2}])
    table.update([{"id": 1, "text": "new"}])
    table.delete([{"id": 1}])
    page = service.read(tunnel, "stream-1")
    rows = [decode_row(record.record) for record in page.records]
    assert [(row.key[0][1], values(row)) for row in rows] == [
        (1, {"text": "old"}),
        (2, {"text": "second"}),
        (2, {}),
        (1, {"text": "new"}),
        (1, {}),
    ]
    assert [record.action_type for record in page.records] == [pb.PUT_ROW] * 2 + [
        pb.DELETE_ROW,
        pb.UPDATE_ROW,
        pb.DELETE_ROW,
    ]
    origins = [record.origin_record and values(decode_row(record.origin_record)) for record in page.records]
    assert origins == [b"", b"", {"text": "second"}, {"text": "old"}, {"text": "new"}]


def test_a_page_of_a_large_commit_never_separates_a_pre_image_from_its_change(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a chunk may separate them."""
    write_older_logs(monkeypatch)
    monkeypatch.setattr(chunks, "MAX_CHUNK_ROWS", 3)
    table = store.create_table("items", {"id": "long", "name": "string"}, "id", pre_images=True)
    tunnel = store.create_tunnel("items", "all", "Stream")
    table.put([{"id": number} for number in range(7)])
    table.update([{"id": number, "name": "x"} for number in range(-1, 7)])
    table.delete([{"id": number} for number in range(-1, 7)])
    (channel,) = tunnel.channels()
    for most in (1, 2, 3, 4, 100):
        ops: list[int] = []
        position = channel.committed
        while (page := tunnel.read(channel.id, position, most)).changes.num_rows:
            ops += page.changes.ops.to_pylist()
            assert ops[-1] != ChangeOp.PREIMAGE
            position = page.next
        assert len(ops) == 7 + 15 + 16


def test_a_table_can_keep_pre_images_from_any_moment_on(store: Store) -> None:
    table = store.create_table("items", {"id": "long", "name": "string"}, "id")
    tunnel = store.create_tunnel("items", "all", "Stream")
    found = []
    for wanted in ("false", "true"):
        assert main(["table", "set", "items", f"pre_images={wanted}", "-s", store.url]) == 0
        table.put([{"id": 1, "name": "a"}, {"id": 1, "name": "b"}])
        table.delete({"id": 1})
    for batch in tunnel.consume(idle="stop"):
        found += shown(batch.to_arrow())
    assert found == [
        ("insert", 1, "a"),
        ("update_postimage", 1, "b"),
        ("delete", 1, None),
        ("insert", 1, "a"),
        ("update_preimage", 1, "a"),
        ("update_postimage", 1, "b"),
        ("delete", 1, "b"),
    ]
