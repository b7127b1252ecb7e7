"""Records of batches: the first record of a batch is kept, and old batches are deleted."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import NotFoundError, StoreDamagedError
from headrace.model.tunnels.records import (
    INITIAL_BATCH,
    BatchPlan,
    ChannelEnd,
    ChannelPlan,
    end_from_json,
    end_to_json,
    plan_from_json,
    plan_to_json,
)
from headrace.model.tunnels.values import FINISHED, Position
from headrace.ports import BatchRecords
from headrace.stores.embedded.connection import Database
from headrace.stores.embedded.tunnels.records import EmbeddedRecords
from headrace.stores.shared.tunnel_batches import TunnelBatches

positions = st.one_of(st.just(FINISHED), st.builds(Position, st.text(), st.integers(0, 1 << 50)))
parts = st.builds(
    ChannelPlan, st.text(), positions, st.one_of(st.none(), st.integers(0)), st.one_of(st.none(), positions)
)
plans = st.builds(BatchPlan, st.text(), st.text(), st.lists(parts).map(tuple), st.lists(st.text()).map(tuple))


@pytest.fixture
def database(tmp_path: Path) -> Database:
    database = Database(tmp_path, create=True, synchronous="off")
    with database.write() as connection:
        connection.execute("INSERT INTO tunnel (id, object, name, kind, created) VALUES ('t', 1, 't', 'Stream', 0)")
        connection.execute("INSERT INTO tunnel (id, object, name, kind, created) VALUES ('u', 1, 'u', 'Stream', 0)")
    return database


@pytest.fixture
def records(database: Database) -> BatchRecords:
    return TunnelBatches(EmbeddedRecords(database), "t")


def save(records: BatchRecords, batch: str, previous: str) -> None:
    records.save_plan(BatchPlan(batch, previous, ()))
    records.record_end(batch, "c", ChannelEnd(Position(batch), 1))


def kept(records: BatchRecords, *batches: str) -> list[str]:
    found = [batch for batch in batches if records.load_plan(batch) is not None]
    assert found == [batch for batch in batches if records.ends(batch)]
    return found


@given(plans)
def test_a_plan_round_trips_through_json(plan: BatchPlan) -> None:
    assert plan_from_json(plan_to_json(plan)) == plan


@given(st.builds(ChannelEnd, positions, st.integers(0)))
def test_an_end_round_trips_through_json(end: ChannelEnd) -> None:
    assert end_from_json(end_to_json(end)) == end


def test_a_record_of_another_format_is_refused() -> None:
    with pytest.raises(StoreDamagedError, match="format 2"):
        plan_from_json('{"v":2}')


def test_the_first_plan_of_a_batch_is_kept(records: BatchRecords) -> None:
    first = BatchPlan("a", INITIAL_BATCH, (ChannelPlan("c", Position("x")),))
    records.save_plan(first)
    records.save_plan(BatchPlan("a", INITIAL_BATCH, ()))
    assert records.load_plan("a") == first
    assert records.load_plan("b") is None


def test_one_of_several_concurrent_ends_is_kept_and_all_readers_get_it(records: BatchRecords) -> None:
    barrier = threading.Barrier(8)
    got: list[ChannelEnd] = []

    def record(number: int) -> None:
        barrier.wait()
        got.append(records.record_end("a", "c", ChannelEnd(Position(str(number)), number)))

    threads = [threading.Thread(target=record, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert set(got) == {records.ends("a")["c"]}


def test_pruning_keeps_the_requested_number_of_batches(records: BatchRecords) -> None:
    previous = INITIAL_BATCH
    for batch in "abcdef":
        save(records, batch, previous)
        previous = batch
    records.prune("e", 2)
    assert kept(records, *"abcdef") == [*"cdef"]


def test_pruning_removes_plans_that_lost_their_place(records: BatchRecords) -> None:
    save(records, "a", INITIAL_BATCH)
    save(records, "unused", "a")
    save(records, "b", "a")
    records.prune("b", 100)
    assert kept(records, "a", "unused", "b") == ["a", "b"]


def test_pruning_does_not_affect_other_queries_and_tunnels(database: Database, records: BatchRecords) -> None:
    other_tunnel = TunnelBatches(EmbeddedRecords(database), "u")
    for root in "ax":
        save(records, root, INITIAL_BATCH)
        save(records, root + "1", root)
        save(records, root + "2", root + "1")
    save(other_tunnel, "a", INITIAL_BATCH)
    records.prune("a2", 0)
    assert kept(records, "a", "a1", "a2", "x", "x1", "x2") == ["a2", "x", "x1", "x2"]
    assert kept(other_tunnel, "a") == ["a"]


def test_a_batch_after_an_unknown_one_begins_a_chain(records: BatchRecords) -> None:
    save(records, "a", INITIAL_BATCH)
    save(records, "b", "gone")
    save(records, "c", "b")
    records.prune("c", 0)
    records.prune("nobody", 0)
    assert kept(records, *"abc") == ["a", "c"]


def test_nothing_is_recorded_for_a_dropped_tunnel(database: Database, records: BatchRecords) -> None:
    with database.write() as connection:
        connection.execute("DELETE FROM tunnel")
    with pytest.raises(NotFoundError):
        records.save_plan(BatchPlan("a", INITIAL_BATCH, ()))
    with pytest.raises(NotFoundError):
        records.record_end("a", "c", ChannelEnd(FINISHED, 0))
