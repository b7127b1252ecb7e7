"""Comparisons of tables of every store with the same rows in an embedded store."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.ports import Store, Table
from headrace.testing.capabilities import has_type

COLUMNS = {
    "user": "string",
    "id": "long",
    "flag": "boolean",
    "small": "short",
    "whole": "long",
    "wide": "double",
    "text": "string",
    "bytes": "binary",
    "time": "timestamp",
}
ROWS: list[dict[str, Any]] = [
    {
        "user": user,
        "id": number,
        "flag": None if number % 3 == 0 else number % 2 == 0,
        "small": number - 100,
        "whole": number * 2**40,
        "wide": (math.nan, -0.0, 0.1, None)[number % 4],
        "text": (None, "", "é🙂", "a text of more than eight bytes")[number % 4],
        "bytes": bytes([number % 256]) * (number % 20),
        "time": datetime.datetime(2026, 1, 1, 0, 0, number % 60, tzinfo=datetime.UTC),
    }
    for user in ("", "a", "é", "🙂")
    for number in range(110)
]


@pytest.fixture
def original(tmp_path: Path) -> Iterator[Table]:
    """A table of an embedded store, with whole numbers of all widths and all other types of `COLUMNS`."""
    with headrace.open(tmp_path / "original", create=True, synchronous="off") as store:
        table = store.create_table("orders", COLUMNS, ("user", "id"))
        table.put(ROWS)
        yield table


@pytest.fixture
def copy(store: Store) -> Table:
    """A table of the store with the same rows in the columns that the store can have."""
    columns = {name: kind for name, kind in COLUMNS.items() if has_type(store, kind)}
    columns["small"] = "long"
    table = store.create_table("copies", columns, ("user", "id"))
    table.put([{name: row[name] for name in columns} for row in ROWS])
    return table


def test_equal_rows_of_two_stores_are_equal_and_have_the_same_checksum(original: Table, copy: Table) -> None:
    names = list(copy.schema.names)
    found = headrace.diff_tables(original, copy, columns=names, checksums=True)
    assert found.equal
    assert found.differences == ()
    assert found.rows_a == found.rows_b == len(ROWS)
    assert len(found.ranges) > 1
    assert all(part.equal for part in found.ranges)
    assert [(column.column, column.a, column.compared) for column in found.columns] == [("small", "short", True)]
    sums = [headrace.checksum_table(table, columns=names, ranges=5) for table in (original, copy)]
    assert sums[0].checksum == sums[1].checksum
    assert [each.rows for each in sums] == [len(ROWS)] * 2


def test_differing_rows_of_two_stores_are_found(original: Table, copy: Table) -> None:
    names = list(copy.schema.names)
    copy.delete([{"user": "a", "id": 7}, {"user": "🙂", "id": 109}])
    copy.put({"user": "b", "id": 0, "text": "new"})
    copy.update({"user": "", "id": 0, "small": 5})
    copy.update({"user": "é", "id": 101, "text": "other", "wide": None})
    for one, other in ((original, copy), (copy, original)):
        found = headrace.diff_tables(one, other, columns=names, ranges=4, parallel=2)
        mine, others = ("only in a", "only in b") if one is original else ("only in b", "only in a")
        assert [(row.kind, *row.key.values(), set(row.columns)) for row in found.differences] == [
            ("changed", "", 0, {"small"}),
            (mine, "a", 7, set()),
            (others, "b", 0, set()),
            ("changed", "é", 101, {"text", "wide"}),
            (mine, "🙂", 109, set()),
        ]
        assert (found.changed, found.differing_rows) == (2, 5)
    without_rows = headrace.diff_tables(original, copy, columns=["small"], limit=0)
    assert (without_rows.changed, without_rows.differences) == (1, ())


def test_tables_without_rows_are_equal(store: Store, original: Table) -> None:
    one = store.create_table("one", {"id": "string", "n": "long"}, "id")
    other = store.create_table("two", {"id": "string", "n": "long"}, "id")
    assert headrace.diff_tables(one, other, checksums=True).equal
    assert headrace.checksum_table(one).checksum == 0
    other.put({"id": "x"})
    assert headrace.diff_tables(one, other).only_in_b == 1
