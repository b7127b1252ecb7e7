"""A tunnel of the service: positions, pages, bounds and checkpoints, with pages of all sizes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import DataLossError, NotFoundError, OptionError, UnsupportedError
from headrace.model.tables.changes import ChangeOp
from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.leases import Lease, LeaseStatus
from headrace.model.tunnels.records import ChannelEnd
from headrace.model.tunnels.values import FINISHED, ChannelState, Page, Position, Start, StartKind
from headrace.ports import Table
from headrace.testing.effort import thorough
from headrace.testing.reading import read_from
from headrace_tablestore.store.meta_table import MetaRow, MetaTable
from headrace_tablestore.store.tunnels.batches import TablestoreBatches
from headrace_tablestore.store.tunnels.pages import before, changes_of
from headrace_tablestore.store.tunnels.tunnel import TablestoreTunnel
from headrace_tablestore.wire import tunnel_pb2 as pb
from tests.tablestore.unit.tablestore_memory import Change, MemoryTables, MemoryTunnel

SCHEMA = TableSchema.of({"id": "string", "price": "long", "note": "string"}, "id")
BASE = "BaseData_1"
TIMES = st.lists(st.integers(0, 3), max_size=12)


class Orders:
    """A table that has only a name and columns."""

    name = "orders"
    schema = SCHEMA


def orders() -> Table:
    table: object = Orders()
    return table  # type: ignore[return-value]


def tunnel_of(service: MemoryTunnel, tables: MemoryTables | None = None) -> TablestoreTunnel:
    """Return a new handle, like the one of another process."""
    return TablestoreTunnel(service, MetaTable(tables or MemoryTables()), orders(), service.info)


def put(key: str, price: int, at: int = 0) -> Change:
    return (pb.PUT_ROW, key, {"price": price}, at)


@pytest.fixture
def service() -> MemoryTunnel:
    return MemoryTunnel()


@pytest.fixture
def tables() -> MemoryTables:
    return MemoryTables()


@pytest.fixture
def tunnel(service: MemoryTunnel, tables: MemoryTables) -> TablestoreTunnel:
    return tunnel_of(service, tables)


def keys(page: Page) -> list[str]:
    found: list[str] = page.changes.rows.column("id").to_pylist()
    return found


def start_of(service: MemoryTunnel, channel: str) -> Position:
    return Position(service.token(channel, 0))


# -- records as changes -----------------------------------------------------------------------------------


def test_records_become_changes_with_the_written_cells(service: MemoryTunnel, tunnel: TablestoreTunnel) -> None:
    channel = service.add("s1")
    service.page_rows = 10
    service.append(
        channel,
        (pb.PUT_ROW, "a", {"price": 1, "note": "x", "unknown": 3}, 1_000_001),
        (pb.UPDATE_ROW, "a", {"note": None}, 2_000_002),
        (pb.UPDATE_ROW, "b", {"price": 7, "note": 5}, 2_000_002),
        (pb.DELETE_ROW, "a", None, 3_000_003),
    )
    changes = tunnel.read(channel, start_of(service, channel), 1).changes
    assert changes.rows.to_pylist() == [
        {"id": "a", "price": 1, "note": "x"},
        {"id": "a", "price": None, "note": None},
        {"id": "b", "price": 7, "note": None},
        {"id": "a", "price": None, "note": None},
    ]
    assert changes.rows.schema == SCHEMA.changes
    assert changes.ops.to_pylist() == [ChangeOp.INSERT, ChangeOp.UPDATE, ChangeOp.UPDATE, ChangeOp.DELETE]
    assert changes.versions.to_pylist() == [1_000_001, 2_000_002, 2_000_002, 3_000_003]
    assert changes.timestamps.cast("int64").to_pylist() == changes.versions.to_pylist()
    assert changes.written is not None
    # A value of another type is null, but not marked as removed.
    assert {name: cells.to_pylist()[1:3] for name, cells in changes.written.items()} == {
        "price": [False, True],
        "note": [True, False],
    }


def test_defect_j_only_the_requested_columns_are_returned(service: MemoryTunnel) -> None:
    channel = service.add("s1")
    service.append(channel, (pb.PUT_ROW, "a", {"price": 1, "note": "x", "other": 2.5}, 1))
    wanted = TableSchema.of({"id": "string", "other": "double"}, "id")
    changes = changes_of(
        service.read_records("", "", channel, service.token(channel, 0)).records,
        wanted,
        base=False,
    )
    assert changes.rows.to_pylist() == [{"id": "a", "other": 2.5}]


def test_changes_of_base_data_have_no_times(service: MemoryTunnel, tunnel: TablestoreTunnel) -> None:
    service.add(BASE)
    service.append(BASE, put("a", 1, 5), put("b", 2, 6))
    page = tunnel.read(BASE, start_of(service, BASE), 10)
    assert page.changes.ops.to_pylist() == [ChangeOp.BASE] * 2
    assert page.changes.versions.to_pylist() == [0, 0]
    assert page.next == FINISHED
    backlog = tunnel.backlog(BASE, start_of(service, BASE))
    assert (backlog.rows, backlog.seconds, backlog.ends) == (2, None, True)


# -- positions --------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=thorough(60))
@given(
    st.integers(0, 12),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 12),
    st.integers(0, 12),
    st.booleans(),
    st.booleans(),
)
def test_a_range_of_positions_has_the_same_rows_with_any_page_size(
    count: int, page_rows: int, later_page_rows: int, first: int, end: int, base: bool, says_more: bool
) -> None:
    first, end = sorted((min(first, count), min(end, count)))
    service = MemoryTunnel(page_rows=page_rows, says_more=says_more or base)
    channel = service.add(BASE if base else "s1")
    service.append(channel, *(put(str(number), number, number + 1) for number in range(count)))
    tunnel, start = tunnel_of(service), start_of(service, channel)
    whole, behind = read_from(tunnel, channel, start)
    assert [change.key[0] for change in whole] == [str(number) for number in range(count)]
    ends = [tunnel.advance(channel, start, end), Position(service.token(channel, end))]
    service.append(channel, put("late", 0, 99))
    for handle in (tunnel, tunnel_of(service)):
        service.page_rows = later_page_rows
        for until in ends:
            found, _ = read_from(handle, channel, Position(start.token, first), until=until)
            assert found == whole[first:end]
            assert [change.key[0] for change in read_from(handle, channel, until)[0]][: count - end] == [
                str(number) for number in range(end, count)
            ]
    assert behind == FINISHED if base else behind.skip == 0


@settings(deadline=None, max_examples=thorough(60))
@given(TIMES, st.integers(-1, 4), st.integers(1, 4))
def test_a_time_bound_includes_all_changes_up_to_it(times: list[int], bound: int, page_rows: int) -> None:
    service = MemoryTunnel(page_rows=page_rows)
    channel = service.add("s1")
    times = sorted(times)
    service.append(channel, *(put(str(number), 0, at) for number, at in enumerate(times)))
    tunnel = tunnel_of(service)
    behind = sum(at <= bound for at in times)
    found, _ = read_from(tunnel, channel, start_of(service, channel), until=before(bound))
    assert len(found) == behind
    assert tunnel.backlog(channel, start_of(service, channel), before(bound)).known == min(behind, page_rows)
    # Reading can begin at this position, and repeated calls return the same one.
    for _ in range(2):
        rest, _ = read_from(tunnel, channel, before(bound))
        assert [change.key[0] for change in rest] == [str(number) for number in range(behind, len(times))]
    skipped, _ = read_from(tunnel, channel, tunnel.advance(channel, before(bound), 1))
    assert len(skipped) == max(0, len(times) - behind - 1)


def test_a_channel_ends_with_its_last_page(service: MemoryTunnel, tunnel: TablestoreTunnel) -> None:
    channel = service.add("s1")
    service.append(channel, put("a", 1, 1))
    start = start_of(service, channel)
    assert tunnel.read(channel, start, 9).next == Position(service.token(channel, 1))
    service.closed.add(channel)
    fresh = tunnel_of(service)
    assert fresh.backlog(channel, start).ends
    assert fresh.read(channel, start, 9).next == FINISHED
    at_the_end = Position(service.token(channel, 1))
    assert (fresh.backlog(channel, at_the_end).rows, fresh.backlog(channel, at_the_end).ends) == (0, True)
    assert fresh.read(channel, at_the_end, 9).next == FINISHED
    assert (keys(fresh.read(channel, FINISHED, 9)), fresh.backlog(channel, FINISHED).ends) == ([], True)


def test_a_position_beyond_the_end_waits_for_more_changes(service: MemoryTunnel, tunnel: TablestoreTunnel) -> None:
    channel = service.add("s1")
    service.append(channel, put("a", 1, 1))
    position = Position(service.token(channel, 0), 1)
    assert tunnel.read(channel, position, 9).next == Position(service.token(channel, 1))
    service.append(channel, put("b", 1, 2))
    assert keys(tunnel.read(channel, position, 9)) == ["b"]


@pytest.mark.parametrize("stretch", [2, 30])
def test_a_part_of_the_log_without_changes_is_skipped(stretch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any length, and although the service does not report that more changes follow."""
    service = MemoryTunnel(says_more=False)
    channel = service.add("s1")
    service.append(channel, put("a", 1, 1))
    start, read_records = start_of(service, channel).token, service.read_records

    def read(tunnel: str, client: str, channel: str, token: str) -> pb.ReadRecordsPage:
        if not token.startswith("empty"):
            return read_records(tunnel, client, channel, token)
        number = int(token.removeprefix("empty")) + 1
        return pb.ReadRecordsPage(next_token=start if number == stretch else f"empty{number}")

    monkeypatch.setattr(service, "read_records", read)
    asked, position = tunnel_of(service), Position("empty0")
    found: list[str] = []
    while not found:
        page = tunnel_of(service).read(channel, position, 9)
        assert page.next != position
        found, position = keys(page), page.next
    assert found == ["a"]
    while not asked.backlog(channel, Position("empty0")).rows:
        pass
    assert keys(asked.read(channel, Position("empty0"), 9)) == ["a"]


