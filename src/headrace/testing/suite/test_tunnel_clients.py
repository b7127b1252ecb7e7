"""Clients that share a tunnel: their channels, their saved positions, and workers that read to the end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from contextlib import ExitStack

import pytest

from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.errors import ClientGoneError, NotFoundError, SequenceNumberError, TunnelTakenError
from headrace.model.tables.changes import ChangeOp
from headrace.model.tunnels.leases import Lease, LeaseStatus, Saved
from headrace.model.tunnels.records import INITIAL_BATCH
from headrace.model.tunnels.values import FINISHED, Channel, ChannelState
from headrace.ports import Store, Table, Tunnel, TunnelClient
from headrace.testing import Place
from headrace.testing.queue_reading import wait_until
from headrace.testing.reading import Change, put, read_batch, state_of, unpack
from headrace.workers import ChangeBatch, TunnelWorker

pytestmark = pytest.mark.needs("tunnels")


DEADLINE = 60.0


@pytest.fixture
def tunnel(place: Place, store: Store, orders: Table) -> Tunnel:
    """A tunnel on a table of 40 rows in four partitions; in a store without partitions, in four base channels."""
    put(orders, *(f"{number:02}" for number in range(40)))
    for _ in range(3):
        place.split("orders")
    return store.create_tunnel("orders", "changes", base_channels=None if place.has_partitions else 4)


def open_channels(tunnel: Tunnel) -> list[Channel]:
    return [channel for channel in tunnel.channels() if channel.state is ChannelState.OPEN]


def in_status(leases: Iterable[Lease], status: LeaseStatus) -> set[str]:
    return {lease.channel for lease in leases if lease.status is status}


def closed(leases: Iterable[Lease]) -> list[Lease]:
    """Return the leases that a client reports after it has released the requested channels."""
    return [
        Lease(lease.channel, lease.version + 1, LeaseStatus.CLOSE) if lease.status is LeaseStatus.CLOSING else lease
        for lease in leases
    ]


def shared_by_two(tunnel: Tunnel) -> tuple[TunnelClient, list[Lease], TunnelClient, list[Lease]]:
    """Return two clients with half of the channels each, and their leases."""
    first, second = tunnel.connect(tag="first"), tunnel.connect(tag="second")
    leases = first.heartbeat([])
    second.heartbeat([])
    ours = first.heartbeat(closed(first.heartbeat(leases)))
    return first, ours, second, second.heartbeat([])


# -- assignment of channels -----------------------------------------------------------------------------


def test_one_client_gets_all_open_channels(tunnel: Tunnel) -> None:
    client = tunnel.connect()
    leases = client.heartbeat([])
    assert in_status(leases, LeaseStatus.OPEN) == {channel.id for channel in open_channels(tunnel)}
    assert len(leases) == 4
    assert client.heartbeat(leases) == leases


def test_a_second_client_gets_half_of_the_channels_after_their_release(tunnel: Tunnel) -> None:
    first, second = tunnel.connect(), tunnel.connect()
    leases = first.heartbeat([])
    assert second.heartbeat([]) == []
    asked = first.heartbeat(leases)
    assert len(in_status(asked, LeaseStatus.OPEN)) == len(in_status(asked, LeaseStatus.CLOSING)) == 2
    # Until the first client has answered, no other client has them.
    assert second.heartbeat([]) == []
    kept = first.heartbeat(closed(asked))
    given = second.heartbeat([])
    assert in_status(kept, LeaseStatus.OPEN) == in_status(asked, LeaseStatus.OPEN)
    assert in_status(given, LeaseStatus.OPEN) == in_status(asked, LeaseStatus.CLOSING)


def test_a_client_without_a_heartbeat_gets_no_channels(tunnel: Tunnel) -> None:
    client = tunnel.connect()
    tunnel.connect()
    assert len(client.heartbeat([])) == 4
    assert in_status(client.heartbeat([]), LeaseStatus.CLOSING) == set()


def test_the_channels_of_a_client_that_closes_go_to_the_others(tunnel: Tunnel) -> None:
    first, ours, second, theirs = shared_by_two(tunnel)
    first.close()
    first.close()
    assert len(second.heartbeat(theirs)) == len(ours) + len(theirs) == 4
    with pytest.raises(ClientGoneError):
        first.heartbeat(ours)
    with pytest.raises(ClientGoneError):
        first.save(ours[0].channel, FINISHED, 1)
    with pytest.raises(ClientGoneError):
        tunnel.client(first.id).heartbeat(ours)


def test_a_client_without_heartbeats_for_its_timeout_loses_its_channels(tunnel: Tunnel) -> None:
    silent, other = tunnel.connect(timeout=1.0), tunnel.connect()
    lost = silent.heartbeat([])
    assert len(lost) == 4
    wait_until(lambda: len(in_status(other.heartbeat([]), LeaseStatus.OPEN)) == 4)
    with pytest.raises(ClientGoneError):
        silent.heartbeat(lost)
    with pytest.raises(ClientGoneError):
        silent.save(lost[0].channel, FINISHED, 1)


def test_a_client_is_found_by_its_id_through_any_handle(place: Place, tunnel: Tunnel) -> None:
    client = tunnel.connect(timeout=100.0)
    leases = client.heartbeat([])
    with place.open() as elsewhere:
        found = elsewhere.tunnel(tunnel.id).client(client.id)
        assert found.id == client.id
        assert found.heartbeat(leases) == leases
    with pytest.raises(ClientGoneError):
        tunnel.client("nobody").heartbeat([])


def test_describe_names_the_client_of_each_channel(tunnel: Tunnel) -> None:
    first, _, second, _ = shared_by_two(tunnel)
    described = [found for found in tunnel.describe().channels if found.channel.state is ChannelState.OPEN]
    assert sorted(str(found.client) for found in described) == sorted([first.id, second.id] * 2)
    # Some services report only the client's id.
    assert {found.lease for found in described} <= {LeaseStatus.OPEN, None}
    assert {found.client for found in tunnel.describe().channels} == {first.id, second.id, None}


# -- progress -------------------------------------------------------------------------------------------


def test_a_client_continues_at_the_position_that_another_saved(tunnel: Tunnel) -> None:
    first, ours, second, _ = shared_by_two(tunnel)
    channel = ours[0].channel
    saved = first.saved(channel)
    page = tunnel.read(channel, saved.position, 3)
    first.save(channel, page.next, saved.sequence + 1)
    first.close()
    again = second.saved(channel)
    assert again.sequence == saved.sequence + 1
    key = tunnel.table.schema.primary_key
    first_rows = unpack(tunnel.read(channel, saved.position, 6).changes, key)
    assert unpack(tunnel.read(channel, again.position, 3).changes, key) == first_rows[page.changes.num_rows :][:3]


def test_a_save_needs_an_increasing_number(tunnel: Tunnel) -> None:
    client = tunnel.connect()
    channel = client.heartbeat([])[0].channel
    start = client.saved(channel)
    client.save(channel, start.position, start.sequence + 1)
    for number in (start.sequence, start.sequence + 1):
        with pytest.raises(SequenceNumberError):
            client.save(channel, FINISHED, number)
    assert client.saved(channel) == Saved(start.position, start.sequence + 1)


def test_saving_the_end_of_a_channel_opens_its_children(tunnel: Tunnel, orders: Table) -> None:
    put(orders, "later")
    client = tunnel.connect()
    leases = client.heartbeat([])
    base = [lease.channel for lease in leases]
    for channel in base:
        client.save(channel, FINISHED, client.saved(channel).sequence + 1)
    ended = [Lease(lease.channel, lease.version + 1, LeaseStatus.TERMINATED) for lease in leases]
    streams = client.heartbeat(ended)
    assert {lease.status for lease in streams} == {LeaseStatus.OPEN}
    assert not {lease.channel for lease in streams} & set(base)
    pages = [tunnel.read(lease.channel, client.saved(lease.channel).position, 10) for lease in streams]
    assert [key for page in pages for key in page.changes.rows.column("id").to_pylist()] == ["later"]


def test_a_commit_needs_no_number_and_a_save_does_not_undo_it(tunnel: Tunnel) -> None:
    client = tunnel.connect()
    channel = client.heartbeat([])[0].channel
    start = client.saved(channel)
    first = tunnel.read(channel, start.position, 3).next
    tunnel.commit({channel: tunnel.read(channel, first, 3).next})
    committed = client.saved(channel)
    assert committed.sequence == start.sequence
    client.save(channel, first, start.sequence + 1)
    assert client.saved(channel).position == committed.position


def test_clients_of_a_dropped_tunnel_get_an_error(store: Store, tunnel: Tunnel) -> None:
    client = tunnel.connect()
    channel = client.heartbeat([])[0].channel
    store.drop_tunnel(tunnel.id)
    with pytest.raises(NotFoundError):
        client.heartbeat([])
    with pytest.raises(NotFoundError):
        client.saved(channel)
    with pytest.raises(NotFoundError):
        tunnel.connect()
    client.close()


def test_a_query_and_clients_on_one_tunnel_lose_no_changes(tunnel: Tunnel, orders: Table) -> None:
    query = TunnelFeed(tunnel, limits=Limits(rows_per_channel=3))
    batch = query.latest(INITIAL_BATCH)
    found = read_batch(tunnel, query.plan(batch))
    client = tunnel.connect()
    channel = client.heartbeat([])[0].channel
    saved = client.saved(channel)
    page = tunnel.read(channel, saved.position, 5)
    found += unpack(page.changes, tunnel.table.schema.primary_key)
    client.save(channel, page.next, saved.sequence + 1)
    client.close()
    with contextlib.suppress(TunnelTakenError):
        found += read_batch(tunnel, query.plan(query.latest(batch)))
    put(orders, "later")
    found += changes_of(tunnel, tunnel.consume(idle="stop"))
    assert {change.key for change in found} == set(state_of(orders))


# -- workers --------------------------------------------------------------------------------------------


def changes_of(tunnel: Tunnel, batches: Iterable[ChangeBatch]) -> list[Change]:
    key = tunnel.table.schema.primary_key
    return [change for batch in batches for change in unpack(batch.changes, key)]


def test_a_worker_reads_everything_and_stops(tunnel: Tunnel, orders: Table) -> None:
    put(orders, "05", "new", price=7)
    orders.delete({"id": "06"})
    found = changes_of(tunnel, tunnel.consume("worker", batch_rows=3, idle="stop"))
    assert len(found) == 43
    assert {change.key for change in found} == {(f"{number:02}",) for number in range(40)} | {("new",)}
    assert [change.op for change in found if change.key == ("06",)] == [ChangeOp.BASE, ChangeOp.DELETE]
    assert tunnel.describe().backlog_rows == 0
    assert changes_of(tunnel, tunnel.consume("worker", idle="stop")) == []


def test_rows_of_a_batch_have_the_change_columns_of_the_format(tunnel: Tunnel) -> None:
    with tunnel.consume(idle="stop") as batches:
        rows = next(batches).to_arrow()
    assert rows.schema.names == [*tunnel.table.schema.names, "_change_type", "_commit_version", "_commit_timestamp"]
    assert set(rows.column("_change_type").to_pylist()) == {"insert"}


def test_only_unprocessed_changes_are_delivered_again(tunnel: Tunnel) -> None:
    with tunnel.consume(batch_rows=3) as batches:
        processed = [next(batches), next(batches), next(batches)]
        in_hand = processed.pop()
    with tunnel.consume(batch_rows=3) as batches:
        processed.append(next(batches))
        processed[-1].done()
        processed[-1].done()
    rest = {change.key for change in changes_of(tunnel, tunnel.consume(idle="stop"))}
    assert rest | {change.key for change in changes_of(tunnel, processed)} == {(f"{n:02}",) for n in range(40)}
    assert {change.key for change in changes_of(tunnel, [in_hand])} <= rest | {
        change.key for change in changes_of(tunnel, processed[-1:])
    }
    assert changes_of(tunnel, tunnel.consume(idle="stop")) == []


def test_a_worker_saves_its_progress_when_it_stops(place: Place, store: Store, orders: Table) -> None:
    """With all sizes of batches in relation to the pages of the store."""
    orders.put([{"id": f"{number:03}"} for number in range(300)])
    tunnel = store.create_tunnel("orders", "pages", "BaseData", base_channels=1)
    found: list[Change] = []
    for processed in (2, 1):
        with place.open().tunnel("pages").consume(batch_rows=40) as worker:
            batches = [next(worker) for _ in range(processed)]
            batches[-1].done()
        found += changes_of(tunnel, batches)
    found += changes_of(tunnel, tunnel.consume(batch_rows=40, idle="stop"))
    assert [change.key for change in found] == [(f"{number:03}",) for number in range(300)]


def test_workers_share_the_channels_and_miss_no_change_while_the_table_splits(
    place: Place, orders: Table, tunnel: Tunnel
) -> None:
    handed: list[Change] = []
    both_have_some = threading.Barrier(2)

    def work(batches: TunnelWorker) -> None:
        for number, batch in enumerate(batches):
            handed.extend(changes_of(tunnel, [batch]))
            if number == 0:
                both_have_some.wait(DEADLINE)

    with ExitStack() as stack:
        workers = [
            stack.enter_context(tunnel.consume(f"worker {number}", batch_rows=4, heartbeat_interval=0.1, timeout=10.0))
            for number in range(2)
        ]
        threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for price in range(1, 6):
            place.split("orders")
            put(orders, *(f"{number:02}" for number in range(40)), price=price)
        wait_until(lambda: len({(change.key, change.row["price"]) for change in handed}) == 40 * 6)
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(DEADLINE)
    in_order: dict[tuple[str, ...], list[int]] = {}
    for change in handed:
        in_order.setdefault(change.key, []).append(change.row["price"])
    assert all(list(dict.fromkeys(prices)) == list(range(6)) for prices in in_order.values())


def test_a_worker_continues_at_the_position_of_another(place: Place, store: Store, orders: Table) -> None:
    tunnel = store.create_tunnel("orders", "stream", "Stream")
    put(orders, "a", "b", "c", "d")
    place.split("orders")
    put(orders, "e")
    with tunnel.consume(batch_rows=2) as batches:
        before = changes_of(tunnel, [next(batches)])
        next(batches)
    after = changes_of(tunnel, tunnel.consume(batch_rows=2, idle="stop"))
    assert list(dict.fromkeys(change.key[0] for change in before + after)) == ["a", "b", "c", "d", "e"]
