"""Columns of Delta tables that change in the commit of the rows behind them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.derived.mirror.evolution import EVOLVE, LENIENT, Evolution, SchemaChange
from headrace.derived.mirror.setup import MirrorSetup
from headrace.errors import SchemaError, UnsupportedError
from headrace.formats.location import Location
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import ChangeOp, RowChange
from headrace.model.tables.schema import Column
from headrace.ports import Publisher, Store, Write
from headrace.stores.registry import StoreAddress
from headrace.support import failpoints
from headrace.testing.reading import drain
from headrace_lake.delta.publisher import DeltaPublisher
from tests.lake.lakes import Interference, foreign, opened, orphans, rows_of

MORE = Alteration(added=[Column("size", pa.float64()), Column("at", pa.timestamp("us"))])
ROW = {"id": 1, "name": "new", "size": 0.5, "at": None}
OLD = {"id": 2, "name": "old", "size": None, "at": None}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as found:
        found.table("t").put([{"id": 1, "name": "old"}, {"id": 2, "name": "old"}])
        yield found


def staged(
    store: Store, publisher: Publisher, batch: int, rows: list[dict[str, Any]], alteration: Alteration, table: str = "t"
) -> Write:
    """Stage rows with the columns after an alteration, as a mirror does."""
    fields = alteration.applied(store.table(table).schema).arrow
    parts = pa.Table.from_pylist(rows, fields).to_batches()
    receipts = publisher.stage(batch, parts, table=table, change=RowChange.PUT)
    return Write(table, RowChange.PUT, tuple(receipts), alteration)


def kinds(directory: Path, version: int, table: str = "t") -> set[str]:
    """Return the kinds of the actions of a version."""
    text = (directory / table / "_delta_log" / f"{version:020}.json").read_text()
    return {kind for line in text.splitlines() for kind in json.loads(line)}


def test_rows_and_their_columns_are_one_commit(store: Store, tmp_path: Path) -> None:
    tunnel = store.create_tunnel("t", "t", "Stream")
    publisher = store.publisher("job", "t")
    write = staged(store, publisher, 0, [ROW], MORE)
    assert publisher.publish(0, [write])
    assert not publisher.publish(0, [write])
    assert rows_of(tmp_path) == list(store.table("t")) == [ROW, OLD]
    assert kinds(tmp_path, 2) == {"commitInfo", "protocol", "metaData", "txn", "add", "remove"}
    # A column of local times needs a feature.
    assert sorted(foreign(tmp_path).protocol().writer_features or ()) == ["appendOnly", "invariants", "timestampNtz"]
    assert publisher.publish(1, [staged(store, publisher, 1, [ROW | {"size": 1.0}], Alteration())])
    assert [row["size"] for row in rows_of(tmp_path)] == [1.0, None]
    assert [each.op for each in drain(tunnel)] == [ChangeOp.REPLACE, ChangeOp.REPLACE]


def test_an_intent_is_completed_after_its_columns_were_added(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_table("u", {"id": "long"}, "id")
    publisher = store.publisher("job", "t")
    writes = [
        staged(store, publisher, 0, [ROW], MORE),
        staged(store, publisher, 0, [{"id": 1}], Alteration(), "u"),
    ]

    def dead(point: str) -> None:
        if point == "intent-written":
            raise InterruptedError

    monkeypatch.setattr(failpoints, "reach", dead)
    with pytest.raises(InterruptedError):
        publisher.publish(0, writes)
    monkeypatch.undo()
    store.table("t").add_columns({column.name: column.type for column in MORE.added})
    assert store.publisher("job", "t").resume(0)
    assert rows_of(tmp_path) == [ROW, OLD]


def test_another_commit_before_it_costs_an_attempt(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Interference(monkeypatch)
    other.steps = [lambda: foreign(tmp_path).delete("id = 2"), lambda: foreign(tmp_path).optimize.compact()]
    publisher = store.publisher("job", "t")
    assert publisher.publish(0, [staged(store, publisher, 0, [ROW], MORE)])
    assert rows_of(tmp_path) == [ROW]
    assert orphans(tmp_path) == set()
    other.steps = [lambda: store.table("t").add_columns({"more": "long"})]
    more = Alteration(added=[Column("more", pa.int64())])
    with pytest.raises(SchemaError, match="more"):
        publisher.publish(1, [staged(store, publisher, 1, [ROW | {"more": 1}], more)])
    assert orphans(tmp_path) == set()
    assert rows_of(tmp_path) == [ROW | {"more": None}]


def test_columns_may_become_null(store: Store, tmp_path: Path) -> None:
    table = store.create_table("u", {"id": "long", "must": "string not null"}, "id")
    table.put({"id": 1, "must": "x"})
    publisher = store.publisher("job", "u")
    relaxed = Alteration(relaxed=["must"])
    assert publisher.publish(0, [staged(store, publisher, 0, [{"id": 2, "must": None}], relaxed, "u")])
    assert rows_of(tmp_path, "u") == [{"id": 1, "must": "x"}, {"id": 2, "must": None}]
    assert table.schema.column("must").nullable


@pytest.mark.parametrize("by_hand", [{}, {"size": "double"}], ids=["", "by-hand"])
def test_a_decided_batch_of_several_tables_keeps_its_columns(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_hand: dict[str, str]
) -> None:
    store.create_table("u", {"id": "long", "name": "string"}, "id")
    publisher = store.publisher("job", "sink")
    writes = [staged(store, publisher, 0, [ROW], MORE, table) for table in ("t", "u")]

    def dies(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DeltaPublisher, "_commit_part", dies)
        with pytest.raises(KeyboardInterrupt):
            publisher.publish(0, writes)
    assert "size" not in store.table("t").schema
    if by_hand:
        store.table("t").add_columns(by_hand)
    assert store.publisher("job", "sink").resume(0)
    assert rows_of(tmp_path) == [ROW, OLD]
    assert rows_of(tmp_path, "u") == [ROW]


@pytest.mark.parametrize(
    ("alteration", "reason"),
    [
        (Alteration(dropped=["name"]), "no dropped columns.*received: name"),
        (Alteration(renamed={"name": "label"}), "no renamed columns"),
        (Alteration(widened={"name": pa.string()}), "no wider types"),
        (Alteration(added=[Column("five", pa.int64())], values={"five": 5}), "values of new columns"),
        (Alteration(added=[Column("wait", pa.duration("us"))]), "type that Delta Lake does not have"),
        (Alteration(added=[Column("NAME", pa.string())]), "upper and lower case"),
    ],
)
def test_other_changes_are_refused_by_name(store: Store, tmp_path: Path, alteration: Alteration, reason: str) -> None:
    with pytest.raises((UnsupportedError, SchemaError), match=reason):
        store.table("t").alter(alteration)
    assert foreign(tmp_path).version() == 1


CHANGES: dict[str, tuple[Alteration, str]] = {
    "new": (Alteration(added=[Column("size", pa.float64())], relaxed=["name"]), ""),
    # Tunnels of PostgreSQL know them.
    "new with values": (Alteration(added=[Column("five", pa.int64())]), "values in new columns.*received: five 5"),
    "dropped": (Alteration(dropped=["name"]), "dropped column name"),
    "renamed": (Alteration(renamed={"name": "label"}), "column name is now label"),
    "wider": (Alteration(widened={"n": pa.int64()}), "column n was int"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_mirror_follows_new_columns_and_refuses_other_changes_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    alteration, reason = CHANGES[change]
    columns = {"id": "long", "name": "string not null", "n": "int"}
    with headrace.open(tmp_path / "shop", create=True) as shop, opened(tmp_path / "lake") as lake:
        orders = shop.create_table("orders", columns, "id")

        def prepare(policy: SchemaChange = EVOLVE) -> None:
            setup = MirrorSetup(
                shop,
                Location(StoreAddress(shop.url), "orders"),
                lake,
                "orders",
                tunnel=None,
                tunnel_name="mirror",
                history=False,
                evolution=Evolution(policy, keeps=policy == LENIENT),
            )
            setup.register(setup.prepare(setup.record()))

        prepare()
        lake.table("orders").put({"id": 1, "name": "x", "n": 1})
        orders.alter(alteration)
        if change == "new with values":
            monkeypatch.setattr(type(shop.tunnels()[0]), "values_of_new_columns", lambda *_: {"five": 5})
        if reason:
            with pytest.raises((SchemaError, UnsupportedError), match=reason):
                prepare()
        else:
            prepare()
        if change == "dropped":
            prepare(LENIENT)
        # The first batch changes the table.
        assert lake.table("orders").schema.names == tuple(columns)
