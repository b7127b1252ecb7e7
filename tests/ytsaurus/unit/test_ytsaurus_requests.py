"""Parsing of requests to the YTsaurus endpoint: valid and invalid bodies, headers and formats."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yt import yson

from headrace.cli.main import main
from headrace.errors import OptionError
from headrace.http.unpacking import Budget
from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.endpoint.configuration import Configuration
from headrace_ytsaurus.endpoint.context import Answer, Command
from headrace_ytsaurus.endpoint.format_attributes import parse_format
from headrace_ytsaurus.endpoint.formats import JSON, YSON, YSON_TEXT, Format, read_value, write_value
from headrace_ytsaurus.endpoint.http.request_bodies import SPOOL_BYTES, RequestBody
from headrace_ytsaurus.endpoint.http.requests import read_call, takes_parameters_in_body, user_of
from headrace_ytsaurus.endpoint.http.responses import ERROR_HEADER_BYTES, error_response
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.yson import documents
from headrace_ytsaurus.wire.yson.json_values import JsonStyle

# -- bodies ----------------------------------------------------------------------------------------------------------

CONTENT = b"some content " * 1000
PACKED = {
    "identity": CONTENT,
    "gzip": gzip.compress(CONTENT),
    # YTsaurus' client sends zlib streams as gzip.
    "gzip, really zlib": zlib.compress(CONTENT),
    "gzip in two": gzip.compress(CONTENT[:100]) + gzip.compress(CONTENT[100:]),
}


def unpacked(encoding: str, packed: bytes, *, most: int = 1 << 20, piece: int = 7) -> bytes:
    body = RequestBody(encoding, most, spooled=False, budget=Budget(1 << 30))
    for begin in range(0, len(packed), piece):
        body.feed(packed[begin : begin + piece])
    return body.bytes()


@pytest.mark.parametrize("how", PACKED)
def test_bodies_decompress_from_any_pieces(how: str) -> None:
    encoding = how.partition(",")[0].partition(" ")[0]
    assert unpacked(encoding, PACKED[how]) == unpacked(encoding, PACKED[how], piece=1 << 20) == CONTENT
    assert unpacked(encoding, b"") == b""


@pytest.mark.parametrize(
    ("encoding", "packed", "problem"),
    [
        ("gzip", gzip.compress(CONTENT)[:-20], "not complete"),
        ("gzip", b"no such thing", "not packed as"),
        ("gzip", gzip.compress(CONTENT) + b"more", "not packed as"),
        ("z-lzo", b"", "unknown content encoding"),
    ],
    # gzip writes the current time, but the id of a test must be the same in every process.
    ids=["cut off", "not packed", "more behind it", "unknown"],
)
def test_bodies_that_do_not_match_their_encoding_are_refused(encoding: str, packed: bytes, problem: str) -> None:
    with pytest.raises(YtError, match=problem):
        unpacked(encoding, packed)


def test_decompression_bombs_are_stopped() -> None:
    body = RequestBody("gzip", 1000, spooled=False, budget=Budget(1 << 30))
    body.feed(zlib.compress(bytes(50 << 20)))
    with pytest.raises(YtError, match="too long"):
        body.bytes()


def test_long_files_are_spooled_to_disk() -> None:
    body = RequestBody("gzip", 1 << 30, spooled=True, budget=Budget(1 << 30))
    body.feed(zlib.compress(b"x" * (SPOOL_BYTES + 1)))
    assert body.file().read() == b"x" * (SPOOL_BYTES + 1)
    body.close()


# -- formats ---------------------------------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["ключ", "$value", "$", "\x00\xff"]),
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)


@pytest.mark.parametrize("form", [JSON, Format("json", style=JsonStyle(encode_utf8=False)), YSON, YSON_TEXT])
@given(value=DOCUMENTS)
def test_values_round_trip_in_all_formats(form: Format, value: Any) -> None:
    assert read_value(write_value(value, form), form) == value


def test_json_strings_have_one_character_for_each_byte() -> None:
    assert write_value("ü", JSON) == b'"\\u00c3\\u00bc"'
    assert read_value(b'"\\u00c3\\u00bc"', JSON) == "ü"
    raw = read_value(b'"\\u00ff"', JSON)
    assert yson.get_bytes(raw) == b"\xff"
    assert write_value(raw, JSON) == b'"\\u00ff"'
    with pytest.raises(YtError, match="not a byte"):
        read_value('"ж"'.encode(), JSON)


def test_attributes_on_values_are_kept_in_both_formats() -> None:
    value = read_value(b'{"$value": "//tmp/q", "$attributes": {"cluster": "primary"}}', JSON)
    assert value == yson.to_yson_type("//tmp/q", attributes={"cluster": "primary"})
    for form in (JSON, YSON, YSON_TEXT):
        assert read_value(write_value(value, form), form) == value


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b"{", JSON),
        (b"[" * 100_000, JSON),
        (b"[" * 200 + b"]" * 200, JSON),
        (b"\xff", JSON),
        (b"1" * 5000, JSON),
        (b"36893488147419103232", JSON),
        (b'{"$value": 1, "$attributes": 2}', JSON),
        (b'{"\xc5\xb8": 1}', JSON),
        (b"{a=", YSON_TEXT),
        (b"[" * 100_000, YSON_TEXT),
        (b"\x01\xff\xff\xff\xff\xff", YSON),
        (b"", YSON),
        (b"", JSON),
    ],
)
def test_invalid_values_are_refused(data: bytes, form: Format) -> None:
    with pytest.raises(YtError) as wrong:
        read_value(data, form)
    assert wrong.value.code == Code.GENERIC


def test_unknown_formats_are_refused() -> None:
    for name in ("skiff", "dsv", 5, None):
        with pytest.raises(YtError, match="valid: json, yson"):
            parse_format(name, "parameter /input_format")


# -- parameters ------------------------------------------------------------------------------------------------------


def of_kind(input: Any = None, volatile: bool = False) -> Command:
    return Command("test", lambda *_: Answer(), input=input, volatile=volatile)


def test_later_sources_of_parameters_have_precedence() -> None:
    headers = {
        "x-yt-header-format": "<format=text>yson",
        "x-yt-parameters": "{b=2;c=2}",
        "content-type": "application/json",
    }
    call = read_call(of_kind(volatile=True), headers, b"a=1&b=1&c=1", b'{"c": 3}')
    assert dict(call.parameters) == {"a": 1, "b": 2, "c": 3}
    inside = read_call(of_kind(), {**headers, "x-yt-parameters": "{a={b=2}}"}, b"a[b]=1&a[c]=1&a[d]=x", b"")
    assert dict(inside.parameters) == {"a": {"b": 2, "c": 1, "d": "x"}}


def test_parameters_can_be_split_over_headers() -> None:
    """As clients do, in base64; the pieces are of any length."""
    text = base64.b64encode(json.dumps({"path": "//tmp/" + "ü" * 100}, ensure_ascii=False).encode()).decode()
    form = {"x-yt-header-format": "<encode_utf8=%false>json"}
    for pattern in ("x-yt-parameters{}", "x-yt-parameters-{}"):
        headers = {
            pattern.format(number): text[number * 10 : number * 10 + 10] for number in range(len(text) // 10 + 1)
        }
        assert read_call(of_kind(), {**form, **headers}, b"", b"").parameters.path().name == "ü" * 100
    with pytest.raises(YtError, match="pieces of one text in base64"):
        read_call(of_kind(), {"x-yt-parameters-0": '{"path": "//tmp"}'}, b"", b"")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (b"path=//tmp&attributes[]=type&attributes[]=id", {"path": "//tmp", "attributes": ["type", "id"]}),
        (b"a[1]=x", {"a": [None, "x"]}),
        (b"a[b][c]=-5&a[b][d]=5x", {"a": {"b": {"c": -5, "d": "5x"}}}),
        (b"n=9223372036854775807&m=9223372036854775808", {"n": (1 << 63) - 1, "m": "9223372036854775808"}),
        (b"text=%D1%84&bytes=%ff", {"text": "ф", "bytes": b"\xff"}),
        (
            b"a[$value]=json&a[$attributes][encode_utf8]=false",
            {"a": yson.to_yson_type("json", attributes={"encode_utf8": "false"})},
        ),
    ],
)
def test_a_query_has_lists_and_maps(query: bytes, found: dict[str, Any]) -> None:
    assert dict(read_call(of_kind(), {}, query, b"").parameters) == found


@pytest.mark.parametrize(
    "query",
    [b"a=1&a=2", b"a[b]=1&a[]=2", b"a[b=1", b"a]b=1", b"[x]=1", b"a[5000]=1", b"a[-1]=1", b"a" + b"[b]" * 7 + b"=1"],
)
def test_a_query_with_a_wrong_name_is_refused(query: bytes) -> None:
    with pytest.raises(YtError):
        read_call(of_kind(), {}, query, b"")


def test_a_name_that_is_not_utf_8_is_refused() -> None:
    """Random inputs found it, see docs/reliability.md."""
    headers = {"x-yt-header-format": "<format=text>yson", "x-yt-parameters": '{"producer_p\\xe1th"="//tmp/p"}'}
    with pytest.raises(YtError, match="not UTF-8"):
        read_call(of_kind(), headers, b"", b"")


def test_headers_with_thousands_of_digits_are_ignored() -> None:
    assert dict(read_call(of_kind(), {"x-yt-parameters-" + "1" * 4500: "{"}, b"", b"").parameters) == {}


def test_parameters_in_a_body_are_in_the_input_format_of_the_request() -> None:
    """Go's client sends the formats in headers, Python's client in Content-Type; the default is YSON."""
    yson_text, json_text = b"{a=1}", b'{"a": 1}'
    for headers, body in (
        ({}, yson_text),
        ({"content-type": "application/x-www-form-urlencoded"}, yson_text),
        (
            {"x-yt-header-format": "<format=text>yson", "x-yt-input-format": "<string_keyed_dict_mode=named>yson"},
            yson_text,
        ),
        ({"x-yt-input-format": '"json"'}, json_text),
        ({"content-type": "application/json"}, json_text),
        ({"content-type": "application/json", "x-yt-input-format": '"yson"'}, yson_text),
    ):
        assert read_call(of_kind(volatile=True), headers, b"", body).parameters.number("a") == 1


def test_format_headers_can_be_split_and_are_ignored_without_output() -> None:
    written = base64.b64encode(b'"yson"').decode()
    spread = {"x-yt-output-format0": written[:3], "x-yt-output-format1": written[3:]}
    assert read_call(of_kind("structured"), spread, b"", b"").output_format == YSON
    silent = Command("test", lambda *_: Answer(), output=None, volatile=True)
    assert read_call(silent, {"x-yt-output-format": '"skiff"'}, b"", b"").output_format == YSON


def test_the_body_of_a_post_is_parameters_for_reading_commands_too() -> None:
    assert takes_parameters_in_body(of_kind(), "POST")
    assert not takes_parameters_in_body(of_kind(), "GET")
    assert not takes_parameters_in_body(of_kind("structured"), "POST")


def test_the_formats_of_a_request_are_those_of_its_parameters_or_headers() -> None:
    for of_headers, written in (
        ({}, '{"$value": "yson", "$attributes": {"format": "text"}}'),
        ({"x-yt-header-format": "yson"}, "<format=text>yson"),
        ({"x-yt-header-format": "<format=text>yson"}, "<format=text>yson"),
    ):
        given = read_call(of_kind("structured"), {**of_headers, "x-yt-output-format": written}, b"", b"")
        assert (given.input_format, given.output_format) == (JSON, YSON_TEXT)
    accepted = read_call(of_kind("tabular"), {"accept": "application/x-yt-yson-binary"}, b"", b"")
    assert (accepted.input_format, accepted.output_format) == (YSON_TEXT, YSON)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-yt-parameters": "{"},
        {"x-yt-parameters": "[]"},
        {"x-yt-parameters": "\xff\xfe"},
        {"x-yt-header-format": "protobuf", "x-yt-parameters": "{}"},
        {"x-yt-header-format": "<<<", "x-yt-parameters": "{}"},
        {"x-yt-input-format": "skiff"},
        {"x-yt-output-format": "<format=<>>yson"},
        {"x-yt-parameters": '{"a": %s}' % ("1" * 4500)},
        {"x-yt-header-format": "yson", "x-yt-parameters": "{a=%s}" % ("1" * 4500)},
    ],
)
def test_wrong_headers_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(YtError):
        read_call(of_kind(), headers, b"", b"")


@pytest.mark.parametrize(
    ("getter", "values", "problem"),
    [
        (lambda p: p.text("x"), {}, "Missing required parameter /x"),
        (lambda p: p.text("x"), {"x": 5}, "received: 5; valid: a text"),
        (lambda p: p.text("x", valid=["b", "a"]), {"x": "c"}, "valid: a, b"),
        (lambda p: p.number("x"), {"x": True}, "valid: a whole number"),
        (lambda p: p.number("x", least=1), {"x": 0}, "at least 1"),
        (lambda p: p.flag("x"), {"x": 2}, "valid: %true or %false"),
        (lambda p: p.mapping("x"), {"x": []}, "valid: a map"),
        (lambda p: p.sequence("x"), {"x": {}}, "valid: a list"),
        (lambda p: p.path("x"), {"x": "tmp/t"}, "Error reading parameter /x"),
        (lambda p: p.path("x"), {"x": 1}, "valid: a path"),
    ],
)
def test_errors_show_received_and_valid_parameters(getter: Any, values: dict[str, Any], problem: str) -> None:
    with pytest.raises(YtError) as wrong:
        getter(Parameters(values, "test"))
    assert problem in wrong.value.message
    assert wrong.value.code == Code.GENERIC


def test_an_entity_is_a_missing_parameter() -> None:
    parameters = Parameters(documents.loads(b'{a=#;b=1;c=%true;d="5"}'))
    assert parameters.text("a", "default") == "default"
    assert (parameters.number("b"), parameters.flag("c"), parameters.number("d")) == (1, True, 5)


# -- errors and tokens -----------------------------------------------------------------------------------------------


def test_error_headers_are_short_and_keep_all_codes() -> None:
    deep = YtError(Code.GENERIC, "outer " + "ж" * 3000, inner=[YtError(Code.TABLET_NOT_MOUNTED, "x" * 9000)])
    response = error_response(deep)
    header = response.headers["x-yt-error"]
    assert len(header) <= ERROR_HEADER_BYTES
    assert YtError.from_json(json.loads(header)).contains(Code.TABLET_NOT_MOUNTED)
    assert YtError.from_json(json.loads(response.body)).message == deep.message
    assert response.status == 400


def test_errors_have_the_http_statuses_that_clients_expect() -> None:
    codes = [Code.AUTHENTICATION, Code.REQUEST_QUEUE_FULL, Code.RESOLVE, Code.NO_SUCH_TRANSACTION]
    assert [error_response(YtError(code, "x")).status for code in codes] == [401, 503, 400, 400]


def test_tokens_have_users(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text('[[tokens]]\ntoken = "one"\n[[tokens]]\ntoken = "two"\nuser = "alice"\n')
    known = Configuration.load(tmp_path, file, cluster_name="c", environ={})
    assert user_of({"authorization": "OAuth one"}, known) == "root"
    assert user_of({"authorization": "bearer two"}, known) == "alice"
    for wrong in ("OAuth three", "two", "OAuth", "Basic two", "OAuth two three", ""):
        with pytest.raises(YtError) as refused:
            user_of({"authorization": wrong}, known)
        assert refused.value.code == Code.AUTHENTICATION
        assert "three" not in str(refused.value)
    assert "two" not in repr(known)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "tokens = 5",
        "[[tokens]]\nuser = 'x'",
        "[[tokens]]\ntoken = 'se cret'",
        "[[tokens]]\ntoken = ''",
        "other = 1",
        "[[tokens]]\ntoken = 'secret'\nmore = 1",
        "[[tokens]]\ntoken = 'secret'\n[[tokens]]\ntoken = 'secret'",
        "secret = ",
        "[[tokens]]\ntoken = 'secret'\nuser = ''",
    ],
)
def test_wrong_configurations_are_refused_without_showing_a_token(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(content)
    with pytest.raises(OptionError) as wrong:
        Configuration.load(tmp_path, file, cluster_name="c", environ={})
    assert "secret" not in str(wrong.value)
    assert "se cret" not in str(wrong.value)


def test_a_configuration_needs_a_token(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="HEADRACE_YT_TOKEN"):
        Configuration.load(tmp_path, cluster_name="c", environ={})


@pytest.mark.parametrize("ports", [[], ["--tablestore", "0", "--ytsaurus", "0"]])
def test_one_system_is_served_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str], ports: list[str]) -> None:
    assert main(["serve", "--root", str(tmp_path), *ports]) != 0
    assert "either --tablestore or --ytsaurus" in capsys.readouterr().err


def test_a_directory_that_is_being_served_is_not_served_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_YT_TOKEN", "secret")
    monkeypatch.setattr("headrace.http.logs.log_as_json", lambda *, requests: None)
    cluster = Cluster(tmp_path)
    try:
        assert main(["serve", "--root", str(tmp_path), "--ytsaurus", "0"]) != 0
    finally:
        cluster.close()
    told = capsys.readouterr()
    assert "another process serves this directory" in told.err
    assert "secret" not in told.out + told.err
