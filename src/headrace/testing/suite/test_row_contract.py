"""The rows of a stream are those of Spark's and Delta's contract of changes, for any writes and batches.

The machine writes, keeps or drops pre-images, and computes which rows each write gives. It reads batches as a query
does, and some of them again.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from headrace.batches.feeds import channel_reading
from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.errors import UnsupportedError
from headrace.model.tables.change_columns import ChangeShape, SignedShape
from headrace.model.tables.changes import Changes, RowChange
from headrace.model.tunnels.records import INITIAL_BATCH, BatchPlan
from headrace.model.tunnels.values import ChannelKind, KindName
from headrace.ports import Store, Table, Tunnel, Write
from headrace.testing.capabilities import traits
from headrace.testing.effort import thorough
from headrace.testing.reading import Row, State, state_of

pytestmark = pytest.mark.needs("tunnels")

SIGNS = {"insert": 1, "update_postimage": 1, "update_preimage": -1, "delete": -1}
_numbers = itertools.count()
_key = st.sampled_from("abcdef")
_notes = st.none() | st.sampled_from("xyz")
_limits = st.builds(
    Limits, rows_per_channel=st.none() | st.integers(1, 4), rows_per_batch=st.none() | st.integers(1, 6)
)


class Shown(NamedTuple):
    """A row of the stream: its kind, and the columns of the table."""

    kind: str
    price: int | None
    note: str | None


class ContractMachine(RuleBasedStateMachine):
    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.table: Table
        self.tunnel: Tunnel
        self.feed: TunnelFeed
        self.last = INITIAL_BATCH
        self.content: State = {}
        self.expected: dict[str, list[Shown]] = defaultdict(list)
        self.given: dict[str, list[Shown]] = defaultdict(list)
        self.times: dict[int, Any] = {}
        self.batches: list[tuple[BatchPlan, list[list[Row]]]] = []
        self.complete = True
        self.refused = False
        self.shown_before: Counter[tuple[Any, ...]] = Counter()

    @initialize(
        kind=st.sampled_from(["Stream", "BaseAndStream"]),
        keys=st.sets(_key),
        pieces=st.integers(1, 2),
        pre_images=st.booleans(),
        limits=_limits,
    )
    def make(self, kind: KindName, keys: set[str], pieces: int, pre_images: bool, limits: Limits) -> None:
        self.pre_images = pre_images and self.store.capabilities.pre_images
        options = {"pre_images": True} if self.pre_images else {}
        columns = {"id": "string", "price": "long", "note": "string"}
        self.table = self.store.create_table(f"table_{next(_numbers)}", columns, "id", **options)
        self.table.put([{"id": key, "price": next(_numbers)} for key in sorted(keys)])
        self.tunnel = self.store.create_tunnel(self.table.name, "changes", kind, base_channels=pieces)
        self.content = state_of(self.table)
        if kind == "BaseAndStream":
            for (key,), row in self.content.items():
                self.expected[key].append(Shown("insert", row["price"], row["note"]))
        else:
            self.shown_before = Counter(self.values(row) for row in self.content.values())
        self.feed = TunnelFeed(self.tunnel, limits=limits)

    # -- writers ------------------------------------------------------------------------------------

    @rule(rows=st.lists(st.tuples(_key, _notes), min_size=1, max_size=4))
    def put(self, rows: list[tuple[str, str | None]]) -> None:
        written: list[Row] = [{"id": key, "price": next(_numbers), "note": note} for key, note in self.unique(rows)]
        self.table.put(written)
        for row in written:
            self.expect_put(row)

    @rule(rows=st.lists(st.tuples(_key, _notes), min_size=1, max_size=4))
    def update(self, rows: list[tuple[str, str | None]]) -> None:
        capabilities = self.store.capabilities
        # A store that does not tell rows puts a row of which an update sets no cell.
        nothing = None if capabilities.tells_rows else "x"
        written: list[Row] = [{"id": key, "note": note or nothing} for key, note in self.unique(rows)]
        self.table.update(written)
        for row in written:
            before = self.content.get((row["id"],))
            after = (before or {"price": None}) | row
            shown = after if capabilities.whole_rows else {"price": None} | row
            existed = before is not None or not capabilities.tells_rows
            self.expect(row["id"], "update_postimage" if existed else "insert", before, shown)
            self.content[row["id"],] = after

    @rule(keys=st.lists(_key, min_size=1, max_size=4))
    def delete(self, keys: list[str]) -> None:
        self.table.delete([{"id": key} for key in keys])
        for key in set(keys):
            self.expect_delete(key)

    @rule(rows=st.dictionaries(_key, _notes))
    def replace_all(self, rows: dict[str, str | None]) -> None:
        """Complete mode logs only the rows that differ."""
        new = {
            key: {"id": key, "price": self.content.get((key,), {}).get("price"), "note": note}
            for key, note in rows.items()
        }
        publisher = self.store.publisher(f"job {next(_numbers)}")
        table = pa.Table.from_pylist(list(new.values()), self.table.schema.arrow)
        staged = tuple(publisher.stage(0, table.to_batches()))
        publisher.publish(0, [Write(self.table.name, RowChange.REPLACE_ALL, staged)])
        for (key,) in list(self.content):
            if key not in new:
                self.expect_delete(key)
        for key, row in new.items():
            if self.content.get((key,)) != row:
                self.expect_put(row)

    @precondition(lambda self: self.store.capabilities.pre_images)
    @rule(wanted=st.booleans())
    def keep_pre_images(self, wanted: bool) -> None:
        assert self.table.set_options(pre_images=wanted).pre_images == wanted
        self.pre_images = wanted

    @precondition(lambda self: traits(self.store).split_partitions)
    @rule(at=st.sampled_from("bcdef"))
    def split(self, at: str) -> None:
        opened = [part for part in self.table.describe().partitions if part.open]
        for part in opened:
            if len(opened) < 4 and (part.keys.low or ("",)) < (at,) < (part.keys.high or ("z",)):
                self.table.split(part.id, {"id": at})

    def unique(self, rows: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
        """Return the rows of a write: of several rows of a key, some stores log only the last one."""
        logs_all = self.store.capabilities.transactions and traits(self.store).logs_calls
        return rows if logs_all else list(dict(rows).items())

    @staticmethod
    def values(row: Row) -> tuple[Any, ...]:
        return row["id"], row["price"], row["note"]

    def expect_put(self, row: Row) -> None:
        before = self.content.get((row["id"],))
        replaces = before is not None and self.store.capabilities.tells_rows
        self.expect(row["id"], "update_postimage" if replaces else "insert", before, row)
        self.content[row["id"],] = row

    def expect_delete(self, key: str) -> None:
        before = self.content.pop((key,), None)
        if before is not None:
            known = before if self.pre_images else {"price": None, "note": None}
            self.expect(key, "delete", before, known)

    def expect(self, key: str, kind: str, before: Row | None, row: Row) -> None:
        if kind == "update_postimage" and row == before and not traits(self.store).logs_equal_rows:
            return
        if kind == "update_postimage" and self.pre_images:
            assert before is not None
            self.expected[key].append(Shown("update_preimage", before["price"], before["note"]))
        self.complete = self.complete and (self.pre_images or kind == "insert")
        self.expected[key].append(Shown(kind, row["price"], row["note"]))

    # -- readers ------------------------------------------------------------------------------------

    def read(self, plan: BatchPlan) -> list[list[Changes]]:
        """Return the pages of each channel."""
        return [list(channel_reading.read_channel(self.tunnel, plan.batch, part)) for part in plan]

    def rows(self, pages: list[list[Changes]]) -> list[list[Row]]:
        shape = ChangeShape(self.table.schema)
        return [[row for page in channel for row in shape.rows(page).to_pylist()] for channel in pages]

    @rule()
    def read_a_batch(self) -> None:
        batch = self.feed.latest(self.last)
        if batch == self.last:
            return
        self.last = batch
        plan = self.feed.plan(batch)
        pages = self.read(plan)
        rows = self.rows(pages)
        self.batches.append((plan, rows))
        for row in itertools.chain.from_iterable(rows):
            self.given[row["id"]].append(Shown(row["_change_type"], row["price"], row["note"]))
            # All rows of a version have one timestamp.
            assert self.times.setdefault(row["_commit_version"], row["_commit_timestamp"]) == row["_commit_timestamp"]
        for channel in rows:
            versions = [row["_commit_version"] for row in channel]
            assert versions == sorted(versions)
        self.check_signed(pages)

    def check_signed(self, pages: list[list[Changes]]) -> None:
        """Rows with all old rows are those of any read; otherwise they are an error."""
        shape = SignedShape(self.table.schema, self.table.name)
        for page in itertools.chain.from_iterable(pages):
            try:
                rows = shape.rows(page)
            except UnsupportedError:
                self.refused = True
            else:
                assert rows == ChangeShape(self.table.schema).rows(page)

    @precondition(lambda self: self.batches)
    @rule(back=st.integers(0, 2))
    def read_a_batch_again(self, back: int) -> None:
        plan, rows = self.batches[-1 - back % len(self.batches)]
        base = {each.id for each in self.tunnel.channels() if each.kind is ChannelKind.BASE_DATA}
        if not base & {part.channel for part in plan}:
            assert self.rows(self.read(plan)) == rows

    def teardown(self) -> None:
        if not hasattr(self, "feed"):
            return
        read = None
        while self.last != read:
            read = self.last
            self.read_a_batch()
        assert self.given == self.expected
        assert self.refused == (not self.complete)
        # A store that does not tell rows shows a put over a row as an insert, without the old row.
        if self.complete and self.store.capabilities.tells_rows:
            total = self.shown_before.copy()
            for key, found in self.given.items():
                for kind, *row in found:
                    total[key, *row] += SIGNS[kind]
            assert +total == Counter(self.values(row) for row in self.content.values())
            assert not -total
        self.store.drop_table(self.table.name)


@pytest.mark.parametrize("page_rows", [2, 65536])
def test_streams_have_sparks_rows_for_any_writes(store: Store, page_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_reading, "PAGE_ROWS", page_rows)
    run_state_machine_as_test(
        type("ContractMachine", (ContractMachine,), {"store": store}),
        settings=settings(
            max_examples=thorough(25 if store.capabilities.transactions else 6),
            stateful_step_count=25,
            deadline=None,
            report_multiple_bugs=False,
        ),
    )