# -- backlog ----------------------------------------------------------------------------------------------


def test_the_backlog_is_exact_if_it_fits_a_page(service: MemoryTunnel, tunnel: TablestoreTunnel) -> None:
    channel = service.add("s1")
    start = start_of(service, channel)
    assert (tunnel.backlog(channel, start).rows, tunnel.backlog(channel, start).ends) == (0, False)
    now = time.time_ns() // 1000
    service.append(channel, put("a", 1, now - 5_000_000), put("b", 1, now))
    backlog = tunnel.backlog(channel, start)
    assert backlog.rows == 2
    assert backlog.seconds == pytest.approx(5.0, abs=60.0)
    assert tunnel.backlog(channel, tunnel.advance(channel, start, 1)).rows == 1
    service.append(channel, *(put(str(number), 1, now) for number in range(5)))
    full = tunnel.backlog(channel, start)
    assert (full.rows, full.at_least, full.known, full.empty) == (None, 3, 3, False)
    assert full.bytes


@pytest.mark.parametrize(("rows", "size", "more"), [(499, 1, False), (500, 1, True), (2, 500_000, True)])
def test_a_page_without_a_flag_for_more_rows_is_judged_by_its_size(rows: int, size: int, more: bool) -> None:
    service = MemoryTunnel(page_rows=1000, says_more=False)
    channel = service.add("s1")
    service.append(channel, *((pb.PUT_ROW, str(number), {"note": "x" * size}, 1) for number in range(rows)))
    assert (tunnel_of(service).backlog(channel, start_of(service, channel)).rows is None) == more


