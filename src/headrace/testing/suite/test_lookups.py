"""Reads of many keys at once, and of the first rows of many key ranges."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import SchemaError
from headrace.model.tables.conditions import KeyRange
from headrace.ports import Store, Table
from headrace.testing.capabilities import has_key_type, key_types, storable, traits
from headrace.testing.effort import thorough

KEY = ("k1", "k2", "k3")
BYTES = [b"a", b"a\x00", b"ab", b"\x00", b"\xff\xff", b"001", "é".encode()]
LONGS = [-(2**63), -10, -1, 0, 7, 10, 2**63 - 1]
TEXTS = ["x", "x\x00y", "é", "0000000003abc", "🙂"]
keys = st.tuples(st.sampled_from(BYTES), st.sampled_from(LONGS), st.sampled_from(TEXTS))


def columns_of(store: Store) -> dict[str, str]:
    """Return the columns of the table: of type binary, unless keys of the store cannot have it."""
    some = "binary" if has_key_type(store, "binary") else "string"
    return {"k1": some, "k2": "long", "k3": "string", "n": "long", "text": "string", "bytes": some}


def first(store: Store, value: bytes) -> Any:
    """Return a value of the first column."""
    return value if has_key_type(store, "binary") else value.decode("latin-1")


def row_of(key: tuple[Any, int, str], number: int) -> dict[str, Any]:
    """Return a row; some have nulls."""
    k1, k2, k3 = key
    text = None if number % 3 == 0 else k3
    return {"k1": k1, "k2": k2, "k3": k3, "n": number, "text": text, "bytes": None if number % 5 == 0 else k1}


@pytest.fixture
def table(store: Store) -> Table:
    return store.create_table("lookups", columns_of(store), KEY)


@settings(max_examples=thorough(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stored=st.lists(keys, min_size=1, max_size=20, unique=True),
    asked=st.lists(keys, max_size=20, unique=True),
    columns=st.none() | st.lists(st.sampled_from([*KEY, "n", "text", "bytes"]), min_size=1, unique=True),
)
def test_many_keys_are_read_as_one_by_one(store: Store, table: Table, stored: Any, asked: Any, columns: Any) -> None:
    old = table.scan(list(KEY)).read_all()
    if old.num_rows:
        table.delete(old)
    stored, asked = ([(first(store, k1), *rest) for k1, *rest in some] for some in (stored, asked))
    rows = {key: row_of(key, number) for number, key in enumerate(storable(store, stored))}
    table.put(list(rows.values()))
    wanted = list(columns_of(store)) if columns is None else columns
    given_keys = pa.Table.from_pylist(
        [dict(zip(KEY, key, strict=True)) for key in asked], table.schema.arrow.empty_table().select(list(KEY)).schema
    )
    found = table.get_many(given_keys, columns)
    assert found.schema == table.schema.nullable(columns)
    assert found.to_pylist() == [{name: rows.get(key, {}).get(name) for name in wanted} for key in asked]


def test_keys_may_have_other_columns_and_forms(store: Store, table: Table) -> None:
    row = row_of((first(store, b"a"), 1, "x"), 1)
    table.put(row)
    assert table.get_many(row, ["n"]).to_pylist() == [{"n": 1}]
    assert table.get_many([row, row | {"k2": 2}, row]).to_pylist() == [row, dict.fromkeys(columns_of(store)), row]
    with pytest.raises(SchemaError):
        table.get_many(row, ["other"])
    with pytest.raises(SchemaError):
        table.get_many({"k1": first(store, b"a")})


@pytest.mark.parametrize("kind", key_types(["long", "string", "binary"]))
def test_many_keys_of_one_column_are_read_in_their_order(store: Store, kind: str) -> None:
    nul = "\0" if traits(store).nul_in_text else ""
    made: Any = {"long": int, "string": lambda n: f"k{n}{nul}é", "binary": lambda n: b"k%d\x00\xff" % n}[kind]
    table = store.create_table(f"singles_{kind}", {"id": kind, "n": "long"}, "id")
    table.put([{"id": made(n), "n": n} for n in range(0, 600, 2)])
    asked = list(range(600))
    random.Random(5).shuffle(asked)
    found = table.get_many([{"id": made(n)} for n in asked], ["n", "id"])
    assert found.to_pylist() == [{"n": n, "id": made(n)} if n % 2 == 0 else {"n": None, "id": None} for n in asked]


@pytest.mark.needs_key_type("binary")
def test_many_keys_of_empty_texts_and_binaries_are_read(store: Store) -> None:
    table = store.create_table("empties", {"a": "string", "b": "binary", "n": "long"}, ["a", "b"])
    table.put([{"a": "", "b": b"", "n": 1}, {"a": "", "b": b"x", "n": 2}])
    assert table.get_many([{"a": "", "b": b""}], ["n"]).to_pylist() == [{"n": 1}]
    assert table.get_many([{"a": "", "b": b"x"}, {"a": "", "b": b""}], ["n"]).to_pylist() == [{"n": 2}, {"n": 1}]
    assert sorted(table.get_by_prefix(pa.table({"a": [""]}), ["n"]).column(0).to_pylist()) == [1, 2]


def test_all_rows_of_many_prefixes_are_read(store: Store, table: Table) -> None:
    values = [first(store, b"%d" % group) for group in range(8)]
    table.put(
        [
            row_of((values[group], number, text), number)
            for group in range(5)
            for number in range(group)
            for text in "xy"
        ]
    )
    prefixes = pa.table({"k1": [values[group] for group in (4, 0, 2, 7)]})
    found = table.get_by_prefix(prefixes, ["n", "k1"]).to_pylist()
    assert sorted((row["k1"], row["n"]) for row in found) == [
        *((values[2], n) for n in (0, 0, 1, 1)),
        *((values[4], n) for n in (0, 0, 1, 1, 2, 2, 3, 3)),
    ]
    of_two = table.get_by_prefix(pa.table({"k1": [values[4], values[3]], "k2": pa.array([3, 7], pa.int64())}))
    assert sorted(of_two.to_pylist(), key=lambda row: str(row["k3"])) == [
        row_of((values[4], 3, text), 3) for text in "xy"
    ]
    assert table.get_by_prefix(prefixes.slice(0, 0), ["n"]).num_rows == 0


def test_the_first_rows_of_many_ranges_are_read(store: Store, table: Table) -> None:
    values = [first(store, b"%d" % group) for group in range(5)]
    table.put([row_of((values[group], number, "x"), number) for group in range(5) for number in range(group * 3)])
    ranges = [KeyRange((values[group], 1), (values[group], 9)) for group in (4, 0, 1, 3)]
    found = table.first_rows(ranges, ["k1", "n"], rows=3)
    assert [(row["k1"], row["n"]) for row in found.to_pylist()] == [
        *((values[4], n) for n in (1, 2, 3)),
        *((values[1], n) for n in (1, 2)),
        *((values[3], n) for n in (1, 2, 3)),
    ]
    assert table.first_rows(ranges).column("n").to_pylist() == [1, 1, 1]
    assert table.first_rows([], ["n"]).num_rows == 0
    assert table.first_rows([KeyRange()], rows=100).num_rows == 30
