"""Strings of YTsaurus: bytes with the option `binary_strings`, texts without it."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from yt.wrapper import YsonFormat, YtClient

import headrace
from headrace.errors import OptionError, SchemaError
from headrace.model.tables.conditions import Predicate
from headrace.model.types import type_name
from headrace.ports import Store
from tests.ytsaurus.interop.ytsaurus_server import TOKEN, YtServer

RAW = YsonFormat(encoding=None)
BYTES = [b"\x00", b"\x7f\xff\xfe", b"\xff"]
LIST = {"type_name": "list", "item": "string"}


def opened(yt_server: YtServer, home: str, **options: Any) -> Store:
    return headrace.open(f"yt+{yt_server.url}{home}", token=TOKEN, retry_seconds=10, **options)


def create(client: YtClient, path: str, *schema: dict[str, Any]) -> None:
    client.create("table", path, attributes={"dynamic": True, "schema": list(schema)})
    client.mount_table(path, sync=True)


def columns(schema: pa.Schema) -> dict[str, str]:
    return {field.name: type_name(field.type) for field in schema}


def test_queues_of_any_bytes_are_read_and_written(yt_server: YtServer, client: YtClient, home: str) -> None:
    path = f"{home}/q"
    create(
        client,
        path,
        {"name": "data", "type": "string"},
        {"name": "note", "type_v3": {"type_name": "optional", "item": "utf8"}},
        {"name": "parts", "type_v3": LIST},
    )
    client.insert_rows(path, [{b"data": BYTES[1], b"note": b"hi", b"parts": BYTES}], format=RAW)
    queue = opened(yt_server, home, binary_strings=True).queue("q")
    assert columns(queue.schema.arrow) == {"data": "binary", "note": "string", "parts": "array<binary not null>"}
    first = {"data": BYTES[1], "note": "hi", "parts": BYTES}
    assert queue.read(0, 0).rows.to_pylist() == [first]
    second: dict[str, Any] = {"data": b"\x80", "note": None, "parts": []}
    queue.append([second])
    assert queue.read(0, 0).rows.to_pylist() == [first, second]
    (pulled,) = client.pull_queue(path, offset=1, partition_index=0, format=RAW)
    assert (pulled[b"data"], pulled[b"parts"]) == (b"\x80", [])


def test_tables_of_any_bytes_are_scanned_and_changed(yt_server: YtServer, client: YtClient, home: str) -> None:
    path = f"{home}/t"
    create(
        client, path, {"name": "id", "type": "string", "sort_order": "ascending"}, {"name": "data", "type": "string"}
    )
    client.insert_rows(path, [{b"id": each, b"data": each * 2} for each in BYTES], format=RAW)
    table = opened(yt_server, home, binary_strings=True).table("t")
    assert columns(table.schema.arrow) == {"id": "binary", "data": "binary"}
    assert table.scan().read_all().to_pylist() == [{"id": each, "data": each * 2} for each in BYTES]
    for predicate, found in [
        (Predicate("id", ">=", BYTES[1]), BYTES[1:]),
        (Predicate("data", "=", BYTES[2] * 2), BYTES[2:]),
        (Predicate("id", "in", (BYTES[0], BYTES[2])), [BYTES[0], BYTES[2]]),
        (Predicate("id", "starts with", b"\x7f\xff"), BYTES[1:2]),
    ]:
        assert table.scan(["id"], [predicate]).read_all().column("id").to_pylist() == found, predicate
    assert table.get({"id": BYTES[2]}) == {"id": BYTES[2], "data": BYTES[2] * 2}
    table.put([{"id": b"\xfe", "data": b"\xfd"}])
    table.delete([{"id": each} for each in BYTES])
    assert list(client.select_rows(f"* from [{path}]", format=RAW)) == [{b"id": b"\xfe", b"data": b"\xfd"}]


def test_strings_that_are_not_text_name_the_remedy(yt_server: YtServer, client: YtClient, home: str) -> None:
    path = f"{home}/q"
    create(client, path, {"name": "data", "type": "string"})
    client.insert_rows(path, [{b"data": b"fine"}, {b"data": b"\xff"}], format=RAW)
    with pytest.raises(SchemaError, match=re.escape("row 1 has a value that does not fit column 'data'")) as found:
        opened(yt_server, home).queue("q").read(0, 0)
    assert "binary_strings" in str(found.value)


def test_a_store_with_binary_strings_creates_utf8_columns(yt_server: YtServer, client: YtClient, home: str) -> None:
    store = opened(yt_server, home, binary_strings=True)
    queue = store.create_queue("q", {"text": "string", "raw": "binary"})
    assert columns(queue.schema.arrow) == {"text": "string", "raw": "binary"}
    assert [column["type"] for column in client.get(f"{home}/q/@schema")] == ["utf8", "string"]
    store.create_queue("q", {"text": "string", "raw": "binary"}, exist_ok=True)
    table = store.create_table("t", {"id": "string", "raw": "binary"}, "id")
    table.put([{"id": "a", "raw": b"\xff"}])
    # A store with the other setting of the option sees the same table.
    for each in (store, opened(yt_server, home)):
        assert columns(each.table("t").schema.arrow) == {"id": "string", "raw": "binary"}
        assert each.table("t").get({"id": "a"}) == {"id": "a", "raw": b"\xff"}


@pytest.mark.parametrize("wrong", ["yes", 1.5, "1"])
def test_the_option_is_true_or_false(wrong: object) -> None:
    with pytest.raises(OptionError, match="binary_strings"):
        headrace.open("yt://hume", binary_strings=wrong)