def test_a_page_is_fetched_once_for_the_backlog_and_the_read(service: MemoryTunnel, tunnel: TablestoreTunnel) -> None:
    channel = service.add("s1")
    service.append(channel, *(put(str(number), 1, 1) for number in range(5)))
    start = start_of(service, channel)
    tunnel.backlog(channel, start)
    tunnel.backlog(channel, start)
    assert keys(tunnel.read(channel, start, 3)) == ["0", "1", "2"]
    assert service.counted("read_records") == 1


def test_the_next_page_is_prefetched(service: MemoryTunnel, tunnel: TablestoreTunnel) -> None:
    channel = service.add("s1")
    service.append(channel, *(put(str(number), 1, 1) for number in range(8)))
    for _ in range(2):
        found, _ = read_from(tunnel, channel, start_of(service, channel))
        assert [change.key[0] for change in found] == [str(number) for number in range(8)]
    asked = [call[3] for call in service.calls if call[0] == "read_records"]
    # Only the page at the end is requested twice.
    assert len(set(asked)) == 4
    assert len(asked) == 5


# -- channels and checkpoints -----------------------------------------------------------------------------


def test_channels_have_the_state_that_the_service_reports(service: MemoryTunnel, tunnel: TablestoreTunnel) -> None:
    for number, status in enumerate(("WAIT", "OPEN", "CLOSING", "CLOSE", "TERMINATED")):
        service.add(f"s{number}", status=status)
    service.checkpoints["s3"] = "finished"
    opened, finished = ChannelState.OPEN, ChannelState.FINISHED
    assert [channel.state for channel in tunnel.channels()] == [
        ChannelState.WAITING,
        opened,
        opened,
        finished,
        finished,
    ]
    assert [channel.committed for channel in tunnel.channels()][3:] == [FINISHED, FINISHED]


