"""Batches of a tunnel feed under all events of a streaming query: a batch always has the rows of its first read.

The machine plays Spark. Its offset log is a list of batches, of which only the last may be unfinished; tasks read one
channel each and crash, are retried, run twice at once or are run again later; the driver restarts, loses batches that
it has planned, commits late, again or never.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Generator
from typing import NamedTuple, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from headrace.batches.feeds import channel_reading
from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.errors import LostRaceError, OptionError
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tunnels.records import INITIAL_BATCH, BatchPlan, ChannelPlan
from headrace.model.tunnels.values import ChannelKind, KindName
from headrace.ports import Store, Table, Tunnel
from headrace.testing import Place
from headrace.testing.capabilities import traits
from headrace.testing.effort import thorough
from headrace.testing.reading import Change, State, replay, run_to_the_end, state_of, unpack

pytestmark = pytest.mark.needs("tunnels")


_numbers = itertools.count()
_keys = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5)
_limits = st.builds(
    Limits,
    rows_per_channel=st.none() | st.integers(1, 4),
    rows_per_batch=st.none() | st.integers(1, 6),
    bytes_per_batch=st.none() | st.integers(1, 2000),
)
RETAIN = 3


class History(NamedTuple):
    """One change of a key, identified by its version.

    If a write does not return the version of its changes, the price identifies it: it is unique for each put.
    """

    op: ChangeOp
    mark: int | None


class FeedMachine(RuleBasedStateMachine):
    place: Place
    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.table: Table
        self.tunnel: Tunnel
        self.deletes: ChangeOp
        self.feed: TunnelFeed
        self.beginning: State = {}
        self.expected: dict[str, list[History]] = defaultdict(list)
        self.log: list[BatchPlan] = []
        self.content: dict[tuple[str, str], list[Change]] = {}
        self.unfinished: dict[str, ChannelPlan] = {}
        self.base: set[str] = set()

    @initialize(
        kind=st.sampled_from(["Stream", "BaseAndStream"]),
        keys=st.sets(st.sampled_from("abcdefgh")),
        pieces=st.integers(1, 3),
        pre_images=st.booleans(),
        limits=_limits,
    )
    def make(self, kind: KindName, keys: set[str], pieces: int, pre_images: bool, limits: Limits) -> None:
        name = f"table_{next(_numbers)}"
        options = {"pre_images": pre_images} if self.store.capabilities.pre_images else {}
        self.table = self.store.create_table(name, {"id": "string", "price": "long"}, "id", **options)
        self.deletes = ChangeOp.DELETE_WITH_ROW if options.get("pre_images") else ChangeOp.DELETE
        self.table.put([{"id": key, "price": -1} for key in sorted(keys)])
        self.tunnel = self.store.create_tunnel(name, "changes", kind, base_channels=pieces)
        self.beginning = state_of(self.table) if kind == "Stream" else {}
        self.base = {each.id for each in self.tunnel.channels() if each.kind is ChannelKind.BASE_DATA}
        self.feed = TunnelFeed(self.tunnel, limits=limits, retain_batches=RETAIN)

    @property
    def marked_by_version(self) -> bool:
        """Whether a write returns the version of its changes."""
        return self.store.capabilities.transactions and traits(self.store).returns_versions

    # -- writers ------------------------------------------------------------------------------------

    @rule(keys=_keys)
    def put(self, keys: list[str]) -> None:
        if not (self.store.capabilities.transactions and traits(self.store).logs_calls):
            # Of several puts of a key in one call the last one takes effect.
            keys = list(dict.fromkeys(keys))
        there = set(state_of(self.table))
        prices = [next(_numbers) for _ in keys]
        version = self.table.put([{"id": key, "price": price} for key, price in zip(keys, prices, strict=True)])
        for key, price in zip(keys, prices, strict=True):
            op = ChangeOp.REPLACE if (key,) in there and self.store.capabilities.tells_rows else ChangeOp.INSERT
            self.expected[key].append(History(op, version if self.marked_by_version else price))
            there.add((key,))

    @rule(keys=_keys)
    def delete(self, keys: list[str]) -> None:
        there = state_of(self.table)
        version = self.table.delete([{"id": key} for key in keys])
        for key in set(keys):
            if (key,) in there:
                price = there[key,]["price"] if self.deletes is ChangeOp.DELETE_WITH_ROW else None
                mark = version if self.marked_by_version else price
                self.expected[key].append(History(self.deletes, mark))

    @precondition(lambda self: traits(self.store).split_partitions)
    @rule(at=st.sampled_from("bcdefgh"), again=st.booleans())
    def split(self, at: str, again: bool) -> None:
        opened = [part for part in self.table.describe().partitions if part.open]
        for part in opened[: 2 if again else 1]:
            if len(opened) < 5 and (part.keys.low or ("",)) < (at,) < (part.keys.high or ("z",)):
                self.table.split(part.id, {"id": at})

    @precondition(lambda self: traits(self.store).split_partitions)
    @rule(number=st.integers(0, 4))
    def merge(self, number: int) -> None:
        found = [part for part in self.table.describe().partitions if part.open]
        opened = sorted(found, key=lambda part: part.keys.low or ())
        if len(opened) > 1:
            left = number % (len(opened) - 1)
            self.table.merge(opened[left].id, opened[left + 1].id)

    @precondition(lambda self: not traits(self.store).split_partitions)
    @rule()
    def let_the_service_split(self) -> None:
        with contextlib.suppress(OptionError):
            self.place.split(self.table.name)

    # -- the driver ---------------------------------------------------------------------------------

    @property
    def last(self) -> str:
        return self.log[-1].batch if self.log else INITIAL_BATCH

    @precondition(lambda self: not self.unfinished)
    @rule(unlimited=st.booleans(), planned_in_vain=st.booleans())
    def plan(self, unlimited: bool, planned_in_vain: bool) -> None:
        if planned_in_vain:
            self.feed.latest(self.last)
        batch = self.feed.latest(self.last, unlimited=unlimited)
        if batch != self.last:
            self.log.append(self.feed.plan(batch))
            self.unfinished = {part.channel: part for part in self.log[-1]}

    @rule(limits=_limits, pinned=st.booleans())
    def restart(self, limits: Limits, pinned: bool) -> None:
        self.feed = TunnelFeed(self.tunnel, limits=limits, retain_batches=RETAIN)
        if self.log:
            assert self.feed.plan(self.last) == self.log[-1]
        if pinned:
            self.feed.fix_end()

    @precondition(lambda self: self.log)
    @rule(back=st.integers(0, RETAIN))
    def commit(self, back: int) -> None:
        done = self.log[:-1] if self.unfinished else self.log
        if done[-1 - back :]:
            self.feed.commit(done[-1 - back :][0].batch)

    # -- tasks --------------------------------------------------------------------------------------

    def read(self, part: ChannelPlan) -> Generator[Changes]:
        return cast("Generator[Changes]", channel_reading.read_channel(self.tunnel, self.last, part))

    def unpacked(self, pages: list[Changes]) -> list[Change]:
        return [change for page in pages for change in unpack(page, ("id",))]

    def check(self, batch: str, part: ChannelPlan, changes: list[Change]) -> None:
        known = self.content.setdefault((batch, part.channel), changes)
        assert changes == known
        assert not changes or changes[-1].op is not ChangeOp.PREIMAGE
        assert part.max_rows is None or len(changes) <= part.max_rows + 1

    @precondition(lambda self: self.unfinished)
    @rule(number=st.integers(0, 9))
    def run_task(self, number: int) -> None:
        part = list(self.unfinished.values())[number % len(self.unfinished)]
        self.check(self.last, part, self.unpacked(list(self.read(part))))
        del self.unfinished[part.channel]

    @precondition(lambda self: self.unfinished)
    @rule()
    def run_all_tasks(self) -> None:
        while self.unfinished:
            self.run_task(0)

    @precondition(lambda self: self.unfinished)
    @rule(number=st.integers(0, 9), pages=st.integers(0, 2))
    def crash_task(self, number: int, pages: int) -> None:
        part = list(self.unfinished.values())[number % len(self.unfinished)]
        task = self.read(part)
        for _ in zip(range(pages), task, strict=False):
            pass
        task.close()

    @precondition(lambda self: self.unfinished)
    @rule(number=st.integers(0, 9), turns=st.lists(st.booleans(), max_size=12), keys=_keys)
    def run_twins(self, number: int, turns: list[bool], keys: list[str]) -> None:
        part = list(self.unfinished.values())[number % len(self.unfinished)]
        twins = [self.read(part), self.read(part)]
        found: list[list[Changes]] = [[], []]
        running = {0, 1}
        won = False
        for turn, who in enumerate([*map(int, turns), *[0] * 100, *[1] * 100]):
            if who in running:
                try:
                    found[who].append(next(twins[who]))
                except StopIteration:
                    running.remove(who)
                    won = True
                    self.check(self.last, part, self.unpacked(found[who]))
                except LostRaceError:
                    running.remove(who)
                    assert won
            if turn == 1:
                self.put(keys)
        assert not running
        del self.unfinished[part.channel]

    @precondition(lambda self: self.log)
    @rule(back=st.integers(0, RETAIN))
    def run_an_old_batch_again(self, back: int) -> None:
        """All batches can be read again, except base data after the next batch is planned."""
        if back >= len(self.log) or (self.unfinished and back == 0):
            return
        plan = self.log[-1 - back]
        assert self.feed.plan(plan.batch) == plan
        for part in plan:
            if part.channel not in self.base:
                self.check(
                    plan.batch, part, self.unpacked(list(channel_reading.read_channel(self.tunnel, plan.batch, part)))
                )

    # -- invariants ---------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "feed"):
            return
        while self.unfinished:
            self.run_task(0)
        changes = [change for plan in self.log for part in plan for change in self.content[plan.batch, part.channel]]
        self.feed = TunnelFeed(self.tunnel, limits=Limits(rows_per_channel=7), retain_batches=RETAIN)
        changes += [change for _, found in run_to_the_end(self.feed, self.last) for change in found]
        assert replay(changes, self.beginning, whole_rows=self.store.capabilities.whole_rows) == state_of(self.table)
        given: dict[str, list[History]] = defaultdict(list)
        for change in changes:
            if change.op not in (ChangeOp.BASE, ChangeOp.PREIMAGE):
                mark = change.version if self.marked_by_version else change.row["price"]
                given[change.key[0]].append(History(change.op, mark))
        assert given == self.expected
        self.store.drop_table(self.table.name)


@pytest.mark.parametrize("page_rows", [2, 65536])
def test_a_repeated_batch_has_the_same_rows_after_any_events(
    place: Place, store: Store, page_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_reading, "PAGE_ROWS", page_rows)
    run_state_machine_as_test(
        type("FeedMachine", (FeedMachine,), {"place": place, "store": store}),
        settings=settings(
            max_examples=thorough(20 if store.capabilities.transactions else 8),
            stateful_step_count=30,
            deadline=None,
            report_multiple_bugs=False,
        ),
    )


@pytest.mark.needs("trims")
def test_of_two_readers_with_equally_many_but_different_rows_one_fails(store: Store, orders: Table) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    for key in "abcdef":
        orders.put([{"id": key, "price": 0}])
    feed = TunnelFeed(tunnel, limits=Limits(rows_per_channel=3))
    (part,) = feed.plan(batch := feed.latest(INITIAL_BATCH))
    whole = channel_reading.read_channel(tunnel, batch, part)
    assert [change.key for change in unpack(next(whole), ("id",))] == [("a",), ("b",), ("c",)]
    (partition,) = orders.describe().partitions
    orders.trim(before={partition.id: 2}, cut_tunnels=True)
    behind_a_loss = channel_reading.read_channel(tunnel, batch, part, fail_on_data_loss=False)
    assert [change.key for change in unpack(next(behind_a_loss), ("id",))] == [("c",), ("d",), ("e",)]
    assert list(whole) == []
    with pytest.raises(LostRaceError):
        list(behind_a_loss)
