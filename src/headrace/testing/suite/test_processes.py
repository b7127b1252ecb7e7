"""Many threads and processes on one store, some of which are killed."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.model.tables.changes import ChangeOp
from headrace.ports import Store, Table
from headrace.testing import Place, workers
from headrace.testing.capabilities import traits
from headrace.testing.processes import CONTEXT, DEADLINE, racing
from headrace.testing.reading import drain, replay, rows_of, state_of

pytestmark = pytest.mark.needs("tunnels")


def test_threads_can_share_a_handle(place: Place, store: Store, orders: Table) -> None:
    count = place.commits(60)
    tunnel = store.create_tunnel("orders", "changes", "Stream")

    def put_rows(writer: int) -> list[int]:
        return [orders.put({"id": f"{writer}-{number}", "price": len(rows_of(orders))}) for number in range(count)]

    with ThreadPoolExecutor(4) as pool:
        versions = [version for found in pool.map(put_rows, range(4)) for version in found]
    assert len(set(versions)) == 4 * count or not traits(store).returns_versions
    assert replay(drain(tunnel)) == state_of(orders)
    assert len(state_of(orders)) == 4 * count


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.needs("forks")
def test_a_forked_process_can_use_its_parents_handles(store: Store, orders: Table) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    orders.put({"id": "parent"})
    child = os.fork()
    if child == 0:
        # The child always exits, so that no part of the test runs twice.
        try:
            orders.put({"id": "child"})
            seen = {row["id"] for row in rows_of(orders)}
            os._exit(0 if drain(tunnel) and seen >= {"child", "parent"} else 1)
        finally:
            os._exit(2)
    try:
        orders.put({"id": "parent again"})
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    except BaseException:
        # It has the pipes of this process, which end processes of Spark when they are closed.
        os.kill(child, signal.SIGKILL)
        raise
    assert [row["id"] for row in rows_of(orders)] == ["child", "parent", "parent again"]
    orders.put({"id": "last"})
    assert [change.key for change in drain(tunnel)][-1] == ("last",)


@pytest.mark.needs("transactions")
def test_processes_write_read_and_publish_at_once(place: Place, store: Store, orders: Table) -> None:
    store.create_tunnel("orders", "changes", "Stream")
    with racing(7) as pool:
        follower = pool.submit(workers.follow, place)
        writers = [pool.submit(workers.put_rows, place, number) for number in range(2)]
        writers += [pool.submit(workers.change_rows, place, number) for number in range(2)]
        publishers = [pool.submit(workers.publish_batches, place) for _ in range(2)]
        versions = [version for writer in writers for version in writer.result()]
        published = [batch for publisher in publishers for batch in publisher.result()]
        orders.put({"id": workers.LAST_KEY})
        changes = follower.result()
    assert len(set(versions)) == len(versions) or not traits(store).returns_versions
    batches, commits = place.commits(workers.BATCHES), place.commits(workers.COMMITS)
    assert sorted(published) == list(range(batches))
    assert replay(changes, whole_rows=True) == state_of(orders)
    assert [change.version for change in changes] == sorted(change.version for change in changes)
    counts = Counter(change.key[0].partition("-")[0].partition(" ")[0] for change in changes)
    written = commits * workers.ROWS
    assert (counts["0"], counts["1"]) == (written, written)
    assert counts["published"] == batches * workers.ROWS
    if traits(store).logs_calls:
        updates = [change for change in changes if change.op in (ChangeOp.UPDATE, ChangeOp.UPSERT)]
        assert len(updates) == 2 * commits * 3


@pytest.mark.needs("transactions")
def test_a_killed_writer_leaves_complete_transactions_and_a_usable_store(place: Place, store: Store) -> None:
    columns = {"id": "string", "price": "long", "note": "string"}
    tables = {name: store.create_table(name, columns, "id") for name in ("orders", "left", "right")}
    tunnels = {name: store.create_tunnel(name, "changes", "Stream") for name in tables}
    seen: dict[str, dict[tuple[str, ...], dict[str, object]]] = {name: {} for name in tables}
    for life in range(3):
        process = CONTEXT.Process(target=workers.write_until_killed, args=(place, life))
        process.start()
        try:
            wait_for_row(store, tables["right"], f"{life}-{place.commits(10 + 7 * life)}-0")
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        finally:
            process.kill()
            process.join()
        if store.capabilities.atomic_targets is not None:
            # A table could have the last batch before the other one. The next driver completes it.
            store.publisher(f"job {life}").resume(0)
        for name, table in tables.items():
            counts = Counter(row["note"] for row in rows_of(table, ["note"]))
            assert set(counts.values()) == {workers.ROWS}
            seen[name] = replay(drain(tunnels[name]), seen[name])
            assert seen[name] == state_of(table)
        assert state_of(tables["left"]) == state_of(tables["right"])
        assert len(state_of(tables["orders"])) - len(state_of(tables["left"])) <= (life + 1) * workers.ROWS
    tables["orders"].put({"id": "alive", "note": "alive"})
    assert tables["orders"].get({"id": "alive"}, ["note"]) == {"note": "alive"}


def wait_for_row(store: Store, table: Table, key: str) -> None:
    """Wait until a row exists."""
    deadline = time.monotonic() + DEADLINE
    while table.get({"id": key}) is None:
        assert time.monotonic() < deadline
        store.wait_for_change(1.0)