def test_known_checkpoints_are_not_requested_again(service: MemoryTunnel, tunnel: TablestoreTunnel) -> None:
    service.add("s1")
    service.add("s2")
    found = tunnel.channels({"s1": Position("known", 4)})
    assert [channel.committed for channel in found] == [Position("known", 4), start_of(service, "s2")]
    assert [call for call in service.calls if call[0] == "get_checkpoint"] == [("get_checkpoint", "spark-client", "s2")]


def test_checkpoints_are_saved_once_in_the_form_of_the_connector(
    service: MemoryTunnel, tunnel: TablestoreTunnel
) -> None:
    service.add("s1")
    token = service.token("s1", 2)
    for _ in range(3):
        tunnel.commit({"s1": Position(token)})
    assert [call for call in service.calls if call[0] == "checkpoint"] == [
        ("checkpoint", "spark-client", "s1", token, "0")
    ]
    tunnel.commit({"s1": FINISHED})
    assert [channel.state for channel in tunnel.channels()] == [ChannelState.FINISHED]


def test_a_checkpoint_inside_a_page_is_kept_next_to_the_services_checkpoint(
    service: MemoryTunnel, tables: MemoryTables, tunnel: TablestoreTunnel
) -> None:
    service.add("s1")
    start = start_of(service, "s1")
    for skip, kept in ((2, 2), (1, 2), (0, 2), (3, 3)):
        tunnel.commit({"s1": Position(start.token, skip)})
        for handle in (tunnel, tunnel_of(service, tables)):
            assert [channel.committed for channel in handle.channels()] == [Position(start.token, kept)]
    further = Position(service.token("s1", 9))
    tunnel.commit({"s1": further})
    assert [channel.committed for channel in tunnel_of(service, tables).channels()] == [further]


def test_a_checkpoint_given_as_a_time_is_saved_as_a_token(service: MemoryTunnel, tunnel: TablestoreTunnel) -> None:
    channel = service.add("s1")
    service.append(channel, *(put(str(number), 0, number) for number in range(7)))
    tunnel.commit({channel: before(5)})
    assert [each.committed for each in tunnel.channels()] == [Position(service.token(channel, 6))]


def test_missing_tunnels_and_channels_are_errors(service: MemoryTunnel, tunnel: TablestoreTunnel) -> None:
    service.add("s1")
    start = start_of(service, "s1")
    calls: list[Callable[[], object]] = [
        lambda: tunnel.read("nobody", start, 1),
        lambda: tunnel.commit({"nobody": start}),
        lambda: tunnel.backlog("nobody", start),
    ]
    for call in calls:
        with pytest.raises(NotFoundError, match="nobody"):
            call()
    service.id = "tunnel-2"
    with pytest.raises(NotFoundError, match="another one"):
        tunnel.channels()
    service.dropped = True
    with pytest.raises(NotFoundError):
        tunnel.channels()


# -- start positions --------------------------------------------------------------------------------------


def test_a_reader_can_begin_now_or_at_a_time_but_not_before_the_checkpoints(
    service: MemoryTunnel, tunnel: TablestoreTunnel
) -> None:
    channel = service.add("s1")
    service.add(BASE)
    service.add("s2", status="WAIT")
    service.append(channel, *(put(str(number), 0, number) for number in range(7)))
    service.append("s2", put("a", 0, 3), put("b", 0, 9))
    latest = tunnel.start_positions(Start(StartKind.LATEST))
    assert latest[channel] == Position(service.token(channel, 7))
    assert latest[BASE] == FINISHED
    assert read_from(tunnel, "s2", latest["s2"])[0] == []
    timed = tunnel.start_positions(Start.parse("1970-01-01T00:00:00.000004"))
    assert keys(tunnel.read(channel, timed[channel], 9))[0] == "4"
    assert keys(tunnel.read("s2", timed["s2"], 9)) == ["b"]
    with pytest.raises(UnsupportedError, match="start='earliest'"):
        tunnel.start_positions(Start(StartKind.EARLIEST))
    with pytest.raises(OptionError):
        tunnel.start_positions(Start())


