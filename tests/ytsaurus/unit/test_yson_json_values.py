"""YSON values in JSON: keys with dollars, and types that JSON does not have."""

from __future__ import annotations

from typing import Any

import pytest
from yt.yson import YsonUint64

from headrace_ytsaurus.endpoint.formats import JSON, read_value
from headrace_ytsaurus.wire.errors import YtError
from headrace_ytsaurus.wire.yson.documents import YsonError
from headrace_ytsaurus.wire.yson.json_values import restored


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        ("18446744073709551615", "uint64", YsonUint64((1 << 64) - 1)),
        (5, "uint64", YsonUint64(5)),
        ("-5", "int64", -5),
        (5, "double", 5.0),
        ("1.5", "double", 1.5),
        ("false", "boolean", False),
        ("5", "string", b"5"),
    ],
)
def test_type_converts_a_value(value: Any, kind: str, found: Any) -> None:
    back = restored([{"$value": value, "$type": kind}])[0]
    assert (back, type(back)) == (found, type(found))


@pytest.mark.parametrize(
    "value",
    [
        {"$a": 1},
        {"$": 1},
        {"$attributes": {}},
        {"$type": "int64"},
        {"$value": 1, "$attributes": {"$a": 1}},
        {"$value": 1, "$attributes": 5},
        {"$value": 1, "$type": "int"},
        {"$value": 1, "$type": ["int64"]},
        {"$value": "x", "$type": "int64"},
        {"$value": "1_0", "$type": "int64"},
        {"$value": -1, "$type": "uint64"},
        {"$value": 1 << 63, "$type": "int64"},
        {"$value": 1, "$type": "boolean"},
        {"$value": 1, "$type": "string"},
        {"$value": [1], "$type": "double"},
    ],
)
def test_invalid_dollar_keys_are_refused(value: Any) -> None:
    with pytest.raises(YsonError):
        restored({"inside": [value]})


def test_structured_values_have_the_same_rules() -> None:
    assert read_value(b'{"$$a": {"$value": "5", "$type": "uint64"}, "$$$b": 1}', JSON) == {"$a": 5, "$$b": 1}
    for wrong in (b'{"$a": 1}', b'{"$attributes": {}}', b'{"$value": "x", "$type": "int64"}'):
        with pytest.raises(YtError, match="Error parsing JSON"):
            read_value(wrong, JSON)
    deep = b'{"$value": ' * 200 + b"1" + b"}" * 200
    with pytest.raises(YtError, match="nested too deep"):
        read_value(deep, JSON)
