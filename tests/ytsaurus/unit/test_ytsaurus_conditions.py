"""Conditions of a scan in the query language, and the conditions that headrace evaluates itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.schema import Column
from headrace.rows.satisfied import satisfied
from headrace_ytsaurus.store.schemas import TableLayout
from headrace_ytsaurus.store.tables.conditions import literal, quoted, where
from headrace_ytsaurus.wire.types import YtColumn

NAN = float("nan")
LAYOUT = TableLayout.of(
    [
        YtColumn.of("user", "string", sort_order="ascending"),
        YtColumn.of("order", "int64", sort_order="ascending"),
        YtColumn.of("count", "uint32", required=False),
        YtColumn.of("price", "double", required=False),
        YtColumn.of("raw", {"type_name": "tagged", "tag": "binary", "item": "string"}, required=False),
    ],
    "orders",
)


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        (("user", "=", 'a"b\\\n'), '[user] = "a\\x22b\\x5c\\x0a"'),
        (("user", "=", "é"), '[user] = "\\xc3\\xa9"'),
        (("user", "starts with", "ab"), '[user] >= "ab" and [user] < "ac"'),
        (("user", "starts with", "\U0010ffff"), '[user] >= "\\xf4\\x8f\\xbf\\xbf"'),
        (("order", ">=", -(2**63)), "[order] >= (-9223372036854775807 - 1)"),
        (("order", "in", [1, 2, None]), "[order] in (1, 2)"),
        (("count", "<", 5), "[count] < 5u"),
        (("raw", "=", b"a\x00"), '[raw] = "a\\x00"'),
        (("raw", "=", b"\xff"), ""),
        # Conditions with another meaning in the service, or none, are evaluated by headrace.
        (("price", "<", 5.0), ""),
        (("user", "!=", "a"), ""),
        (("user", "is null", None), ""),
        (("user", "=", None), ""),
        (("order", "in", list(range(101))), ""),
        (("order", "in", []), ""),
    ],
)
def test_conditions_are_pushed_down_only_with_the_same_meaning(predicate: tuple[str, str, Any], text: str) -> None:
    assert where(LAYOUT, KeyRange(), [Predicate(*predicate)], None) == text


def test_bounds_of_a_key_range_compare_as_many_columns_as_they_have() -> None:
    text = where(LAYOUT, KeyRange(("a",), ("b", 5)), [], ("a", 7))
    assert text == '([user], [order]) > ("a", 7) and ([user]) >= ("a") and ([user], [order]) < ("b", 5)'
    assert where(LAYOUT, KeyRange(), [], None) == ""


def test_all_names_are_quoted() -> None:
    assert quoted("a.b c") == "[a.b c]"
    assert quoted("a]`b\\") == "`a]\\`b\\\\`"
    assert literal(LAYOUT.columns["count"], 0) == "0u"


@pytest.mark.parametrize(
    ("operator", "value", "rows"),
    [
        ("=", 0.0, [1, 2]),
        ("=", NAN, [4]),
        ("!=", 1.5, [1, 2, 4]),
        ("<", NAN, [1, 2, 3]),
        ("<=", NAN, [1, 2, 3, 4]),
        (">", 1.0, [3, 4]),
        (">=", NAN, [4]),
        ("in", [NAN, 1.5, None], [3, 4]),
        ("is null", None, [0]),
        ("is not null", None, [1, 2, 3, 4]),
    ],
)
def test_nulls_and_nan_compare_as_in_spark(operator: str, value: Any, rows: list[int]) -> None:
    batch = pa.RecordBatch.from_pydict({"n": range(5), "value": [None, 0.0, -0.0, 1.5, NAN]})
    column = Column("value", pa.float64())
    found = satisfied(batch, [column], [Predicate("value", operator, value)])
    assert found.column("n").to_pylist() == rows
