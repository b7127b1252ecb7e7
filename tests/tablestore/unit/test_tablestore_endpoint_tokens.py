"""Tokens of the Tablestore endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.values import FINISHED, Position
from headrace.stores.embedded.tunnels.positions import key_position, row_position
from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.tunnels.channels import position_of, store_id, token_of, wire_id
from headrace_tablestore.wire.plainbuffer.rows import decode_row, encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, Marker, Row
from headrace_tablestore.wire.tokens import BaseToken, StreamToken, decode_token, encode_token
from tests.tablestore.unit.tablestore_endpoint import Service, refused


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(Instance("shop", tmp_path / "shop"))


SCHEMA = TableSchema.of({"a": "string", "b": "long", "c": "binary", "v": "double"}, ["a", "b", "c"])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.integers(0, (1 << 40) - 1), texts.filter(lambda text: not text.startswith(("base-", "BaseData_"))))
def test_a_stream_token_is_parsed_to_its_position(row: int, channel: str) -> None:
    token = token_of(channel, row_position(row), SCHEMA) if channel else token_of("s", row_position(row), SCHEMA)
    decoded = decode_token(token)
    assert isinstance(decoded, StreamToken)
    assert decoded.iterator
    assert position_of(channel or "s", token, SCHEMA) == row_position(row)


@given(st.none() | st.tuples(texts, st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=20)))
def test_a_base_token_is_parsed_to_its_position(key: tuple[str, int, bytes] | None) -> None:
    token = token_of("BaseData_1-0", key_position(key), SCHEMA)
    decoded = decode_token(token)
    assert isinstance(decoded, BaseToken)
    assert dict(decode_row(decoded.primary_key).key) == dict(zip("abc", key or [Marker.INF_MIN] * 3, strict=True))
    assert position_of("BaseData_1-0", token, SCHEMA) == key_position(key)


def test_the_token_of_the_end_is_finished() -> None:
    for channel in ("stream-1", "BaseData_1-0"):
        assert token_of(channel, FINISHED, SCHEMA) == "finished"
        assert position_of(channel, "finished", SCHEMA) == FINISHED


def test_a_token_contains_the_rows_to_skip() -> None:
    token = token_of("stream-1", Position(row_position(5).token, skip=3), SCHEMA)
    assert position_of("stream-1", token, SCHEMA) == row_position(8)


def test_channel_ids_are_one_to_one() -> None:
    assert [wire_id(name) for name in ("base-1-0", "stream-1")] == ["BaseData_1-0", "stream-1"]
    assert [store_id(name) for name in ("BaseData_1-0", "stream-1")] == ["base-1-0", "stream-1"]
    refused("OTSParameterInvalid", store_id, "base-1-0")


def base_token(*key: tuple[str, Any], channel: str = "BaseData_1-0") -> str:
    return encode_token(BaseToken(encode_row(Row(key, (Cell("channel", channel),)))))


BAD_TOKENS = [
    "",
    "Finished",
    "no Base64",
    "AAAA",
    encode_token(StreamToken("stream-1")),
    encode_token(StreamToken("stream-1:")),
    encode_token(StreamToken("stream-1:-1")),
    encode_token(StreamToken("stream-1:0x1")),
    encode_token(StreamToken("stream-1:9")),
    encode_token(StreamToken(f"stream-1:{1 << 40}")),
    encode_token(StreamToken(f"stream-1:{10**4000}")),
    encode_token(StreamToken("stream-2:0")),
    encode_token(StreamToken("BaseData_1-0:0")),
    encode_token(BaseToken(b"x")),
    encode_token(BaseToken(encode_row(Row((("id", 1),))))),
    base_token(("id", 1), channel="BaseData_1-1"),
    base_token(("id", "1")),
    base_token(("id", True)),
    base_token(("id", None)),
    base_token(("id", Marker.INF_MAX)),
    base_token(("id", 1), ("id", 2)),
    base_token(("other", 1)),
    base_token(),
]


@pytest.mark.parametrize("token", BAD_TOKENS, ids=range(len(BAD_TOKENS)))
def test_a_token_of_another_channel_is_refused(service: Service, token: str) -> None:
    service.table().put([{"id": 1}])
    tunnel = service.create()
    for channel in ("BaseData_1-0", "stream-1"):
        refused("OTSParameterInvalid", service.read, tunnel, channel, token)
        refused("OTSParameterInvalid", service.save, tunnel, channel, token)
        refused("OTSParameterInvalid", service.save, tunnel, channel, token, 1, service.connect(tunnel))
    assert service.statuses() == {"BaseData_1-0": "OPEN", "stream-1": "WAIT"}
