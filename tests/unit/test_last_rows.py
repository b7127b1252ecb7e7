"""The last row of each key in signed rows, against a dict."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.derived.last_rows import DELETES, PUTS, last_rows
from headrace.derived.own_names import ORDER, SIGN
from headrace.errors import SchemaError, UnsupportedError

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.string()), (SIGN, pa.int8()), (ORDER, pa.int64())])


def part(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([1, -1])), max_size=40),
    st.integers(1, 10),
    st.sampled_from([1, 200, 1 << 20]),
)
def test_puts_then_deletes_leave_the_last_row_of_each_key(
    changes: list[tuple[int, int]], size: int, waiting: int
) -> None:
    rows = [(key, f"v{place}", sign, place) for place, (key, sign) in enumerate(changes)]
    parts = [part(*rows[start : start + size]) for start in range(0, len(rows), size)]
    target = dict.fromkeys(range(3), "old")
    expected = dict(target)
    for key, value, sign, _ in rows:
        expected.pop(key, None)
        if sign > 0:
            expected[key] = value
    routed = list(last_rows(parts, ["id"], waiting_bytes=waiting))
    for which in (PUTS, DELETES):
        for row in (row for kind, found in routed if kind == which for row in found.to_pylist()):
            if which == PUTS:
                target[row["id"]] = row["value"]
            else:
                target.pop(row["id"], None)
    assert target == expected


def test_several_rows_of_one_change_with_one_key_are_an_error() -> None:
    with pytest.raises(UnsupportedError, match="several rows with the same key"):
        list(last_rows([part((1, "a", 1, 7)), part((1, "b", 1, 7))], ["id"], waiting_bytes=1))
    # An update is two rows of one change after a join, too.
    routed = list(last_rows([part((1, "a", -1, 7), (2, "b", -1, 7), (1, "c", 1, 8), (2, "d", 1, 8))], ["id"]))
    assert [(kind, found.num_rows) for kind, found in routed] == [(PUTS, 2)]


def test_null_in_a_key_names_the_column() -> None:
    with pytest.raises(SchemaError, match=r"null for key column 'id'.*coalesce.*IS NOT NULL"):
        list(last_rows([part((None, "a", 1, 0))], ["id"]))
