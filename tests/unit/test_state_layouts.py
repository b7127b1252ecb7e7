"""The record of a query's state: which arrangements the next text of the query keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

import headrace
from headrace.derived.follow.batch_content import BatchQuery
from headrace.derived.follow.layouts import StateLayout
from headrace.derived.follow.scans import FollowedScan
from headrace.derived.gathering import constructs
from headrace.derived.gathering.arrangements import Arranged, Gathering
from headrace.derived.gathering.routes import plan_whole
from headrace.derived.state.state_tables import check_keeps_groups
from headrace.errors import UnsupportedError
from headrace.model.types import parse_type

ORDERS = FollowedScan(
    "orders", StructType().add("id", LongType()).add("user", StringType()).add("price", LongType()), ("id",), "mark a"
)
USERS = FollowedScan("Users", StructType().add("user", StringType()), ("user",), "mark b")


def gathering(columns: list[str], *keys: tuple[str, ...]) -> Gathering:
    types = {"id": "long", "user": "string", "price": "long"}
    schema = pa.schema([(name, parse_type(types[name])) for name in columns])
    tables = {"orders": Arranged("orders", 0, schema, ("id",), keys)}
    return Gathering(plan_whole(["orders"], constructs.JOIN), tables, None)


def query(gathering: Gathering) -> BatchQuery:
    return BatchQuery((ORDERS,), "", (), (), gathers=False, gathering=gathering)


def test_a_text_keeps_the_arrangements_that_have_its_columns(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "store", create=True) as store:
        first = StateLayout((("orders", "mark a"),))
        old = gathering(["id", "user", "price"], ("user",), ("id",))
        state = first.state(store, "totals", "job", query(old))
        recorded = StateLayout.of_json(json.loads(json.dumps(first.recorded(state, old).to_json())))
        fewer, covering = recorded.arranged(gathering(["id", "user"], ("id",), ("price",)), [ORDERS])
        assert fewer.tables["orders"].schema.names == ["id", "user", "price"]
        layout = recorded.following([ORDERS], fewer, covering)
        new = layout.state(store, "totals", "job", query(fewer))
        # By id it is kept, by price it has a name of its own.
        assert new["t0_0"].name == state["t0_1"].name
        assert new["t0_1"].name not in {each.name for each in state.values()}
        # The same text finds them again at its next start.
        again = StateLayout.of_json(layout.recorded(new, fewer).to_json())
        effective, _ = again.arranged(gathering(["id", "user"], ("id",), ("price",)), [ORDERS])
        assert again.state(store, "totals", "job", query(effective)) == new


def test_a_text_with_another_column_keeps_none(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "store", create=True) as store:
        layout = StateLayout((("orders", "mark a"),))
        old = gathering(["id", "user"], ("user",))
        recorded = layout.recorded(layout.state(store, "totals", "job", query(old)), old)
        wider = gathering(["id", "user", "price"], ("user",))
        assert recorded.arranged(wider, [ORDERS]) == (wider, {})


def test_rows_are_kept_only_if_no_kept_column_is_another_one_now(tmp_path: Path) -> None:
    before, now = (replace(ORDERS, numbers={"id": 0, "user": 1, "price": price}) for price in (2, 3))
    with headrace.open(tmp_path / "store", create=True) as store:
        for columns, kept in (["id", "user"], True), (["id", "user", "price"], False):
            old, layout = gathering(columns, ("user",)), StateLayout().reading([before])
            recorded = layout.recorded(layout.state(store, "totals", "job", query(old)), old)
            recorded = StateLayout.of_json(json.loads(json.dumps(recorded.to_json())))
            assert not recorded.exchanged(before)
            assert recorded.exchanged(now) == {"price"}
            assert ("orders" in recorded.arranged(old, [now])[1]) == kept
    # Records of earlier releases, and stores without numbers, have none.
    assert not StateLayout().exchanged(now)
    assert not recorded.exchanged(ORDERS)


def test_scans_are_read_in_the_recorded_order() -> None:
    layout = StateLayout((("users", "mark b"), ("orders", "mark a")))
    assert layout.ordered([ORDERS, USERS]) == (USERS, ORDERS)
    assert layout.ordered([ORDERS]) is None
    assert layout.ordered([ORDERS, FollowedScan("users", USERS.schema, ("user",), "mark c")]) is None
    # A record of an earlier release has no order.
    assert StateLayout().ordered([ORDERS]) == (ORDERS,)
    assert StateLayout().ordered([ORDERS, USERS]) is None


def test_a_store_without_binary_keys_keeps_no_groups(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "store", create=True) as store:
        check_keeps_groups(store)
        able, some = store.capabilities, ("long", "string")
        for lacks in (replace(able, key_types=some), replace(able, column_types=some)):
            store.capabilities = lacks
            with pytest.raises(UnsupportedError, match="whose keys are binary"):
                check_keeps_groups(store)
