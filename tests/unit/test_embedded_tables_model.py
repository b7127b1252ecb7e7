"""After any operations a table equals a dict of rows, and its change log leads to the same rows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.model.tables.changes import DELETES, ChangeOp, RowChange
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.options import TableOptions
from headrace.model.tables.schema import TableSchema
from headrace.stores.embedded.connection import Database, stamp
from headrace.stores.embedded.tables import change_log, stored_tables
from headrace.stores.embedded.tables.table import EmbeddedTable
from headrace.testing.effort import thorough

Key = tuple[str, int]
TEXTS = st.sampled_from(["", "a", "a\0b", "é", "\U0001d11e", "zz"])
KEYS = st.tuples(TEXTS, st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "price": st.none() | st.sampled_from([0.0, -1.5, float("inf"), 1e300]),
    "note": st.none() | TEXTS,
    "data": st.none() | st.sampled_from([b"", b"\0", b"\xff\xfe"]),
    "late": st.none() | st.integers(-(2**31), 2**31 - 1),
    "later": st.none() | TEXTS,
}
FIRST = ["price", "note", "data"]


class TableModel(RuleBasedStateMachine):
    @initialize(pre_images=st.booleans())
    def create(self, pre_images: bool) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.database = Database(Path(self.directory.name), create=True, synchronous="off")
        schema = TableSchema.of(
            {"price": "double", "user": "string", "note": "string", "order": "long", "data": "binary"},
            ["user", "order"],
        )
        with self.database.write() as connection:
            stored_tables.create(connection, "t", schema, TableOptions(pre_images=pre_images))
        self.table = EmbeddedTable(self.database, "t")
        self.pre_images = pre_images
        self.attributes = list(FIRST)
        self.model: dict[Key, dict[str, Any]] = {}

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.close()
            self.directory.cleanup()

    def draw_rows(self, data: st.DataObject, columns: list[str]) -> list[dict[str, Any]]:
        row = st.fixed_dictionaries({"key": KEYS, **{name: VALUES[name] for name in columns}})
        drawn: list[dict[str, Any]] = data.draw(st.lists(row, max_size=8))
        return drawn

    @staticmethod
    def as_given(row: dict[str, Any]) -> dict[str, Any]:
        user, order = row["key"]
        return {"user": user, "order": order} | {name: value for name, value in row.items() if name != "key"}

    def whole(self, row: dict[str, Any]) -> dict[str, Any]:
        return {name: row.get(name) for name in self.attributes}

    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        rows = self.draw_rows(data, self.attributes)
        self.table.put([self.as_given(row) for row in rows])
        for row in rows:
            self.model[row["key"]] = self.whole(row)

    @rule(data=st.data(), keep_nulls=st.booleans())
    def update(self, data: st.DataObject, keep_nulls: bool) -> None:
        columns = data.draw(st.lists(st.sampled_from(self.attributes), min_size=1, unique=True))
        rows = self.draw_rows(data, columns)
        self.table.update([self.as_given(row) for row in rows or []], keep_nulls=keep_nulls) if rows else None
        for row in rows:
            cells = self.model.setdefault(row["key"], self.whole({}))
            for name in columns:
                if keep_nulls or row[name] is not None:
                    cells[name] = row[name]

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(KEYS, max_size=6))
        self.table.delete([{"user": user, "order": order} for user, order in keys])
        for key in keys:
            self.model.pop(key, None)

    @rule(data=st.data())
    def replace_all(self, data: st.DataObject) -> None:
        rows = self.draw_rows(data, self.attributes)
        with self.database.write() as connection:
            version, ts = stamp(connection)
            self.table.apply(connection, RowChange.REPLACE_ALL, [self.as_given(row) for row in rows], version, ts)
        self.model = {row["key"]: self.whole(row) for row in rows}

    @rule(at=KEYS)
    def split(self, at: Key) -> None:
        bounds = {partition.keys.low for partition in self.table.describe().partitions if partition.open}
        if at not in bounds:
            holder = next(
                partition.id
                for partition in self.table.describe().partitions
                if partition.open
                and (partition.keys.low is None or partition.keys.low < at)
                and (partition.keys.high is None or at < partition.keys.high)
            )
            self.table.split(holder, {"user": at[0], "order": at[1]})

    @rule()
    def merge(self) -> None:
        opened = [partition for partition in self.table.describe().partitions if partition.open]
        for left in opened:
            for right in opened:
                if left.keys.high is not None and left.keys.high == right.keys.low:
                    self.table.merge(left.id, right.id)
                    return

    @rule()
    def add_columns(self) -> None:
        for name, kind in (("late", "int"), ("later", "string")):
            if name not in self.attributes:
                # Through another handle: the first handle must use the new columns.
                EmbeddedTable(self.database, "t").add_columns({name: kind})
                self.attributes.append(name)
                for row in self.model.values():
                    row[name] = None
                return

    def rows(self, keys: KeyRange | None = None) -> list[tuple[Key, dict[str, Any]]]:
        found = self.table.scan(keys=keys, batch_rows=3).read_all().to_pylist()
        return [((row["user"], row["order"]), {name: row[name] for name in self.attributes}) for row in found]

    @rule(low=KEYS, high=KEYS)
    def scan_range(self, low: Key, high: Key) -> None:
        expected = sorted((key, row) for key, row in self.model.items() if low <= key < high)
        assert self.rows(KeyRange(low, high)) == expected

    @rule(key=KEYS)
    def get(self, key: Key) -> None:
        row = self.table.get({"user": key[0], "order": key[1]}, columns=self.attributes)
        assert row == self.model.get(key)

    @rule(count=st.integers(1, 5))
    def splits_cover(self, count: int) -> None:
        ranges = self.table.splits(count)
        assert len(ranges) <= count
        assert [row for keys in ranges for row in self.rows(keys)] == self.rows()

    @invariant()
    def scan_is_the_model_in_key_order(self) -> None:
        assert self.rows() == sorted(self.model.items())

    @invariant()
    def partitions_count_their_rows(self) -> None:
        description = self.table.describe()
        assert description.rows == len(self.model)
        for partition in description.partitions:
            assert partition.rows == (len(self.rows(partition.keys)) if partition.open else 0)

    @invariant()
    def log_replays_to_the_model(self) -> None:
        replayed: dict[Key, dict[str, Any]] = {}
        entries: list[tuple[int, int, int, int, dict[str, Any]]] = []
        with self.database.read() as connection:
            for partition in self.table.describe().partitions:
                position = partition.first
                while position < partition.next:
                    changes, position = change_log.read(connection, partition.id, position, 1000)
                    ops, versions = changes.ops.to_pylist(), changes.versions.to_pylist()
                    rows = changes.rows.to_pylist()
                    for number, (op, version, row) in enumerate(zip(ops, versions, rows, strict=True)):
                        entries.append((version, partition.id, position + number, op, row))
        for *_, op, row in sorted(entries, key=lambda entry: entry[:3]):
            key = (row.pop("user"), row.pop("order"))
            if op == ChangeOp.PREIMAGE:
                assert self.pre_images
                assert row == replayed[key]
            elif op in DELETES:
                before = replayed.pop(key)
                assert (op == ChangeOp.DELETE_WITH_ROW) == self.pre_images
                assert row == (before if self.pre_images else dict.fromkeys(self.attributes))
            else:
                assert (key in replayed) == (op in (ChangeOp.REPLACE, ChangeOp.UPDATE))
                replayed[key] = row
        assert replayed == self.model


TestTableModel = TableModel.TestCase
TestTableModel.settings = settings(
    max_examples=thorough(40), stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
