"""The log that a PostgreSQL server keeps for tunnels: how it is released, and how people see it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from html import unescape
from pathlib import Path
from typing import Any

import psycopg
import pytest

import headrace
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.cli.main import main
from headrace.errors import DataLossError, OptionError, StoreBusyError
from headrace.model.tunnels.lag import Slot
from headrace.model.tunnels.values import Start
from headrace.monitoring.process_metrics import StoreCollector
from headrace.ports import Store, Tunnel
from headrace.spark.listener import lag_of
from headrace.stores.postgres.tunnels import log, retention, slot_limits
from headrace.stores.postgres.tunnels import slots as tunnel_slots
from headrace.testing.reading import drain, only_channel
from headrace.ui.server import UiThread
from tests.clocks import patch_time
from tests.postgres_server import USER, PostgresServer, create_database
from tests.ui.conftest import Browser

Server = psycopg.Connection[Any]
MB = 1 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresServer]:
    """A server of these tests alone: other tests would write to its log."""
    server = PostgresServer.start(max_wal_size="32MB", min_wal_size="32MB", max_slot_wal_keep_size="160MB")
    try:
        create_database(server.port, "followed")
        create_database(server.port, "other")
        yield server
    finally:
        server.remove()


@pytest.fixture
def server(cluster: PostgresServer) -> Iterator[Server]:
    address = f"postgresql://{USER}@127.0.0.1:{cluster.port}/followed"
    with psycopg.connect(address, autocommit=True) as connection:
        yield connection


@pytest.fixture
def other(cluster: PostgresServer) -> Iterator[Server]:
    """A connection to another database of the same server."""
    address = f"postgresql://{USER}@127.0.0.1:{cluster.port}/other"
    with psycopg.connect(address, autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(cluster: PostgresServer, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(log, "WINDOW_BYTES", MB)
    monkeypatch.setattr(retention, "LIST_SECONDS", 0.0)
    monkeypatch.setattr(slot_limits, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(retention, "_ADVANCING_SHARE", 1e9)
    server.execute("CREATE TABLE orders (id text PRIMARY KEY)")
    with headrace.open(f"postgresql://{USER}@127.0.0.1:{cluster.port}/followed") as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)
    server.execute("DROP TABLE orders")


def write(connection: Server, megabytes: int) -> None:
    """Write log, by a table that no tunnel follows."""
    connection.execute("CREATE TABLE IF NOT EXISTS busy (t text)")
    connection.execute(
        "INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, %s::int)", (megabytes * 1000,)
    )
    connection.execute("TRUNCATE busy")


def slots(store: Store) -> set[str]:
    """Return the states of slots in the metrics."""
    found = set()
    for family in StoreCollector(store).collect():
        for sample in family.samples:
            if sample.name == "headrace_tunnel_slot_status":
                found.add(sample.labels["status"])
            if sample.name == "headrace_tunnel_retained_bytes":
                assert sample.value > 120 * MB
    return found


def retained(server: Server) -> int:
    found = server.execute(
        "SELECT max(pg_current_wal_flush_lsn() - restart_lsn)::bigint FROM pg_replication_slots"
    ).fetchone()
    assert found is not None
    return int(found[0])


def lists(server: Server) -> set[str]:
    """Return the files of the lists of running transactions that reads have decoded."""
    return {name for (name,) in server.execute("SELECT name FROM pg_ls_logicalsnapdir()")}


def list_running_transactions(server: Server) -> None:
    """Do what the server does every 15 s, and with each checkpoint."""
    server.execute("CHECKPOINT")


def look(tunnel: Tunnel) -> None:
    """Look for changes, as a query does while it waits."""
    (channel,) = tunnel.channels()
    assert tunnel.backlog(channel.id, channel.committed).rows == 0


@pytest.mark.parametrize("busy", ["a table", "a database"])
def test_an_idle_table_keeps_little_log_while_others_are_busy(
    store: Store, server: Server, other: Server, busy: str
) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    kept = []
    for _ in range(6):
        write(server if busy == "a table" else other, 20)
        list_running_transactions(other)
        look(tunnel)
        kept.append(retained(server))
    # Between two looks, 20 MB are written.
    assert max(kept) < retention.LAG_BYTES + 22 * MB
    server.execute("INSERT INTO orders VALUES ('a')")
    assert [change.key for change in drain(tunnel)] == [("a",)]


def test_the_log_of_a_burst_is_released_when_it_is_over(store: Store, server: Server, other: Server) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    write(other, 60)
    look(tunnel)
    list_running_transactions(other)
    look(tunnel)
    assert retained(server) < MB


def test_the_log_up_to_the_next_change_is_released_and_the_change_is_not(
    store: Store, server: Server, other: Server
) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    (channel,) = tunnel.channels()
    server.execute("INSERT INTO orders VALUES ('a')")
    position = tunnel.read(channel.id, channel.committed, 10).next
    write(other, 20)
    server.execute("INSERT INTO orders VALUES ('b')")
    assert tunnel.read(channel.id, position, 10).changes.num_rows == 1
    tunnel.commit({channel.id: position})
    moved = server.execute(
        "SELECT confirmed_flush_lsn - %s::pg_lsn FROM pg_replication_slots", (position.token,)
    ).fetchone()
    assert moved is not None
    assert moved[0] > 15 * MB
    with headrace.open(store.url) as reader:
        assert [change.key for change in drain(reader.tunnel("changes"))] == [("b",)]


def test_a_worker_and_a_query_that_reads_what_is_there_follow_the_log(
    store: Store, server: Server, other: Server
) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    write(other, 20)
    list_running_transactions(other)
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    assert tunnel.read(channel, start, 10).changes.num_rows == 0
    assert retained(server) < 4 * MB
    write(other, 20)
    list_running_transactions(other)
    end = tunnel.latest_positions()[channel]
    assert tunnel.backlog(channel, start, end).empty
    assert retained(server) < 4 * MB


@pytest.mark.parametrize("allowed", [True, False])
def test_the_log_of_the_last_seconds_is_released_if_the_user_may_list_transactions(
    store: Store,
    cluster: PostgresServer,
    server: Server,
    other: Server,
    monkeypatch: pytest.MonkeyPatch,
    allowed: bool,
) -> None:
    # The function is there from PostgreSQL 16 on, at first for superusers.
    can_list = server.info.server_version >= 160_000
    monkeypatch.setattr(retention, "LAG_BYTES", MB)
    store.create_tunnel("orders", "changes", "Stream")
    server.execute("CREATE ROLE listing LOGIN REPLICATION")
    server.execute("GRANT pg_read_all_data, pg_write_all_data TO listing")
    server.execute("ALTER TABLE orders OWNER TO listing")
    if allowed and can_list:
        server.execute("GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO listing")
    kept = []
    try:
        with headrace.open(f"postgresql://listing@127.0.0.1:{cluster.port}/followed") as reader:
            for _ in range(4):
                write(other, 10)
                look(reader.tunnel("changes"))
                kept.append(retained(server))
            server.execute("INSERT INTO orders VALUES ('a')")
            assert [change.key for change in drain(reader.tunnel("changes"))] == [("a",)]
    finally:
        server.execute(f"REASSIGN OWNED BY listing TO {USER}")
        server.execute("DROP OWNED BY listing")
        server.execute("DROP ROLE listing")
    if allowed and can_list:
        # The server itself may have listed them at any time.
        assert kept[-1] < 15 * MB


def test_the_log_of_a_large_transaction_is_not_decoded_for_each_of_the_next_small_batches(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if server.info.server_version < 160_000:
        pytest.skip("pg_log_standby_snapshot is there from PostgreSQL 16 on")
    monkeypatch.setattr(retention, "LAG_BYTES", 4 * MB)
    # No second advance for its time, and none because there is so much new log.
    monkeypatch.setattr(retention, "_ADVANCING_SHARE", 1e-9)
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    write(server, 10)
    for key in ("a", "b", "c"):
        server.execute("INSERT INTO orders VALUES (%s)", [key])
        assert [change.key for change in drain(tunnel)] == [(key,)]
    assert retained(server) < MB


@pytest.mark.parametrize("case", ["base data is read", "transactions are open"])
def test_lists_of_transactions_to_which_the_slot_cannot_move_are_not_asked_for(
    store: Store, cluster: PostgresServer, server: Server, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    if server.info.server_version < 160_000:
        pytest.skip("pg_log_standby_snapshot is there from PostgreSQL 16 on")
    monkeypatch.setattr(retention, "LAG_BYTES", 4 * MB)
    server.execute("INSERT INTO orders SELECT i::text FROM generate_series(1, 12) i")
    base = case == "base data is read"
    tunnel = store.create_tunnel("orders", "changes", "BaseAndStream" if base else "Stream")
    before = lists(server)
    server.execute("CREATE TABLE IF NOT EXISTS held (n int)")
    with ExitStack() as stack:
        address = f"postgresql://{USER}@127.0.0.1:{cluster.port}/followed"
        sessions = [stack.enter_context(psycopg.connect(address)) for _ in range(12)]
        for session in sessions:
            session.execute("INSERT INTO held VALUES (1)")
        write(server, 10)
        if not base:
            look(tunnel)
        channel = tunnel.channels()[0]
        position = channel.committed
        for session in sessions:
            session.commit()
            if base:
                position = tunnel.read(channel.id, position, 1).next
                tunnel.commit({channel.id: position})
            else:
                look(tunnel)
    assert len(drain(tunnel)) == 0
    # The server itself may have listed them, too.
    assert len(lists(server) - before) < 5


def test_an_open_transaction_keeps_the_log_and_loses_no_change(
    store: Store, cluster: PostgresServer, server: Server, other: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_LONG_TRANSACTION_BYTES", 10 * MB)
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    with psycopg.connect(f"postgresql://{USER}@127.0.0.1:{cluster.port}/followed") as slow:
        slow.execute("INSERT INTO orders VALUES ('slow')")
        for _ in range(3):
            write(other, 20)
            list_running_transactions(other)
            look(tunnel)
        assert retained(server) > 50 * MB
        assert any("MB of this log are kept for a transaction" in each for each in tunnel.describe().warnings)
        server.execute("INSERT INTO orders VALUES ('fast')")
        assert [change.key for change in drain(tunnel)] == [("fast",)]
        slow.commit()
    assert [change.key for change in drain(tunnel)] == [("slow",)]
    write(other, 4)
    list_running_transactions(other)
    look(tunnel)
    assert retained(server) < 10 * MB


def test_the_error_of_reads_is_in_the_description_and_the_metrics(store: Store, server: Server) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    assert "last_error" not in tunnel.describe().details
    server.execute("SELECT pg_drop_replication_slot(%s)", [f"headrace_{tunnel.id}"])
    assert str(tunnel.describe().details["last_error"]).startswith("DataLossError: the replication slot of tunnel")
    samples = [sample for family in StoreCollector(store).collect() for sample in family.samples]
    assert [sample.value for sample in samples if sample.name == "headrace_tunnel_warnings"] == [1.0]
    (found,) = [sample for sample in samples if sample.name == "headrace_tunnel_last_error"]
    assert (found.labels, found.value) == ({"table": "orders", "tunnel": "changes", "error": "DataLossError"}, 1.0)


def test_the_progress_of_a_query_has_the_slot_at_most_every_ten_seconds(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    now = [100.0]
    patch_time(monkeypatch, "headrace.batches.feeds.tunnel_feed", monotonic=lambda: now[0])
    feed = TunnelFeed(tunnel)

    def slot() -> Slot | None:
        (lag,) = lag_of({"sources": [{"latestOffset": feed.report()}]})
        assert lag is not None
        assert lag.lag.slot == lag.slot
        return lag.slot

    first = slot()
    assert first is not None
    assert first.status == "reserved"
    assert first.bytes is not None
    assert 0 <= first.bytes < MB
    server.execute("SELECT pg_drop_replication_slot(%s)", [f"headrace_{tunnel.id}"])
    assert slot() == first
    now[0] += 10
    assert slot() == Slot("missing")


def test_a_description_shows_the_kept_log_and_warns(
    store: Store, server: Server, other: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    described = tunnel.describe()
    found = server.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots").fetchone()
    assert found is not None
    # The server itself writes a little log at any time. A read of the slot moves `restart_lsn` up to the confirmed
    # position when it meets a list of running transactions there.
    names = ("restart_lsn", "safe_wal_size", "retained_bytes", "confirmed_bytes", "current_lsn")
    sizes = {name: described.details[name] for name in names}
    assert 0 <= int(sizes["confirmed_bytes"] or 0) <= int(sizes["retained_bytes"] or 0)
    assert 0 <= int(sizes["retained_bytes"] or 0) < MB
    assert int(sizes["safe_wal_size"] or 0) > 100 * MB
    assert described.details == {
        **sizes,
        "slot": f"headrace_{tunnel.id}",
        "active": False,
        "confirmed_flush_lsn": found[0],
        "wal_status": "reserved",
        "max_slot_wal_keep_size": 160 * MB,
        "lag_bytes": 0,
    }
    assert described.warnings == ()
    write(other, 75)
    (warning,) = tunnel.describe().warnings
    assert "more than max_wal_size" in warning
    write(other, 75)
    (warning,) = tunnel.describe().warnings
    assert "removes it beyond max_slot_wal_keep_size = 160 MB" in warning

    command = ["tunnel", "describe", "changes", "-s", store.url]
    assert main([*command, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["retained_bytes"] > 120 * MB
    assert slots(store) <= {"extended", "unreserved"}
    assert "max_slot_wal_keep_size" in record["warnings"][0]
    assert main(command) == 0
    text = capsys.readouterr()
    assert "wal_status" in text.out
    assert "warning: " in text.err
    # The server removes log at a checkpoint.
    write(other, 100)
    server.execute("CHECKPOINT")
    lost = tunnel.describe()
    assert lost.details["wal_status"] == "lost"
    assert lost.channels[0].backlog.rows is None
    assert any("has invalidated slot" in each for each in lost.warnings)
    (again,) = [each.describe().details for each in store.tunnels()]
    assert {**again, "current_lsn": None} == {**lost.details, "current_lsn": None}
    assert slots(store) == {"lost"}


def test_a_tunnel_without_a_slot_has_no_details(store: Store) -> None:
    described = store.create_tunnel("orders", "changes", "BaseData", start=Start.parse("latest")).describe()
    assert (described.details, described.warnings) == ({}, ())


def gauges(store: Store, tunnel: str) -> dict[str, float]:
    """Return the gauges of a tunnel about its slot and its age."""
    return {
        sample.name.removeprefix("headrace_tunnel_"): sample.value
        for family in StoreCollector(store).collect()
        for sample in family.samples
        if sample.labels.get("tunnel") == tunnel
        and sample.name.endswith(("_limit_bytes", "_lag_bytes", "_lag_seconds"))
    }


def test_a_slot_near_its_limit_is_told_by_each_reader_of_the_database(
    store: Store,
    server: Server,
    other: Server,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.execute("CREATE TABLE IF NOT EXISTS read (id int PRIMARY KEY)")
    reader = store.create_tunnel("read", "reader", "Stream")
    assert main(["tunnel", "create", "orders", "paused", "--max-slot-bytes", "40m", "-s", store.url]) == 0
    paused = store.tunnel("paused")
    drain(reader)
    assert not caplog.messages
    write(other, 25)
    drain(reader)
    drain(reader)
    (warning,) = [each for each in caplog.messages if "paused" in each]
    assert "of max_slot_bytes = 40 MB, and nothing happens at the limit" in warning
    assert any("max_slot_bytes = 40 MB" in each for each in paused.describe().warnings)
    assert paused.describe().details["max_slot_bytes"] == 40 * MB
    # An idle table has nothing to read; with a change, all log after the committed position waits.
    assert gauges(store, "paused") == {"slot_limit_bytes": 40 * MB, "lag_bytes": 0, "lag_seconds": 0}
    server.execute("INSERT INTO orders VALUES ('a')")
    found = gauges(store, "paused")
    assert found["lag_bytes"] > 20 * MB
    assert 0 < found["lag_seconds"] < 60
    page = UiThread(store, tmp_path, 0)
    try:
        text = Browser(page.address).get(f"/tunnel?id={paused.id}").text
    finally:
        page.stop()
    assert re.search(
        r"Log of the server for slot headrace_\w+, \w+: read, and kept .*, not read 2\d.* MiB, "
        r"free up to the limit 1\d.*Positions: restart_lsn \w+/\w+, .*current_lsn \w+/\w+, max_slot_bytes 40 MiB",
        unescape(text),
    )
    assert main(["doctor", "-s", store.url]) in (0, 1)
    assert "max_slot_bytes = 40 MB" in " ".join(capsys.readouterr().out.split())
    write(other, 25)
    drain(reader)
    assert len(drain(paused)) == 1


def test_a_change_that_no_query_reads_is_reported_by_doctor_and_the_streams_page(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tunnel = store.create_tunnel("orders", "paused", "Stream")
    monkeypatch.setattr("headrace.ports.tunnels.WAITING_SECONDS", 0.0)
    waiting = "PostgreSQL: tunnel paused of orders"
    for inserted in (False, True):
        if inserted:
            server.execute("INSERT INTO orders VALUES ('a')")
        found = {each.name: each.found for each in store.diagnose()}
        page = UiThread(store, tmp_path, 0)
        try:
            text = Browser(page.address).get("/").text
        finally:
            page.stop()
        assert (waiting in found) is inserted
        assert (f"/tunnel?id={tunnel.id}" in text) is inserted
    assert re.search(r"oldest unread change is \d s old, and the server keeps \d+ MB of log: start", found[waiting])


def test_a_slot_that_is_to_be_dropped_at_its_limit_is_dropped_by_each_reader_and_the_reason_is_kept(
    store: Store, server: Server, other: Server
) -> None:
    server.execute("CREATE TABLE IF NOT EXISTS read (id int PRIMARY KEY)")
    reader = store.create_tunnel("read", "reader", "Stream")
    paused = store.create_tunnel("orders", "paused", "Stream", max_slot_bytes="20m", at_slot_limit="drop")
    server.execute("INSERT INTO orders VALUES ('a')")
    write(other, 15)
    drain(reader)
    assert paused.read("stream", paused.channels()[0].committed, 10).changes.num_rows == 1
    write(other, 15)
    drain(reader)
    found = server.execute("SELECT slot_name FROM pg_replication_slots").fetchall()
    assert found == [(f"headrace_{reader.id}",)]
    with pytest.raises(DataLossError, match=r"slot of tunnel 'paused' was dropped on .*max_slot_bytes is 20 MB"):
        drain(paused)
    described = paused.describe()
    (warning,) = described.warnings
    assert warning.endswith("max_slot_bytes is 20 MB: create a new tunnel")
    assert described.details["at_slot_limit"] == "drop"
    drain(reader)
    store.drop_tunnel("paused")


def test_a_slot_whose_drop_at_its_limit_was_interrupted_is_not_said_to_be_dropped(
    store: Store, server: Server, other: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.execute("CREATE TABLE IF NOT EXISTS read (id int PRIMARY KEY)")
    reader = store.create_tunnel("read", "reader", "Stream")
    paused = store.create_tunnel("orders", "paused", "Stream", max_slot_bytes="20m", at_slot_limit="drop")

    def in_use(*_: object) -> None:
        raise StoreBusyError("another process reads the slot")

    with monkeypatch.context() as busy:
        busy.setattr(tunnel_slots, "drop_slot", in_use)
        write(other, 30)
        drain(reader)
    (warning,) = paused.describe().warnings
    assert "max_slot_bytes = 20 MB" in warning
    assert "was dropped" not in warning
    write(other, 10)
    drain(reader)
    with pytest.raises(DataLossError, match=r"slot of tunnel 'paused' was dropped on .*kept [4-9]\d MB"):
        drain(paused)


def test_a_slot_that_others_drop_after_an_interrupted_drop_is_not_said_to_be_dropped_at_its_limit(
    store: Store, server: Server, other: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.execute("CREATE TABLE IF NOT EXISTS read (id int PRIMARY KEY)")
    reader = store.create_tunnel("read", "reader", "Stream")
    paused = store.create_tunnel("orders", "paused", "Stream", max_slot_bytes="20m", at_slot_limit="drop")

    def killed(*_: object) -> None:
        raise StoreBusyError("the process is killed here")

    with monkeypatch.context() as killing:
        killing.setattr(tunnel_slots, "drop_slot", killed)
        write(other, 30)
        drain(reader)
    server.execute("SELECT pg_drop_replication_slot(%s)", (f"headrace_{paused.id}",))
    problem = r"slot of tunnel 'paused' does not exist; it was to be dropped on .*max_slot_bytes is 20 MB"
    with pytest.raises(DataLossError, match=problem):
        drain(paused)
    (warning,) = paused.describe().warnings
    assert re.search(problem, warning)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_slot_bytes": "many"}, "max_slot_bytes.*a size such as"),
        ({"max_slot_bytes": 0}, "max_slot_bytes"),
        ({"at_slot_limit": "drop"}, "needs a limit"),
        ({"max_slot_bytes": 5, "at_slot_limit": "stop"}, "valid: warn, drop"),
        ({"max_slot_bytes": 5, "at_slot_limit": "drop", "slot": "s", "publication": "p"}, "has not created"),
    ],
)
def test_limits_are_checked(store: Store, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        store.create_tunnel("orders", "limited", **options)
