"""Strings with any bytes in all commands, with YTsaurus' client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from yt.wrapper import YsonFormat, YtClient, YtResponseError

import headrace
from tests.ytsaurus.interop.ytsaurus_server import YtServer
from tests.ytsaurus.interop.ytsaurus_tables import AT_ONCE, TIMESTAMP, losing_transaction

RAW = YsonFormat(encoding=None)
# The order of bytes, which differs from the order of lengths and of signed numbers.
VALUES = [b"", b"\x00", b"\x7f\xff\xfe", "ключ".encode(), b"\xff\x00\xfe", b"\xff\xff"]
STRINGS = {"type_name": "list", "item": "string"}
PLAIN: list[dict[str, Any]] = [{"name": "k", "type": "string", "sort_order": "ascending"}]
# Five key columns are more than the embedded store supports.
PACKED = PLAIN + [{"name": name, "type": "string", "sort_order": "ascending"} for name in "lmno"]
REST: list[dict[str, Any]] = [
    {"name": "v", "type": "string"},
    {"name": "u", "type": "utf8"},
    {"name": "c", "type_v3": {"type_name": "optional", "item": STRINGS}},
    {
        "name": "d",
        "type_v3": {"type_name": "optional", "item": {"type_name": "dict", "key": "string", "value": "utf8"}},
    },
]


def dynamic(client: YtClient, path: str, schema: Sequence[dict[str, Any]], **attributes: Any) -> str:
    client.create("table", path, attributes={"dynamic": True, "schema": list(schema), **attributes})
    client.mount_table(path, sync=True)
    return path


def row(value: bytes) -> dict[bytes, Any]:
    return {b"k": value, b"v": value[::-1], b"u": "é".encode(), b"c": [value, b"\xfe"], b"d": [[value, b"x"]]}


def selected(client: YtClient, query: str, **options: Any) -> list[dict[bytes, Any]]:
    return list(client.select_rows(query, format=RAW, **options))


@pytest.mark.parametrize("keys", [PLAIN, PACKED], ids=["key columns", "packed key"])
def test_keys_and_values_of_sorted_tables_hold_any_bytes(
    client: YtClient, yt_server: YtServer, home: str, keys: list[dict[str, Any]]
) -> None:
    path = dynamic(client, f"{home}/t", [*keys, *REST])
    others = {column["name"].encode(): b"\xff" for column in keys[1:]}
    rows = [{**row(value), **others} for value in VALUES]
    wanted = [{b"k": value, **others} for value in VALUES]
    client.insert_rows(path, rows[::-1], format=RAW)
    assert selected(client, f"* from [{path}]") == list(client.read_table(path, format=RAW)) == rows
    assert list(client.lookup_rows(path, wanted[::-1], format=RAW)) == rows[::-1]
    kept = client.lookup_rows(path, [{**wanted[0], b"k": b"\xfd"}, wanted[4]], keep_missing_rows=True, format=RAW)
    assert list(kept) == [None, rows[4]]
    client.insert_rows(path, [{**wanted[4], b"u": b"x"}], update=True, format=RAW)
    assert list(client.lookup_rows(path, wanted[4:5], format=RAW)) == [{**rows[4], b"u": b"x"}]
    with losing_transaction(client):
        client.lock_rows(path, wanted[4:5], lock_type="exclusive", format=RAW)
        yt_server.client(**AT_ONCE).delete_rows(path, wanted[4:5], format=RAW)
    client.insert_rows(path, rows[4:5], format=RAW)
    client.delete_rows(path, wanted[1:5], format=RAW)
    assert [each[b"k"] for each in selected(client, f"k from [{path}]")] == [VALUES[0], VALUES[5]]


def test_texts_are_validated(client: YtClient, home: str) -> None:
    path = dynamic(client, f"{home}/t", [*PLAIN, *REST, {"name": "j", "type": "json"}])
    for name, value in ((b"u", b"\xff"), (b"j", b'"\xff"'), (b"d", [[b"\xff", b"\xff"]])):
        with pytest.raises(YtResponseError, match=f"does not fit column '{name.decode()}'.*not UTF-8"):
            client.insert_rows(path, [{b"k": b"\xff", name: value}], format=RAW)
    assert selected(client, f"* from [{path}]") == []


def test_queries_select_any_bytes(client: YtClient, home: str) -> None:
    path = dynamic(client, f"{home}/t", [*PLAIN, *REST])
    client.insert_rows(path, [row(value) for value in VALUES], format=RAW)

    def keys(query: str, **options: Any) -> list[bytes]:
        return [each[b"k"] for each in selected(client, f"k from [{path}] {query}", **options)]

    assert keys(r'where k = "\xff\0\xfe"') == keys(r'where v = "\xfe\0\xff"') == [b"\xff\x00\xfe"]
    assert keys("where k = {p}", placeholder_values={"p": b"\xff\xff"}) == [b"\xff\xff"]
    assert keys(r'where k > "\x7f" and k < "\xff\0\xff"') == VALUES[2:5]
    assert keys(r'where v in ("\xff\xff", "\0", "x")') == keys(r'where (v, u) in (("\xff\xff", "é"), ("\0", "é"))')
    assert keys("where u = 'é' order by v desc limit 3") == [b"\xff\xff", b"\x7f\xff\xfe", b"\xff\x00\xfe"]
    assert keys(r'where is_prefix("\xff", k) or is_substr("\xff\xfe", k)') == [VALUES[2], *VALUES[4:]]
    assert keys("where k like 'к__ч'") == keys("where regex_full_match('к.*ч', k)") == ["ключ".encode()]
    assert keys(r'where k like "%\xfe"') == [b"\x7f\xff\xfe", b"\xff\x00\xfe"]
    assert keys("where if(k = 'ключ', upper(k), '') = 'КЛЮЧ'") == ["ключ".encode()]
    with pytest.raises(YtResponseError, match="UTF"):
        keys("where lower(k) = ''")
    computed = selected(client, rf'concat(k, "\xfd") as c, length(k) as n from [{path}] where v = "\xff\xff"')
    assert computed == [{b"c": b"\xff\xff\xfd", b"n": 2}]
    replaced = selected(client, rf"""regex_replace_all('\x7f', k, 'a') as c from [{path}] where length(k) = 3""")
    assert replaced == [{b"c": b"a\xff\xfe"}, {b"c": b"\xff\x00\xfe"}]
    grouped = selected(client, f"n, min(v) as l, max(v) as h, first(k) as f from [{path}] group by length(k) as n")
    assert {b"n": 3, b"l": b"\xfe\x00\xff", b"h": b"\xfe\xff\x7f", b"f": b"\x7f\xff\xfe"} in grouped
    counted = selected(client, f"v, sum(1) as n from [{path}] group by v")
    assert sorted(each[b"v"] for each in counted) == sorted(value[::-1] for value in VALUES)


def test_aggregating_columns_hold_any_bytes(client: YtClient, home: str) -> None:
    names = ("min", "max", "first")
    path = dynamic(client, f"{home}/t", PLAIN + [{"name": one, "type": "string", "aggregate": one} for one in names])
    for value in (b"\x80", b"\xff\x00", b"\x7f"):
        given = {b"k": b"\xff", **{name.encode(): value for name in names}}
        client.insert_rows(path, [given], aggregate=True, update=True, format=RAW)
    (found,) = selected(client, f"* from [{path}]")
    assert found == {b"k": b"\xff", b"min": b"\x7f", b"max": b"\xff\x00", b"first": b"\x80"}


def test_queues_consumers_and_producers_hold_any_bytes(client: YtClient, home: str) -> None:
    path = dynamic(client, f"{home}/q", [*REST, TIMESTAMP])
    client.create("queue_consumer", f"{home}/c")
    client.create("queue_producer", f"{home}/p")
    client.register_queue_consumer(path, f"{home}/c", vital=True)
    rows = [{name: value for name, value in row(each).items() if name != b"k"} for each in VALUES]
    client.insert_rows(path, rows[:3], format=RAW)
    session = client.create_queue_producer_session(f"{home}/p", path, "s")
    numbered = [{**each, b"$sequence_number": number} for number, each in enumerate(rows[3:])]
    client.push_queue_producer(f"{home}/p", path, "s", session["epoch"], numbered, input_format=RAW)

    def values(found: Any) -> list[dict[bytes, Any]]:
        return [{name: value for name, value in each.items() if not name.startswith(b"$")} for each in found]

    assert values(client.pull_queue(path, offset=0, partition_index=0, format=RAW)) == rows
    client.advance_queue_consumer(f"{home}/c", path, 0, 0, 2)
    assert values(client.pull_queue_consumer(f"{home}/c", path, None, 0, format=RAW)) == rows[2:]
    assert selected(client, rf'[$row_index] as i from [{path}] where v = "\xff\xff"') == [{b"i": 5}]


@pytest.mark.parametrize("schema", [[*PLAIN, *REST], None], ids=["schema", "no schema"])
def test_static_tables_hold_any_bytes(client: YtClient, home: str, schema: Any) -> None:
    path = f"{home}/t"
    client.create("table", path, attributes={} if schema is None else {"schema": schema})
    rows = [row(value) for value in VALUES]
    client.write_table(path, rows[:4], format=RAW)
    client.write_table(f"<append=%true>{path}", rows[4:], format=RAW)
    assert list(client.read_table(path, format=RAW)) == rows
    assert list(client.read_table(f"{path}{{v}}[#4:#6]", format=RAW)) == [{b"v": each[b"v"]} for each in rows[4:]]
    if schema is not None:
        client.copy(path, f"{path}-copy")
        client.alter_table(path, dynamic=True)
        client.mount_table(path, sync=True)
        assert selected(client, f"* from [{path}]") == list(client.read_table(f"{path}-copy", format=RAW)) == rows


def test_tablets_columns_and_copies_keep_any_bytes(client: YtClient, home: str) -> None:
    path = f"{home}/t"
    pivots = [[], [b"\x80"], [b"\xff\x00"]]
    client.create("table", path, attributes={"dynamic": True, "schema": [*PLAIN, *REST], "pivot_keys": pivots})
    batch = client.create_batch_client()
    in_batch = batch.get(f"{path}/@pivot_keys")
    batch.commit_batch()
    assert in_batch.is_ok()
    for told in (client.get(f"{path}/@pivot_keys"), in_batch.get_result()):
        assert [list(map(bytes_of, pivot)) for pivot in told] == pivots
    client.reshard_table(path, pivot_keys=[[], [b"\xfe"]], sync=True)
    client.alter_table(path, schema=[*PLAIN, *REST, {"name": "w", "type": "string"}])
    client.mount_table(path, sync=True)
    client.insert_rows(path, [{b"k": b"\xff", b"w": b"\xfe"}], format=RAW)
    client.unmount_table(path, sync=True)
    client.copy(path, f"{path}-copy")
    client.mount_table(f"{path}-copy", sync=True)
    assert selected(client, rf'k, w from [{path}-copy] where w = "\xfe"') == [{b"k": b"\xff", b"w": b"\xfe"}]


def bytes_of(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value._bytes)


def test_json_has_one_character_for_each_byte(client: YtClient, yt_server: YtServer, home: str) -> None:
    path = dynamic(client, f"{home}/t", [*PLAIN, *REST])

    def asked(method: str, command: str, body: bytes | None = None, **parameters: Any) -> Any:
        return yt_server.call(method, command, parameters, body=body)

    sent = {"k": "\xff\x00\xfe", "v": "\xc3\xa9", "c": ["\x80"]}
    answer = asked("PUT", "insert_rows", json.dumps(sent).encode(), path=path, input_format="json")
    assert answer.status == 200, answer.body
    (found,) = selected(client, f"k, v, c from [{path}]")
    assert found == {b"k": b"\xff\x00\xfe", b"v": "é".encode(), b"c": [b"\x80"]}
    query = f"k, v, c from [{path}]"
    answer = asked("GET", "select_rows", query=query, output_format="json")
    assert answer.value == sent
    as_text = {"$value": "json", "$attributes": {"encode_utf8": False}}
    answer = asked("GET", "select_rows", query=f"v from [{path}]", output_format=as_text)
    assert answer.value == {"v": "é"}
    answer = asked("GET", "select_rows", query=query, output_format=as_text)
    assert answer.code
    assert "encode_utf8" in answer.headers["x-yt-error"]
    answer = asked("PUT", "insert_rows", '{"k":"é"}'.encode(), path=path, input_format=as_text)
    assert [each[b"k"] for each in selected(client, f"k from [{path}]")] == ["é".encode(), b"\xff\x00\xfe"]


def test_the_embedded_store_contains_bytes(client: YtClient, yt_server: YtServer, home: str) -> None:
    path = dynamic(client, f"{home}/t", [*PLAIN, *REST])
    client.insert_rows(path, [row(b"\xff")], format=RAW)
    with headrace.open(str(yt_server.root)) as store:
        found = store.table(path).get({"k": b"\xff"})
        assert found is not None
        assert (found["v"], found["u"], found["c"]) == (b"\xff", "é", [b"\xff", b"\xfe"])
        store.table(path).put({"k": b"\xfe", "v": b"\x00"})
    assert [each[b"v"] for each in selected(client, f"v from [{path}]")] == [b"\x00", b"\xff"]
