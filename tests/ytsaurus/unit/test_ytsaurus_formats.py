"""Attributes of formats change values and rows as on a cluster, or are refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from yt import yson

from headrace_ytsaurus.endpoint.context import Answer, Command
from headrace_ytsaurus.endpoint.format_attributes import format_of_header, parse_format
from headrace_ytsaurus.endpoint.formats import (
    Format,
    read_json_values,
    read_value,
    write_items,
    write_rows,
    write_value,
)
from headrace_ytsaurus.endpoint.http.requests import read_call
from headrace_ytsaurus.wire.errors import YtError
from headrace_ytsaurus.wire.types import columns_of
from headrace_ytsaurus.wire.yson import documents
from headrace_ytsaurus.wire.yson.documents import YsonError


def form(name: str = "json", **attributes: Any) -> Format:
    return parse_format(yson.to_yson_type(name, attributes=attributes), "parameter /output_format")


def written(value: Any, **attributes: Any) -> Any:
    return json.loads(write_value(value, form(**attributes)))


VALUE = {"n": 5, "u": yson.YsonUint64(7), "d": 1.0, "b": True, "s": "жук", "e": None, "l": [1, {}], "$k": ""}


@pytest.mark.parametrize("flag", [False, "false", 0])
def test_strings_are_texts_without_encode_utf8(flag: Any) -> None:
    assert written("жук", encode_utf8=flag) == "жук"
    assert written("жук", encode_utf8="true").encode("latin-1").decode() == "жук"
    with pytest.raises(YtError, match='attribute "encode_utf8" of the format in parameter /output_format'):
        form(encode_utf8="no")


def test_scalars_are_texts_with_types() -> None:
    found = written(VALUE, stringify="true", annotate_with_types="true", encode_utf8="false")
    assert found == {
        "n": {"$type": "int64", "$value": "5"},
        "u": {"$type": "uint64", "$value": "7"},
        "d": {"$type": "double", "$value": "1"},
        "b": {"$type": "boolean", "$value": "true"},
        "s": {"$type": "string", "$value": "жук"},
        "e": None,
        "l": [{"$type": "int64", "$value": "1"}, {}],
        "$$k": {"$type": "string", "$value": ""},
    }
    read = read_value(json.dumps(found).encode(), form(encode_utf8=False))
    assert read == VALUE
    assert isinstance(read["u"], yson.YsonUint64)
    assert written([5, 0.1, False], stringify=True) == ["5", "0.1", "false"]
    assert written([5, "a"], annotate_with_types=True) == [
        {"$type": "int64", "$value": 5},
        {"$type": "string", "$value": "a"},
    ]


def test_long_strings_are_cut() -> None:
    value = yson.to_yson_type("жук", attributes={"a": "long"})
    assert written(value, string_length_limit=4, encode_utf8=False) == {
        "$attributes": {"a": "long"},
        "$incomplete": True,
        "$value": "жу",
    }
    assert written("abc", string_length_limit="3") == "abc"
    with pytest.raises(YsonError, match="not UTF-8"):
        written("жук", string_length_limit=3, encode_utf8=False)


def test_attributes_are_written_never_always_or_on_demand() -> None:
    value = yson.to_yson_type({"a": yson.to_yson_type(1, attributes={"x": 2})})
    assert written(value, attributes_mode="never", annotate_with_types=True) == {"a": 1}
    assert written(value, attributes_mode="on_demand") == {"a": {"$attributes": {"x": 2}, "$value": 1}}
    two = {"$attributes": {}, "$value": 2}
    assert written(value, attributes_mode="always") == {
        "$attributes": {},
        "$value": {"a": {"$attributes": {"x": two}, "$value": 1}},
    }


def test_plain_json_has_no_special_keys() -> None:
    data = b'{"$a": 1, "$$b": {"$value": "5", "$type": "int64"}}'
    assert read_value(data, form(plain="true")) == {"$a": 1, "$$b": {"$value": "5", "$type": "int64"}}
    assert next(read_json_values(data, form(plain=True)))["$a"] == 1
    with pytest.raises(YtError, match="Error parsing JSON"):
        read_value(data, form())


def test_numbers_that_json_lacks_are_texts_or_refused() -> None:
    values = [math.nan, math.inf, -math.inf, 1.5]
    assert written(values, stringify_nan_and_infinity=True) == ["nan", "inf", "-inf", 1.5]
    assert written(values, stringify=True) == ["nan", "inf", "-inf", "1.5"]
    with pytest.raises(YtError, match="stringify_nan_and_infinity"):
        written(values)


def test_pretty_formats_have_a_line_for_each_item() -> None:
    assert write_value({"a": 1}, form(format="pretty")) == b'{\n    "a": 1\n}'
    pretty = form("yson", format="pretty")
    assert write_value({"a": 1}, pretty) == b'{\n    "a" = 1;\n}'
    assert write_items([{"a": 1}, None], pretty) == b'{\n    "a" = 1;\n};\n#;\n'
    assert pretty.content_type == "application/x-yt-yson-pretty"
    reads_rows = Command("test", lambda *_: Answer(), input="tabular", volatile=True)
    headers = {"x-yt-header-format": "<format=text>yson", "x-yt-input-format": "<format=pretty>json"}
    with pytest.raises(YtError, match="Pretty JSON"):
        read_call(reads_rows, headers, b"", b"")


COLUMNS = columns_of(
    [
        {"name": "k", "type": "int64"},
        {"name": "u", "type": "uint64"},
        {"name": "s", "type": "string"},
        {"name": "any", "type": "any"},
        {
            "name": "point",
            "type_v3": {
                "type_name": "struct",
                "members": [{"name": "x", "type": "int64"}, {"name": "y", "type": "utf8"}],
            },
        },
        {"name": "by_name", "type_v3": {"type_name": "dict", "key": "string", "value": "int64"}},
        {
            "name": "choice",
            "type_v3": {
                "type_name": "optional",
                "item": {
                    "type_name": "variant",
                    "members": [{"name": "a", "type": "int64"}, {"name": "b", "type": "bool"}],
                },
            },
        },
    ]
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "k": 1,
            "u": 2,
            "s": b"long",
            "any": b"{a=1u}",
            "point": {"x": 1, "y": "y"},
            "by_name": [(b"one", 1)],
            "choice": {"_va": None, "_vb": True},
        },
        {"k": None, "point": {"x": 0, "y": ""}, "by_name": []},
    ],
    schema=pa.schema([(column.name, column.of_bytes.type) for column in COLUMNS]),
)
OF_BYTES = [column.of_bytes for column in COLUMNS]


def rows(**attributes: Any) -> list[Any]:
    return [json.loads(line) for line in write_rows([ROWS], OF_BYTES, form(**attributes)).splitlines()]


def test_rows_in_json_obey_the_attributes() -> None:
    found, empty = rows(stringify="true", annotate_with_types="true", string_length_limit=2)
    assert found["k"] == {"$type": "int64", "$value": "1"}
    assert found["u"] == {"$type": "uint64", "$value": "2"}
    assert found["s"] == {"$incomplete": True, "$type": "string", "$value": "lo"}
    assert found["any"] == {"a": {"$type": "uint64", "$value": "1"}}
    assert empty["k"] is None
    assert rows(skip_null_values="true")[1] == {"point": {"x": 0, "y": ""}, "by_name": []}
    assert rows()[0] == {
        "k": 1,
        "u": 2,
        "s": "long",
        "any": {"a": 1},
        "point": {"x": 1, "y": "y"},
        "by_name": [["one", 1]],
        "choice": ["b", True],
    }


def test_composite_values_have_two_forms() -> None:
    named = rows(string_keyed_dict_mode="named")[0]
    assert (named["by_name"], named["point"]) == ({"one": 1}, {"x": 1, "y": "y"})
    by_place = rows(complex_type_mode="positional")[0]
    assert (by_place["point"], by_place["choice"], by_place["by_name"]) == ([1, "y"], [1, True], [["one", 1]])
    assert rows(complex_type_mode="positional")[1]["choice"] is None
    data = write_rows([ROWS], OF_BYTES, form("yson", string_keyed_dict_mode="named", skip_null_values=True))
    found, empty = documents.loads(b"[" + data + b"]")
    assert found["by_name"] == {"one": 1}
    assert "k" not in empty


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("json", {"support_infinity": True}),
        ("json", {"decimal_mode": "text"}),
        ("json", {"attributes_mode": "sometimes"}),
        ("json", {"string_length_limit": -1}),
        ("json", {"format": "binary"}),
        ("json", {"colour": "blue"}),
        ("yson", {"time_mode": "text"}),
        ("yson", {"uuid_mode": "text_yt"}),
        ("yson", {"format": "small"}),
        ("yson", {"encode_utf8": True}),
        ("yson", {"enable_type_conversion": True}),
        ("yson", {"complex_type_mode": 5}),
    ],
)
def test_other_attributes_are_refused_by_name(name: str, attributes: dict[str, Any]) -> None:
    with pytest.raises(YtError, match=next(iter(attributes))):
        form(name, **attributes)


def test_attributes_of_official_clients_are_known() -> None:
    """Python's client sends its own settings, and Go's client asks for dicts as maps."""
    python = dict.fromkeys(("ignore_inner_attributes", "always_create_attributes", "lazy", "sort_keys"), False)
    assert form("yson", format="binary", **python) == Format("yson")
    assert form("yson", string_keyed_dict_mode="named").named_dicts
    assert form(memory_limit=1 << 30, buffer_size=5, support_infinity="false", enable_integral_type_conversion=True)


def test_content_types_mean_formats() -> None:
    assert format_of_header("application/x-yt-yson-pretty") == Format("yson", text=True, pretty=True)
    assert format_of_header("text/plain") is None
    for other in ("text/csv", "text/x-tskv; charset=utf-8"):
        with pytest.raises(YtError, match="does not have the format of a content type"):
            format_of_header(other)
    # The bytes of a file can have any content type.
    writes_file = Command("test", lambda *_: Answer(), input="binary", output="structured", volatile=True)
    assert read_call(writes_file, {"content-type": "text/csv", "accept": "application/json"}, b"", b"")
    reads_file = Command("test", lambda *_: Answer(), output="binary")
    assert read_call(reads_file, {"accept": "text/csv"}, b"", b"")
    with pytest.raises(YtError, match="text/csv"):
        read_call(Command("test", lambda *_: Answer(), output="tabular"), {"accept": "text/csv"}, b"", b"")
