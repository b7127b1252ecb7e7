"""The meta table of a Tablestore instance: the first record is kept, in the layout of the EMR connector."""

from __future__ import annotations

import json
import logging
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RowsNotWrittenError, StoreDamagedError, TunnelTakenError
from headrace.model.tunnels.records import INITIAL_BATCH, BatchPlan, ChannelEnd, ChannelPlan
from headrace.model.tunnels.values import FINISHED, Position
from headrace_tablestore.store.meta_table import DEFAULT_NAME, MetaRow, MetaTable
from headrace_tablestore.store.tunnels import batches
from headrace_tablestore.store.tunnels.batches import TablestoreBatches, cut, position_cells, position_of
from headrace_tablestore.wire import table_pb2 as pb
from tests.tablestore.unit.tablestore_memory import MemoryTables

PART = ChannelPlan("c", Position("token", 3), max_rows=7, until=Position("before:9"))


@pytest.fixture
def tables() -> MemoryTables:
    return MemoryTables()


@pytest.fixture
def records(tables: MemoryTables) -> TablestoreBatches:
    return records_of(tables)


def records_of(tables: MemoryTables, tunnel: str = "tunnel-1") -> TablestoreBatches:
    """Return the records as another process sees them."""
    return TablestoreBatches(MetaTable(tables), tunnel)


def save(records: TablestoreBatches, batch: str, previous: str) -> str:
    records.save_plan(BatchPlan(batch, previous, (PART,)))
    records.record_end(batch, "c", ChannelEnd(Position(batch), 1))
    return batch


@given(st.builds(Position, st.text(), st.integers(0, 1 << 50)))
def test_a_position_round_trips_through_a_row(position: Position) -> None:
    assert position_of(position_cells(position)) == position


def test_ends_have_the_layout_of_the_connector(tables: MemoryTables, records: TablestoreBatches) -> None:
    records.record_end("batch", "one", ChannelEnd(Position("token"), 5))
    records.record_end("batch", "two", ChannelEnd(FINISHED, 0))
    rows = tables.tables[DEFAULT_NAME]
    assert [row.key for row in rows.values()] == [
        (("tunnelId", "tunnel-1"), ("uuid", "batch"), ("channelId", channel)) for channel in ("one", "two")
    ]
    cells = [{cell.name: cell.value for cell in row.cells} for row in rows.values()]
    assert [json.loads(str(found["channelOffset"])) for found in cells] == [
        {"logPoint": "token", "offset": 0},
        {"logPoint": "finished", "offset": 0},
    ]
    assert [found["version"] for found in cells] == [1, 1]


def test_rows_of_the_connector_are_positions_but_not_ends(tables: MemoryTables, records: TablestoreBatches) -> None:
    left = MetaRow("uuid", "channel", {"channelOffset": '{"logPoint":"theirs","offset":0}', "version": 1})
    MetaTable(tables).put("tunnel-1", [left])
    assert records.left_positions("uuid") == {"channel": Position("theirs")}
    assert records.ends("uuid") == {}
    assert records_of(tables, "tunnel-2").left_positions("uuid") == {}


def test_an_invalid_row_of_a_position_is_named(tables: MemoryTables, records: TablestoreBatches) -> None:
    MetaTable(tables).put("tunnel-1", [MetaRow("uuid", "channel", {"channelOffset": "{}", "version": 1})])
    with pytest.raises(StoreDamagedError, match="logPoint"):
        records.left_positions("uuid")


def test_defect_g_the_meta_table_is_created_on_first_use_and_its_rows_do_not_expire(
    tables: MemoryTables, records: TablestoreBatches
) -> None:
    assert records.load_plan("batch") is None
    assert records.ends("batch") == {}
    assert tables.tables == {}
    save(records, "batch", INITIAL_BATCH)
    assert (tables.options[DEFAULT_NAME].time_to_live, tables.options[DEFAULT_NAME].max_versions) == (-1, 1)
    assert tables.calls.count("CreateTable") == 1


def test_a_meta_table_whose_rows_expire_gets_a_warning(
    tables: MemoryTables, records: TablestoreBatches, caplog: pytest.LogCaptureFixture
) -> None:
    tables.tables[DEFAULT_NAME] = {}
    tables.options[DEFAULT_NAME] = pb.TableOptions(time_to_live=7 * 86400)
    with caplog.at_level(logging.WARNING, "headrace"):
        save(records, "first", INITIAL_BATCH)
        save(records, "second", "first")
    assert [record.getMessage().count("7.0 days") for record in caplog.records] == [1]


