"""Comparisons of tables: the differences against a model of dicts, memory, changes between the passes, errors."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import OptionError, SchemaError, StoreError
from headrace.inspect.comparing.key_ranges import closed_range, for_table
from headrace.inspect.comparing.merging import differences
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import TableSchema
from headrace.ports import Store, Table
from headrace.testing.effort import thorough

KEY = ("k1", "k2")
SCHEMA = pa.schema(
    [("k1", pa.string()), ("k2", pa.int64()), ("n", pa.int32()), ("text", pa.string()), ("list", pa.list_(pa.int64()))]
)
ATTRIBUTES = tuple(SCHEMA.names[2:])
Rows = dict[tuple[Any, ...], tuple[Any, ...]]

_keys = st.tuples(st.sampled_from(["", "a", "a\0", "ab", "b", "é", "🙂"]), st.integers(-2, 2))
_cells = st.tuples(
    st.none() | st.integers(0, 2),
    st.none() | st.sampled_from(["", "x"]),
    st.none() | st.lists(st.integers(0, 1), max_size=2),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as opened:
        yield opened


@st.composite
def two_tables(draw: st.DrawFn) -> tuple[Rows, Rows]:
    """Return two tables; many rows of the second one are equal to those of the first."""
    a: Rows = draw(st.dictionaries(_keys, _cells, max_size=25))
    b = {key: cells for key, cells in a.items() if draw(st.integers(0, 5))}
    b |= {key: draw(_cells) for key in a if not draw(st.integers(0, 5))}
    return a, b | draw(st.dictionaries(_keys, _cells, max_size=2))


def batches_of(rows: Rows, cuts: Sequence[int]) -> list[pa.RecordBatch]:
    """Return rows in key order, in batches of some sizes; a batch may be empty."""
    ordered = [dict(zip(SCHEMA.names, key + rows[key], strict=True)) for key in sorted(rows)]
    whole = pa.RecordBatch.from_pylist(ordered, SCHEMA)
    found, start = [], 0
    for size in cuts:
        found.append(whole.slice(start, size))
        start += size
    return [*found, whole.slice(start)]


def expected_kinds(a: Rows, b: Rows) -> dict[tuple[Any, ...], tuple[str, ...]]:
    """Return the kind and the differing columns by key, as a loop over both tables finds them."""
    found: dict[tuple[Any, ...], tuple[str, ...]] = {}
    for key in sorted({*a, *b}):
        if key not in b:
            found[key] = ("only in a",)
        elif key not in a:
            found[key] = ("only in b",)
        elif a[key] != b[key]:
            pairs = zip(ATTRIBUTES, a[key], b[key], strict=True)
            found[key] = ("changed", *(name for name, one, other in pairs if one != other))
    return found


@settings(max_examples=thorough(300), deadline=None)
@given(tables=two_tables(), cuts=st.tuples(*[st.lists(st.integers(0, 6), max_size=8)] * 2))
def test_the_differences_of_two_streams_are_those_of_a_loop(tables: tuple[Rows, Rows], cuts: Any) -> None:
    a, b = tables
    found: dict[tuple[Any, ...], tuple[str, ...]] = {}
    for part in differences(batches_of(a, cuts[0]), batches_of(b, cuts[1]), KEY, ATTRIBUTES):
        for rows, kind, original in ((part.only_a, "only in a", a), (part.only_b, "only in b", b)):
            for row in rows.to_pylist():
                key, cells = tuple(row.values())[:2], tuple(row.values())[2:]
                assert original[key] == cells
                found[key] = (kind,)
        pairs = zip(part.changed_a.to_pylist(), part.changed_b.to_pylist(), strict=True)
        for index, (one, other) in enumerate(pairs):
            key = (one["k1"], one["k2"])
            assert (tuple(one.values()), tuple(other.values())) == (key + a[key], key + b[key])
            found[key] = ("changed", *(name for name, flags in part.changed_columns.items() if flags[index]))
    assert dict(sorted(found.items())) == expected_kinds(a, b)


@settings(max_examples=thorough(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables=two_tables(), ranges=st.integers(1, 8), limit=st.none() | st.integers(0, 5))
def test_the_differences_of_two_tables_are_those_of_a_loop(
    store: Store, tables: tuple[Rows, Rows], ranges: int, limit: int | None
) -> None:
    a, b = (filled(store, name, rows) for name, rows in zip("ab", tables, strict=True))
    expected = expected_kinds(*tables)
    found = headrace.diff_tables(a, b, ranges=ranges, limit=limit, checksums=True)
    rows = [(tuple(row.key.values()), (row.kind, *row.columns)) for row in found.differences]
    assert rows == list(expected.items())[:limit]
    kinds = [kind for kind, *_ in expected.values()]
    counts = tuple(kinds.count(kind) for kind in ("only in a", "only in b", "changed"))
    assert (found.only_in_a, found.only_in_b, found.changed) == counts
    assert (found.rows_a, found.rows_b) == tuple(map(len, tables))
    assert found.equal == all(part.equal for part in found.ranges) == (tables[0] == tables[1])
    for table, side in ((a, "a"), (b, "b")):
        whole = headrace.checksum_table(table, ranges=1)
        parts = [getattr(part, side) for part in found.ranges]
        assert whole.checksum == sum(part.checksum for part in parts) % 2**64
        assert whole.rows == sum(part.rows for part in parts)


def filled(store: Store, name: str, rows: Rows) -> Table:
    store.drop_table(name, missing_ok=True)
    table = store.create_table(name, SCHEMA, KEY)
    if rows:
        table.put(pa.Table.from_batches(batches_of(rows, ())))
    return table


def test_memory_holds_a_batch_of_each_stream() -> None:
    rows, batches = 10_000, 30
    held: list[int] = []

    def stream(missing: int) -> Iterator[pa.RecordBatch]:
        for start in range(0, batches * rows, rows):
            numbers = np.arange(start, start + rows)
            numbers = numbers[numbers % 1000 != missing]
            values = pa.array(np.char.add("a text of some length ", numbers.astype(str)))
            held.append(pa.total_allocated_bytes())
            yield pa.record_batch({"k": pa.array(numbers), "text": values.cast(pa.string())})

    size = next(stream(0)).nbytes
    before = pa.total_allocated_bytes()
    held.clear()
    count = sum(
        part.only_a.num_rows + part.only_b.num_rows for part in differences(stream(1), stream(2), ["k"], ["text"])
    )
    assert count == 2 * batches * rows // 1000
    # The streams have 60 batches.
    assert max(held) - before < 8 * size


class Changing:
    """A table whose rows change between the two passes: its method `scan` calls a function after a number of scans."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: Table, after: int, change: Any) -> None:
        original, self.scans = table.scan, 0

        def scan(*arguments: Any, **options: Any) -> pa.RecordBatchReader:
            self.scans += 1
            if self.scans == after + 1:
                change()
            return original(*arguments, **options)

        monkeypatch.setattr(table, "scan", scan)


