"""Mirrors without Spark: the rows of random changes, compared with a model, also after repeated parts of a batch."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.derived.mirror.evolution import Evolution
from headrace.derived.mirror.forms import LatestRows
from headrace.derived.mirror.history import RowVersions, VersionRows, version_rows
from headrace.derived.mirror.setup import MirrorSetup
from headrace.errors import AlreadyExistsError, DataLossError, OptionError, SchemaError
from headrace.formats.location import Location
from headrace.model.tables.change_columns import CHANGE_COLUMNS
from headrace.model.tables.packed_rows import PACKED
from headrace.model.tables.schema import TableSchema
from headrace.ports import Store, Tunnel
from headrace.stores.registry import StoreAddress

SCHEMA = TableSchema.of({"user": "string", "id": "long", "price": "double"}, ["user", "id"])
CHANGES = pa.schema([*(field.with_nullable(True) for field in SCHEMA.arrow), *CHANGE_COLUMNS])
Key = tuple[str, int]
EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


@dataclass(frozen=True)
class Change:
    key: Key
    price: float | None
    """None is a delete."""
    version: int

    def row(self, kind: str) -> dict[str, Any]:
        return {
            "user": self.key[0],
            "id": self.key[1],
            "price": self.price,
            "_change_type": kind,
            "_commit_version": self.version,
            "_commit_timestamp": time_of(self.version),
        }


def time_of(version: int) -> datetime.datetime:
    """Two commits have each time: stores may have coarse clocks."""
    return EPOCH + datetime.timedelta(microseconds=version // 2)


@st.composite
def change_lists(draw: st.DrawFn) -> list[Change]:
    """Draw changes in commit order; some commits change a key several times."""
    keys = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2))
    prices = st.one_of(st.none(), st.integers(0, 9).map(float))
    steps = draw(st.lists(st.tuples(keys, prices, st.integers(0, 2)), max_size=40))
    found, version = [], 1
    for key, price, step in steps:
        version += step
        found.append(Change(key, price, version))
    return found


def rows_of(changes: list[Change]) -> list[dict[str, Any]]:
    """Return rows as a tunnel has them."""
    rows, there = [], set[Key]()
    for change in changes:
        if change.price is None:
            kind = "delete"
            there.discard(change.key)
        else:
            kind = "update_postimage" if change.key in there else "insert"
            there.add(change.key)
        rows.append(change.row(kind))
    return rows


def table_at(changes: list[Change], at: datetime.datetime) -> dict[Key, float]:
    rows: dict[Key, float] = {}
    for change in changes:
        if time_of(change.version) <= at:
            rows.pop(change.key, None)
            if change.price is not None:
                rows[change.key] = change.price
    return rows


def cut(data: st.DataObject, rows: list[Any]) -> list[list[Any]]:
    """Cut a list into parts of random lengths."""
    parts, position = [], 0
    while position < len(rows):
        size = data.draw(st.integers(1, 7))
        parts.append(rows[position : position + size])
        position += size
    return parts


def batches(rows: list[list[dict[str, Any]]]) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pylist(part, CHANGES) for part in rows])


def packed(rows: pa.RecordBatch, *, packs: bool) -> pa.RecordBatch:
    """Return changes as a `PackedShape` with the columns of the start, or with others."""
    if not packs or not rows.num_rows:
        return rows.append_column(PACKED, pa.nulls(rows.num_rows, pa.binary()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    empty = pa.RecordBatch.from_arrays([pa.nulls(rows.num_rows, each.type) for each in rows.schema], schema=rows.schema)
    data = [sink.getvalue().to_pybytes(), *[None] * (rows.num_rows - 1)]
    return empty.append_column(PACKED, pa.array(data, pa.binary()))


@given(st.data())
def test_the_latest_rows_are_the_rows_of_the_source(data: st.DataObject) -> None:
    changes = data.draw(change_lists())
    form = LatestRows(SCHEMA, "copy")
    copy: dict[Key, float] = {}
    for batch in cut(data, rows_of(changes)):
        parts = [packed(part, packs=data.draw(st.booleans())) for part in batches(cut(data, batch))]
        together = pa.Table.from_batches(parts, parts[0].schema).combine_chunks().to_batches() if parts else []
        routed = list(form.route(cast("Store", None), iter(together)))
        for target in (0, 1):
            for row in (row for to, part in routed if to == target for row in part.to_pylist()):
                if target == 0:
                    copy[row["user"], row["id"]] = row["price"]
                else:
                    copy.pop((row["user"], row["id"]), None)
    assert copy == table_at(changes, time_of(1 << 20))


class History:
    """The target of a history, and the table of current versions beside it, as dicts."""

    def __init__(self) -> None:
        self.versions: dict[tuple[str, int, int], dict[str, Any]] = {}
        self.current: dict[Key, int] = {}

    def of(self, batch: list[dict[str, Any]]) -> VersionRows:
        known = [self.current.get((row["user"], row["id"])) for row in batch]
        changes = pa.Table.from_pylist(batch, CHANGES)
        return version_rows(changes, pa.chunked_array([pa.array(known, pa.int64())]), SCHEMA)

    def write(self, rows: VersionRows, target: int, most: int | None = None) -> None:
        tables = rows.versions, rows.closings, rows.undone, rows.current, rows.without_current
        for row in tables[target].slice(0, most).to_pylist():
            key = row["user"], row["id"]
            if target < 2:
                self.versions[*key, row["valid_from_version"]] = {
                    **(self.versions[*key, row["valid_from_version"]] if target else {}),
                    **row,
                }
            elif target == 2:
                self.versions.pop((*key, row["valid_from_version"]), None)
            elif target == 3:
                self.current[key] = row["valid_from_version"]
            else:
                self.current.pop(key, None)

    def at(self, time: datetime.datetime) -> dict[Key, float]:
        return {
            (row["user"], row["id"]): row["price"]
            for row in self.versions.values()
            if row["valid_from"] <= time and (row["valid_to"] is None or time < row["valid_to"])
        }


@given(st.data())
def test_a_history_has_the_table_of_each_time_also_after_repeated_batches(data: st.DataObject) -> None:
    changes = data.draw(change_lists())
    history = History()
    for batch in cut(data, rows_of(changes)):
        rows = history.of(batch)
        if data.draw(st.booleans()):
            # The process ends after a part of the writes, in a store without transactions. The batch runs again.
            stopped = data.draw(st.integers(0, 4))
            for target in range(stopped):
                history.write(rows, target)
            history.write(rows, stopped, data.draw(st.integers(0, 3)))
            rows = history.of(batch)
        for target in range(5):
            history.write(rows, target)
    for version in {change.version for change in changes} | {0}:
        time = time_of(version)
        assert history.at(time) == table_at(changes, time)
    current = {key[:2]: row["price"] for key, row in history.versions.items() if row["is_current"]}
    assert current == table_at(changes, time_of(1 << 20))
    last = {(*change.key, change.version): change.price for change in changes}
    assert history.versions.keys() == {version for version, price in last.items() if price is not None}


def test_of_several_changes_in_one_commit_the_last_one_is_the_version() -> None:
    changes = [Change(("a", 1), price, 7) for price in (1.0, None, 3.0)]
    (version,) = History().of(rows_of(changes)).versions.to_pylist()
    assert version["price"] == 3.0


def test_a_history_needs_a_free_key_column_and_free_names() -> None:
    four = TableSchema.of(dict.fromkeys("abcd", "long"), list("abcd"))
    with pytest.raises(SchemaError, match="one key column more"):
        RowVersions(four, "copy")
    taken = TableSchema.of({"id": "long", "valid_to": "long"}, "id")
    with pytest.raises(SchemaError, match="name of a column of its history"):
        RowVersions(taken, "copy")


# -- the start of a mirror ----------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Store:
    store = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    store.create_table("orders", SCHEMA.arrow, SCHEMA.primary_key).put({"user": "a", "id": 1, "price": 1.0})
    return store


@pytest.fixture
def copy(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "copy", create=True, synchronous="off")


def prepare(
    shop: Store,
    copy: Store,
    *,
    table: str = "orders",
    history: bool = False,
    tunnel: str = "",
    evolution: Evolution | None = None,
) -> Tunnel:
    setup = MirrorSetup(
        shop,
        Location(StoreAddress(shop.url), table),
        copy,
        "orders",
        tunnel=tunnel or None,
        tunnel_name=tunnel or "mirror-orders",
        history=history,
        evolution=evolution or Evolution("evolve", keeps=history),
    )
    prepared = setup.prepare(setup.record())
    setup.register(prepared)
    return prepared


def put_into_copy(copy: Store) -> None:
    copy.table("orders").put({"user": "a", "id": 1, "price": 1.0})


def test_a_start_creates_tunnel_and_target_and_the_next_start_finds_them(shop: Store, copy: Store) -> None:
    tunnel = prepare(shop, copy)
    assert copy.table("orders").schema == SCHEMA
    put_into_copy(copy)
    assert prepare(shop, copy).id == tunnel.id
    assert [each.name for each in shop.tunnels()] == ["mirror-orders"]


def test_the_target_of_a_new_mirror_must_be_empty(shop: Store, copy: Store) -> None:
    copy.create_table("orders", SCHEMA.arrow, SCHEMA.primary_key)
    put_into_copy(copy)
    with pytest.raises(AlreadyExistsError, match="must be empty"):
        prepare(shop, copy)
    assert shop.tunnels() == []


def test_a_mirror_of_another_table_or_kind_is_no_target(shop: Store, copy: Store) -> None:
    shop.create_table("others", SCHEMA.arrow, SCHEMA.primary_key)
    prepare(shop, copy)
    put_into_copy(copy)
    with pytest.raises(AlreadyExistsError, match="latest rows of 'orders'"):
        prepare(shop, copy, table="others")
    with pytest.raises(AlreadyExistsError, match="another kind"):
        prepare(shop, copy, history=True)


def test_a_mirror_without_its_tunnel_is_refused_until_its_target_is_dropped(shop: Store, copy: Store) -> None:
    prepare(shop, copy)
    put_into_copy(copy)
    shop.drop_tunnel("mirror-orders", "orders")
    with pytest.raises(DataLossError, match="rows that were deleted"):
        prepare(shop, copy)
    copy.drop_table("orders")
    prepare(shop, copy)


def test_a_dropped_target_is_built_again_from_the_base_data(shop: Store, copy: Store) -> None:
    first = prepare(shop, copy, history=True)
    copy.table("orders__current").put({"user": "a", "id": 1, "valid_from_version": 1})
    copy.drop_table("orders")
    assert prepare(shop, copy, history=True).id != first.id
    assert copy.table("orders__current").scan().read_all().num_rows == 0


def test_a_start_that_ended_before_its_tunnel_is_repeated(shop: Store, copy: Store) -> None:
    first = prepare(shop, copy)
    copy.table("__headrace_mirrors__").update({"target": "orders", "tunnel": None})
    assert prepare(shop, copy).id != first.id
    assert len(shop.tunnels()) == 1


def test_an_unread_tunnel_with_base_data_can_be_given(shop: Store, copy: Store) -> None:
    shop.create_tunnel("orders", "changes", "Stream")
    with pytest.raises(OptionError, match="base data and changes"):
        prepare(shop, copy, tunnel="changes")
    own = shop.create_tunnel("orders", "mine")
    assert prepare(shop, copy, tunnel="mine").id == own.id
    shop.create_tunnel("orders", "other")
    with pytest.raises(OptionError, match="another tunnel fills"):
        prepare(shop, copy, tunnel="other")


def test_a_foreign_tunnel_of_the_same_name_is_kept(shop: Store, copy: Store) -> None:
    tunnel = shop.create_tunnel("orders", "mirror-orders")
    with pytest.raises(AlreadyExistsError, match="name of the mirror's own tunnel"):
        prepare(shop, copy)
    assert [each.id for each in shop.tunnels()] == [tunnel.id]


def test_a_target_with_another_key_or_type_is_refused(shop: Store, copy: Store) -> None:
    copy.create_table("orders", SCHEMA.arrow, ["id", "user"])
    with pytest.raises(SchemaError, match="another primary key"):
        prepare(shop, copy)
    copy.drop_table("orders")
    copy.create_table("orders", {"user": "string", "id": "long", "price": "long"}, SCHEMA.primary_key)
    with pytest.raises(SchemaError, match="another type"):
        prepare(shop, copy)


def test_a_table_is_not_its_own_mirror(shop: Store) -> None:
    with pytest.raises(OptionError, match="the table whose changes it reads"):
        prepare(shop, shop)


def test_a_target_that_was_dropped_and_created_again_is_built_again_while_it_is_empty(shop: Store, copy: Store) -> None:
    first = prepare(shop, copy)
    put_into_copy(copy)
    copy.drop_table("orders")
    copy.create_table("orders", SCHEMA.arrow, SCHEMA.primary_key)
    second = prepare(shop, copy)
    assert second.id != first.id
    copy.drop_table("orders")
    copy.create_table("orders", SCHEMA.arrow, SCHEMA.primary_key)
    put_into_copy(copy)
    with pytest.raises(DataLossError, match="dropped and created again"):
        prepare(shop, copy)


def test_a_history_without_its_current_versions_is_refused_until_its_target_is_dropped(
    shop: Store, copy: Store
) -> None:
    prepare(shop, copy, history=True)
    columns = copy.table("orders__current").schema
    copy.drop_table("orders__current")
    with pytest.raises(DataLossError, match="orders__current was dropped"):
        prepare(shop, copy, history=True)
    copy.create_table("orders__current", columns.arrow, columns.primary_key)
    with pytest.raises(DataLossError, match="orders__current was dropped"):
        prepare(shop, copy, history=True)
    copy.drop_table("orders")
    prepare(shop, copy, history=True)


def test_a_start_checks_the_changes_of_the_source_before_anything_is_written(shop: Store, copy: Store) -> None:
    prepare(shop, copy)
    put_into_copy(copy)
    shop.table("orders").rename_column("price", "cost")
    with pytest.raises(SchemaError, match="column price is now cost"):
        prepare(shop, copy, evolution=Evolution("fail", keeps=False))
    prepare(shop, copy)
    assert copy.table("orders").schema == SCHEMA


def test_a_mirror_is_not_its_source_under_another_name_or_path(shop: Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "shop")
    with (
        headrace.open(tmp_path / "link") as link,
        pytest.raises(OptionError, match="the table whose changes it reads"),
    ):
        prepare(shop, link)
