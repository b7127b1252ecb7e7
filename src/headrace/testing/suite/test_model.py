"""A table with its tunnel against a dictionary, through random writes, splits, merges, new columns, trims and reads."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.model.tables.conditions import KeyRange
from headrace.model.tunnels.values import FINISHED, ChannelState, KindName
from headrace.ports import Partition, Store, Table, Tunnel
from headrace.testing import Place
from headrace.testing.capabilities import storable, traits
from headrace.testing.reading import Row, State, drain, filled, replay, rows_of, state_of, unpack

pytestmark = pytest.mark.needs("tunnels")


_numbers = itertools.count()
_keys = st.tuples(st.sampled_from(["", "a", "b", "é", "🙂"]), st.integers(-2, 2))
_cells = st.fixed_dictionaries(
    {}, optional={"price": st.none() | st.integers(0, 9), "note": st.none() | st.text(max_size=3)}
)


class TableMachine(RuleBasedStateMachine):
    """The content of the table equals the dictionary, and its changes lead to that content."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.model: State = {}
        self.read: State = {}
        self.table: Table
        self.tunnel: Tunnel
        self.added: list[str] = []

    @initialize(
        kind=st.sampled_from(["Stream", "BaseAndStream"]),
        pieces=st.integers(1, 3),
        pre_images=st.booleans(),
        keys=st.sets(_keys, max_size=12),
    )
    def make(self, kind: KindName, pieces: int, pre_images: bool, keys: set[tuple[str, int]]) -> None:
        name = f"table_{next(_numbers)}"
        columns = {"price": "long", "k1": "string", "k2": "long", "note": "string"}
        options = {"pre_images": pre_images} if self.store.capabilities.pre_images else {}
        self.table = self.store.create_table(name, columns, ("k1", "k2"), **options)
        self.put([(key, {"note": "base"}) for key in keys])
        self.tunnel = self.store.create_tunnel(name, "changes", kind, base_channels=pieces)
        if kind == "Stream":
            self.read = dict(self.model)

    def row(self, key: tuple[str, int], cells: Row) -> Row:
        return {"k1": key[0], "k2": key[1], **cells}

    @rule(rows=st.lists(st.tuples(_keys, _cells), max_size=5))
    def put(self, rows: list[tuple[tuple[str, int], Row]]) -> None:
        rows = storable(self.store, rows)
        self.table.put([self.row(key, cells) for key, cells in rows])
        for key, cells in rows:
            self.model[key] = self.row(key, cells)

    @rule(keys=st.lists(_keys, min_size=1, max_size=5), cells=_cells.filter(bool), keep_nulls=st.booleans())
    def update(self, keys: list[tuple[str, int]], cells: Row, keep_nulls: bool) -> None:
        if not storable(self.store, [cells]):
            return
        self.table.update([self.row(key, cells) for key in keys], keep_nulls=keep_nulls)
        written = {name: value for name, value in cells.items() if keep_nulls or value is not None}
        for key in keys:
            self.model[key] = {**self.model.get(key, self.row(key, {})), **written}

    @rule(keys=st.lists(_keys, min_size=1, max_size=5))
    def delete(self, keys: list[tuple[str, int]]) -> None:
        self.table.delete([self.row(key, {}) for key in keys])
        for key in keys:
            self.model.pop(key, None)

    @precondition(lambda self: self.store.capabilities.add_columns and len(self.added) < 3)
    @rule(kind=st.sampled_from(["long", "string", "double"]), keys=st.lists(_keys, min_size=1, max_size=2))
    def add_column_and_set_it(self, kind: str, keys: list[tuple[str, int]]) -> None:
        name = f"added {len(self.added)}"
        self.added.append(name)
        self.table.add_columns({name: kind})
        value: Any = {"long": 7, "string": "seven", "double": 0.7}[kind]
        self.update(keys, {name: value}, True)

    def open_partitions(self) -> list[Partition]:
        found = [part for part in self.table.describe().partitions if part.open]
        return sorted(found, key=lambda part: part.keys.low or ())

    @precondition(lambda self: traits(self.store).split_partitions)
    @rule(key=_keys, whole=st.booleans())
    def split(self, key: tuple[str, int], whole: bool) -> None:
        at = key if whole else key[:1]
        inside = [
            part
            for part in self.open_partitions()
            if (part.keys.low is None or part.keys.low < at) and (part.keys.high is None or at < part.keys.high)
        ]
        if inside and len(self.open_partitions()) < 6:
            self.table.split(inside[0].id, dict(zip(("k1", "k2"), at, strict=False)))

    @precondition(lambda self: traits(self.store).split_partitions)
    @rule(number=st.integers(0, 5))
    def merge(self, number: int) -> None:
        opened = self.open_partitions()
        if len(opened) > 1:
            left = number % (len(opened) - 1)
            self.table.merge(opened[left].id, opened[left + 1].id)

    @rule(number=st.integers(0, 9), rows=st.integers(1, 6), cut=st.booleans())
    def read_and_commit(self, number: int, rows: int, cut: bool) -> None:
        opened = [channel for channel in self.tunnel.channels() if channel.state is ChannelState.OPEN]
        if not opened:
            return
        channel = opened[number % len(opened)]
        page = self.tunnel.read(channel.id, channel.committed, rows)
        changes, position = unpack(page.changes, ("k1", "k2")), page.next
        if cut and len(changes) > 1:
            changes = changes[: len(changes) // 2]
            position = self.tunnel.advance(channel.id, channel.committed, len(changes))
        self.tunnel.commit({channel.id: position})
        self.read = replay(changes, self.read, whole_rows=self.store.capabilities.whole_rows)

    @precondition(lambda self: self.store.capabilities.trims)
    @rule()
    def trim(self) -> None:
        ends = {part.id: part.next for part in self.table.describe().partitions}
        assert self.table.trim(before=ends).cut_from == ()

    @invariant()
    def the_table_equals_the_dictionary(self) -> None:
        if not hasattr(self, "table"):
            return
        assert filled(state_of(self.table)) == filled(self.model)
        assert list(state_of(self.table)) == sorted(self.model)

    @rule(key=_keys, low=st.none() | _keys, high=st.none() | _keys)
    def look_up(self, key: tuple[str, int], low: tuple[str, int] | None, high: tuple[str, int] | None) -> None:
        found = self.table.get({"k1": key[0], "k2": key[1]})
        assert (found is None) == (key not in self.model)
        between = self.table.scan(["k1", "k2"], keys=KeyRange(low, high)).read_all().to_pylist()
        expected = sorted(k for k in self.model if (low is None or k >= low) and (high is None or k < high))
        assert [(row["k1"], row["k2"]) for row in between] == expected
        assert len(rows_of(self.table, [], {"k1": key[0]})) == sum(k[0] == key[0] for k in self.model)

    def teardown(self) -> None:
        if not hasattr(self, "tunnel"):
            return
        described = self.table.describe()
        assert described.rows in (len(self.model), None)
        assert [part.rows for part in self.open_partitions()] == [
            self.table.scan([], keys=part.keys).read_all().num_rows for part in self.open_partitions()
        ]
        self.read = replay(drain(self.tunnel, page_rows=4), self.read)
        assert filled(self.read) == filled(self.model)
        left = [channel for channel in self.tunnel.channels() if channel.state is not ChannelState.FINISHED]
        assert len(left) == len(self.open_partitions()) or not described.partitions
        assert all(channel.state is ChannelState.OPEN and channel.committed != FINISHED for channel in left)
        self.store.drop_table(self.table.name)


def test_a_table_and_its_changes_follow_the_model(place: Place, store: Store) -> None:
    run_state_machine_as_test(
        type("TableMachine", (TableMachine,), {"store": store}),
        settings=settings(max_examples=place.commits(25), stateful_step_count=30, deadline=None),
    )