def test_defect_i_individually_refused_rows_are_an_error(tables: MemoryTables, records: TablestoreBatches) -> None:
    tables.refused.add("c")
    with pytest.raises(RowsNotWrittenError, match="too large"):
        records.save_committed({"c": Position("token", 1)})


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 25])
def test_a_text_is_split_into_parts_without_loss(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PLAN_PART_BYTES", 10)
    parts = cut("x" * size)
    assert "".join(parts) == "x" * size
    assert all(len(part) <= 10 for part in parts)
    assert len(parts) == max(1, -(-size // 10))


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_the_first_saved_plan_of_any_size_is_kept(
    tables: MemoryTables, records: TablestoreBatches, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "PLAN_PART_BYTES", size)
    plan = BatchPlan("batch", INITIAL_BATCH, (PART, ChannelPlan("two", FINISHED)), ("gone",))
    records.save_plan(plan)
    records.save_plan(BatchPlan("batch", INITIAL_BATCH, ()))
    for found in (records, records_of(tables)):
        assert found.load_plan("batch") == plan
    assert records.ends("batch") == {}


def test_an_incomplete_plan_is_an_error(
    tables: MemoryTables, records: TablestoreBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "PLAN_PART_BYTES", 50)
    records.save_plan(BatchPlan("batch", INITIAL_BATCH, (PART,)))
    del tables.tables[DEFAULT_NAME]["tunnel-1", "batch", f"{batches.PLAN}/000002"]
    with pytest.raises(StoreDamagedError, match="incomplete"):
        records_of(tables).load_plan("batch")


def test_the_first_recorded_end_is_kept(tables: MemoryTables, records: TablestoreBatches) -> None:
    first, second = ChannelEnd(Position("token", 3), 5), ChannelEnd(FINISHED, 9)
    assert records.record_end("batch", "one", first) == first
    assert records_of(tables).record_end("batch", "one", second) == first
    assert records_of(tables).ends("batch") == {"one": first}


def test_ends_are_cached_when_no_more_can_follow(tables: MemoryTables, records: TablestoreBatches) -> None:
    parts = (PART, ChannelPlan("other", FINISHED), ChannelPlan("unread", FINISHED, max_rows=0))
    records.save_plan(BatchPlan("batch", INITIAL_BATCH, parts))
    records.load_plan("batch")
    end = ChannelEnd(FINISHED, 1)
    for channels in (["c"], ["c", "other"]):
        records_of(tables).record_end("batch", channels[-1], end)
        assert records.ends("batch") == dict.fromkeys(channels, end)
    tables.calls.clear()
    assert set(records.ends("batch")) == {"c", "other"}
    assert tables.calls == []


def test_a_new_reader_takes_over_the_tunnel(tables: MemoryTables, records: TablestoreBatches) -> None:
    first = save(records, "first", INITIAL_BATCH)
    following = save(records, "following", first)
    records.check_reader(following)
    save(records_of(tables), "other", INITIAL_BATCH)
    save(records_of(tables, "tunnel-2"), "elsewhere", INITIAL_BATCH)
    for found in (records, records_of(tables)):
        with pytest.raises(TunnelTakenError):
            found.check_reader(following)
        found.check_reader("other")
        found.check_reader("unknown")


@pytest.mark.parametrize("keep", [0, 1, 3, 100])
def test_pruning_keeps_the_requested_number_of_batches(
    tables: MemoryTables, records: TablestoreBatches, keep: int
) -> None:
    batches, previous = [], INITIAL_BATCH
    for _ in range(7):
        in_vain = str(uuid.uuid4())
        records.save_plan(BatchPlan(in_vain, previous, (PART,)))
        # Each first batch belongs to another reader.
        previous = save(records, str(uuid.uuid4()) if previous != INITIAL_BATCH else in_vain, previous)
        batches.append(previous)
        records.prune(previous, keep)
        assert previous == in_vain or records_of(tables).load_plan(in_vain) is None
    kept = batches[-1 - keep :]
    fresh = records_of(tables)
    assert [batch for batch in batches if fresh.load_plan(batch) is not None] == kept
    assert [batch for batch in batches if fresh.ends(batch)] == kept
    assert [batch for batch in batches if records.load_plan(batch) is not None] == kept
    # One row for each plan, end and place in the chain; one for the reader.
    assert len(tables.tables[DEFAULT_NAME]) == 3 * len(kept) + 1


def test_pruning_does_not_affect_other_readers_and_tunnels(tables: MemoryTables, records: TablestoreBatches) -> None:
    save(records, "other", INITIAL_BATCH)
    save(records_of(tables, "tunnel-2"), "mine", INITIAL_BATCH)
    save(records, "mine", INITIAL_BATCH)
    save(records, "next", "mine")
    records.prune("next", 0)
    records.prune("unknown", 0)
    assert records_of(tables).load_plan("mine") is None
    assert records_of(tables).load_plan("other") is not None
    assert records_of(tables, "tunnel-2").load_plan("mine") is not None


def test_a_dropped_tunnel_leaves_no_rows_in_the_meta_table(tables: MemoryTables, records: TablestoreBatches) -> None:
    save(records, "batch", INITIAL_BATCH)
    save(records_of(tables, "tunnel-2"), "batch", INITIAL_BATCH)
    records.forget_all()
    assert {key[0] for key in tables.tables[DEFAULT_NAME]} == {"tunnel-2"}
    assert all(row.key[0] == ("tunnelId", "tunnel-2") for row in tables.tables[DEFAULT_NAME].values())