def test_rows_that_become_equal_before_the_second_pass_are_not_reported(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = filled(store, "a", {("a", n): (n, "x", None) for n in range(9)}), filled(store, "b", {})
    b.put(a.scan(where=[("k2", "<", 7)]).read_all())
    b.delete({"k1": "a", "k2": 3})
    b.update({"k1": "a", "k2": 0, "n": 5})

    def arrive() -> None:
        b.put(a.scan(where=[("k2", "in", [0, 7])]).read_all())
        # It was equal in the first pass, so the difference may be temporary.
        b.update({"k1": "a", "k2": 5, "n": 6})

    changing = Changing(monkeypatch, b, 1, arrive)
    # With several threads, another part of the second pass could begin before the change.
    found = headrace.diff_tables(a, b, ranges=1, parallel=1)
    assert changing.scans > 1
    assert [(row.kind, row.key["k2"]) for row in found.differences] == [("only in a", 3), ("only in a", 8)]
    assert (found.only_in_a, found.only_in_b, found.changed) == (2, 0, 0)


def test_one_pass_reports_what_it_finds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = filled(store, "a", {("a", 1): (1, None, None)}), filled(store, "b", {})
    changing = Changing(monkeypatch, b, 1, lambda: pytest.fail("a second pass"))
    assert headrace.diff_tables(a, b, ranges=1, recheck_after=None).only_in_a == 1
    assert changing.scans == 1


def test_schemas_are_compared(store: Store) -> None:
    a = store.create_table("a", {"id": "long", "n": "short", "only": "int", "kind": "string", "same": "date"}, "id")
    b = store.create_table("b", {"id": "long", "same": "date", "n": "long", "kind": "double", "new": "int"}, "id")
    for table in (a, b):
        table.put({"id": 1, "n": 5, "same": datetime.date(2026, 1, 1)})
    found = headrace.diff_tables(a, b)
    assert [vars(column) for column in found.columns] == [
        {"column": "n", "a": "short", "b": "long", "compared": True},
        {"column": "only", "a": "int", "b": None, "compared": False},
        {"column": "kind", "a": "string", "b": "double", "compared": False},
        {"column": "new", "a": None, "b": "int", "compared": False},
    ]
    assert found.compared == ("n", "same")
    assert (found.differing_rows, found.equal) == (0, False)
    assert headrace.diff_tables(a, b, columns=["same", "n"]).equal
    assert not headrace.diff_tables(a, b, columns=["kind"]).equal
    with pytest.raises(SchemaError, match=r"no such column.*only"):
        headrace.diff_tables(a, b, columns=["only"])


def test_texts_and_bytes_as_keys_are_the_same_rows(store: Store) -> None:
    a = store.create_table("a", {"k": "string", "n": "long"}, "k")
    b = store.create_table("b", {"k": "binary", "n": "long"}, "k")
    a.put([{"k": text, "n": 1} for text in ("a", "é", "🙂", "same")])
    b.put([{"k": data, "n": 1} for data in (b"\xff", "é".encode(), b"a\xfe", b"same")])
    for one, other in ((a, b), (b, a)):
        found = headrace.diff_tables(one, other, ranges=8)
        assert [row.key["k"] for row in found.differences if row.kind == f"only in {'ba'[one is a]}"] == ["a", "🙂"]
        assert [row.key["k"] for row in found.differences if row.kind == f"only in {'ab'[one is a]}"] == [
            b"a\xfe",
            b"\xff",
        ]
    assert [(column.column, column.compared) for column in found.columns] == [("k", True)]


def test_tables_with_other_keys_cannot_be_compared(store: Store) -> None:
    tables = {
        name: store.create_table(name, {"k": kind, "l": "long"}, key)
        for name, kind, key in (("a", "string", "k"), ("b", "string", ("k", "l")), ("c", "long", "k"))
    }
    with pytest.raises(SchemaError, match=r"different primary keys.*same key columns"):
        headrace.diff_tables(tables["a"], tables["b"])
    with pytest.raises(SchemaError, match=r"key column 'k'.*string and long"):
        headrace.diff_tables(tables["a"], tables["c"])


@pytest.mark.parametrize(
    "arguments",
    [
        {"ranges": 0},
        {"ranges": 1.5},
        {"parallel": 65},
        {"parallel": True},
        {"limit": -1},
        {"recheck_after": -1},
        {"recheck_after": float("nan")},
        {"recheck_after": "soon"},
        {"columns": "price"},
        {"columns": 5},
        {"columns": [["n"]]},
    ],
)
def test_invalid_arguments_are_refused(store: Store, arguments: Mapping[str, Any]) -> None:
    table = filled(store, "a", {})
    with pytest.raises((OptionError, SchemaError)):
        headrace.diff_tables(table, table, **arguments)
    with pytest.raises(OptionError, match="needs tables"):
        headrace.diff_tables(table, "b")  # type: ignore[arg-type]


def test_an_error_of_one_range_ends_the_comparison(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    a = filled(store, "a", {("a", n): (n, "x", None) for n in range(500)})
    b = filled(store, "b", {})
    original = b.scan

    def scan(columns: Any = None, where: Any = None, *, keys: KeyRange) -> pa.RecordBatchReader:
        if keys.low is not None:
            raise StoreError("the store is gone")
        return original(columns, where, keys=keys)

    monkeypatch.setattr(b, "scan", scan)
    with pytest.raises(StoreError, match="the store is gone"):
        headrace.diff_tables(a, b, ranges=8)


@pytest.mark.parametrize("numbers", [[1, 3, 2], [1, 2, 2], [5, 6, 7, 4]])
@pytest.mark.parametrize("size", [1, 2, 10])
def test_rows_in_another_order_are_refused(numbers: list[int], size: int) -> None:
    def stream(values: list[int]) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(values), size):
            yield pa.record_batch({"k": pa.array(values[start : start + size])})

    with pytest.raises(StoreError, match=r"another order.*checksum"):
        list(differences(stream(numbers), stream([0, 9]), ["k"], []))


@pytest.mark.parametrize(
    ("last", "high"),
    [
        (("a", 5), ("a", 6)),
        (("a", 2**63 - 1), ("a\0",)),
        ((1, b"a"), (1, b"a\0")),
        ((2**63 - 1,), None),
        ((2**63 - 1, 2**63 - 1), None),
    ],
)
def test_a_closed_range_ends_after_its_last_key(last: Any, high: Any) -> None:
    assert closed_range(last, last) == KeyRange(last, high)


def test_bounds_that_are_no_text_are_open() -> None:
    texts = TableSchema.of({"k": "string", "l": "binary"}, ("k", "l"))
    assert for_table(KeyRange((b"a", "b"), (b"\xff", "b")), texts) == KeyRange(("a", b"b"), None)