def test_latest_is_not_before_the_newest_change_if_the_clock_is_slow(
    service: MemoryTunnel, tunnel: TablestoreTunnel
) -> None:
    channel = service.add("s1")
    ahead = time.time_ns() // 1000 + 3_600_000_000
    service.append(channel, put("a", 0, ahead))
    start = start_of(service, channel)
    tunnel.backlog(channel, start)
    assert len(read_from(tunnel, channel, start, until=tunnel.latest_positions()[channel])[0]) == 1


def test_a_reader_continues_at_the_position_of_the_connector(
    service: MemoryTunnel, tables: MemoryTables, tunnel: TablestoreTunnel
) -> None:
    for channel in ("s1", "s2", "s3", "s4"):
        service.add(channel)
    service.status["s3"] = "TERMINATED"
    uuid = "3F2504E0-4f89-11d3-9a0c-0305e82c3301"
    offset = '{{"logPoint":"{}","offset":0}}'
    MetaTable(tables).put(
        tunnel.id,
        [
            MetaRow(uuid, "s1", {"channelOffset": offset.format("theirs"), "version": 1}),
            MetaRow(uuid, "s3", {"channelOffset": offset.format("old"), "version": 1}),
            MetaRow(uuid, "s4", {"channelOffset": offset.format("finished"), "version": 1}),
            MetaRow(uuid, "s9", {"channelOffset": offset.format("of a channel that is gone"), "version": 1}),
        ],
    )
    assert tunnel.start_positions(Start.parse(f"batch:{uuid}")) == {
        "s1": Position("theirs"),
        "s2": start_of(service, "s2"),
        "s3": FINISHED,
        "s4": FINISHED,
    }
    with pytest.raises(NotFoundError, match=r"checkpoint\.table"):
        tunnel.start_positions(Start.parse("batch:other"))
    TablestoreBatches(MetaTable(tables), tunnel.id).record_end("ours", "s2", ChannelEnd(Position("here", 3), 8))
    assert tunnel.start_positions(Start.parse("batch:ours"))["s2"] == Position("here", 3)


# -- lost changes -----------------------------------------------------------------------------------------


def test_lost_changes_are_skipped_only_to_a_position_of_the_service(
    service: MemoryTunnel, tunnel: TablestoreTunnel
) -> None:
    channel = service.add("s1")
    service.append(channel, *(put(str(number), 0, number) for number in range(7)))
    service.trimmed[channel] = 4
    start = start_of(service, channel)
    with pytest.raises(DataLossError):
        tunnel.read(channel, start, 9)
    with pytest.raises(DataLossError, match="new tunnel"):
        tunnel.skip_lost(channel, start)
    found = service.checkpoints[channel] = service.token(channel, 5)
    assert tunnel.skip_lost(channel, start) == (Position(found), None)
    assert tunnel.skip_lost(channel, Position(found)) == (Position(found), 0)
    service.status[channel] = "TERMINATED"
    assert tunnel.skip_lost(channel, start) == (FINISHED, 0)


# -- clients ----------------------------------------------------------------------------------------------


class _Clients(MemoryTunnel):
    def connect(self, tunnel: str, *, tag: str, timeout: float) -> str:
        self.calls.append(("connect", tunnel, tag, str(timeout)))
        return "client-1"

    def heartbeat(self, tunnel: str, client: str, leases: object) -> list[Lease]:
        self.calls.append(("heartbeat", tunnel, client))
        return [Lease("s1", 1, LeaseStatus.OPEN)]

    def shutdown(self, tunnel: str, client: str) -> None:
        self.calls.append(("shutdown", tunnel, client))
        raise NotFoundError("the tunnel does not exist")


def test_a_client_is_found_by_its_id() -> None:
    service = _Clients()
    service.add("s1")
    tunnel = tunnel_of(service)
    client = tunnel.connect(tag="me", timeout=30.0)
    assert client.heartbeat([]) == [Lease("s1", 1, LeaseStatus.OPEN)]
    saved = tunnel.client(client.id).saved("s1")
    assert (saved.position, saved.sequence) == (start_of(service, "s1"), 0)
    client.save("s1", Position("token"), 1)
    client.close()
    assert service.calls == [
        ("connect", "tunnel-1", "me", "30.0"),
        ("heartbeat", "tunnel-1", "client-1"),
        ("get_checkpoint", "client-1", "s1"),
        ("checkpoint", "client-1", "s1", "token", "1"),
        ("shutdown", "tunnel-1", "client-1"),
    ]
