"""Columns as JSON: the same values as Python's own reader and writer of JSON have."""

from __future__ import annotations

import base64
import datetime
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UnsupportedError
from headrace.model.tables.json_forms import PLAIN, Decimals, JsonForm
from headrace.rows.json_texts import base64_texts, json_texts, objects

DEBEZIUM = JsonForm(debezium=True, decimals=Decimals.PRECISE)
_EPOCH = datetime.datetime(1970, 1, 1)
_TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"))
_LOCAL = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31))
_DECIMALS = st.integers(-(10**20) + 1, 10**20 - 1).map(lambda number: Decimal(number).scaleb(-5))
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), _TEXTS),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "flag": (pa.bool_(), st.booleans()),
    "double": (pa.float64(), st.floats()),
    "float": (pa.float32(), st.floats(width=32)),
    "number": (pa.decimal128(20, 5), _DECIMALS),
    "bytes": (pa.binary(), st.binary()),
    "date": (pa.date32(), st.dates()),
    "time": (pa.timestamp("us", "UTC"), _LOCAL.map(lambda time: time.replace(tzinfo=datetime.UTC))),
    "local": (pa.timestamp("us"), _LOCAL),
    "texts": (pa.list_(pa.string()), st.lists(st.none() | _TEXTS)),
    "numbers": (pa.list_(pa.int32()), st.lists(st.none() | st.integers(-5, 5))),
}
_ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in COLUMNS.items()}), max_size=8)


def rows_as_json(rows: list[dict[str, Any]], form: JsonForm) -> list[dict[str, Any]]:
    # A slice, so that no code takes the first value of a buffer for that of the array.
    schema = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
    batch = pa.RecordBatch.from_pylist([{}, *rows], schema).slice(1)
    texts = {name: json_texts(batch.column(name), form) for name in schema.names}
    return [json.loads(text, parse_float=Decimal) for text in objects(texts, len(rows)).to_pylist()]


def as_iso(time: datetime.datetime) -> str:
    text = time.isoformat(timespec="microseconds")
    local, zone = (text.removesuffix("+00:00"), "Z") if time.tzinfo else (text, "")
    return local.rstrip("0").rstrip(".") + zone


def as_number(value: float) -> Any:
    if math.isnan(value):
        return "NaN"
    return ("Infinity" if value > 0 else "-Infinity") if math.isinf(value) else value


def bytes_of(value: Decimal) -> str:
    number = int(value.scaleb(5))
    # As Java's BigInteger.toByteArray: no needless bytes, and one bit for the sign.
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def expected(name: str, value: Any, form: JsonForm) -> Any:
    if value is None or name in ("text", "long", "flag", "texts", "numbers"):
        return value
    if name in ("double", "float"):
        return as_number(value)
    if name == "bytes":
        return base64.b64encode(value).decode()
    if name == "number":
        return bytes_of(value) if form.debezium else value
    if name == "date":
        return (value - _EPOCH.date()).days if form.debezium else value.isoformat()
    if name == "local" and form.debezium:
        return (value - _EPOCH) // datetime.timedelta(microseconds=1)
    return as_iso(value)


@given(_ROWS)
def test_each_value_is_the_one_that_python_reads(rows: list[dict[str, Any]]) -> None:
    for form in (PLAIN, DEBEZIUM):
        for found, row in zip(rows_as_json(rows, form), rows, strict=True):
            assert list(found) == list(COLUMNS)
            for name, value in row.items():
                wanted, got = expected(name, value, form), found[name]
                if name in ("double", "float") and isinstance(wanted, float):
                    assert pa.scalar(float(got), COLUMNS[name][0]).as_py() == wanted
                else:
                    assert got == wanted, (name, form)


@given(_TEXTS, _TEXTS)
def test_names_of_fields_are_escaped(first: str, second: str) -> None:
    columns = {name: pa.array(["1"]) for name in (first, second)}
    assert json.loads(objects(columns, 1)[0].as_py()) == dict.fromkeys((first, second), 1)


@given(st.lists(st.none() | st.binary()))
def test_base64_is_that_of_python(values: list[bytes | None]) -> None:
    found = base64_texts(pa.array([b"before", *values], pa.binary()).slice(1)).to_pylist()
    assert found == [None if value is None else base64.b64encode(value).decode() for value in values]


def test_every_control_character_is_escaped() -> None:
    text = "".join(map(chr, range(1, 0x80)))
    (found,) = json_texts(pa.array([text]), PLAIN).to_pylist()
    assert json.loads(found) == text
    assert found.isprintable() or "\x7f" in found


def test_decimals_are_texts_if_wished() -> None:
    values = pa.array([Decimal("1.50"), None], pa.decimal128(5, 2))
    assert json_texts(values, JsonForm(decimals=Decimals.STRING)).to_pylist() == ['"1.50"', "null"]
    assert json_texts(values, JsonForm(decimals=Decimals.DOUBLE)).to_pylist() == ["1.50", "null"]


def test_a_row_without_columns_is_an_empty_object() -> None:
    assert objects({}, 2).to_pylist() == ["{}", "{}"]


@pytest.mark.parametrize("kind", [kind for kind, _ in COLUMNS.values()])
def test_no_values_are_no_texts(kind: pa.DataType) -> None:
    for form in (PLAIN, DEBEZIUM):
        assert json_texts(pa.array([], kind), form).to_pylist() == []


def test_a_type_without_a_form_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match="no form in JSON"):
        json_texts(pa.array([{"a": 1}]), PLAIN)
