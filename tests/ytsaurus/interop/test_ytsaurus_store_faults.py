"""The YTsaurus store with failing proxies, lost answers and moving tablets: no row is lost or duplicated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pyarrow as pa
import pytest

import headrace
from headrace.errors import HeadraceError, OffsetConflictError, OptionError, StoreBusyError, StoreError
from headrace.model.tables.changes import RowChange
from headrace.ports import Advance, Append, Publisher, Queue, Store, Write
from headrace.testing.queue_reading import consumer_of, data_in, values
from headrace.testing.reading import rows_of
from headrace_ytsaurus.store import connection
from headrace_ytsaurus.store.publication import planned_writes
from headrace_ytsaurus.store.tables import writing
from tests.interop.faulty_proxy import CUT_ANSWER, LOSE_ANSWER, LOSE_REQUEST, FaultyProxy, error, faulty_proxy
from tests.ytsaurus.interop.ytsaurus_server import TOKEN, YtServer

PATIENCE = 2


@pytest.fixture
def proxy(yt_server: YtServer) -> Iterator[FaultyProxy]:
    with faulty_proxy(yt_server.url) as running:
        yield running


@pytest.fixture
def store(proxy: FaultyProxy, home: str) -> Store:
    """A store behind the proxy, with two queues, a table and a consumer."""
    store = headrace.open(f"yt+http://{proxy.address}{home}", token=TOKEN, retry_seconds=PATIENCE)
    store.create_queue("out", {"data": "string"})
    store.create_queue("in", {"data": "string"}).append(values(*map(str, range(10))))
    store.create_table("table", {"id": "string", "n": "long"}, "id")
    consumer_of(store, "reader", "in")
    return store


@pytest.fixture
def publisher(store: Store) -> Publisher:
    publisher = store.publisher("job")
    assert publisher.publish(0, [])
    return publisher


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows)


def staged(publisher: Publisher, batch: int, *data: str) -> list[Write | Append]:
    """Stage rows for the queue and the table."""
    keyed = batch_of([{"id": value} for value in data])
    return [
        Append("out", tuple(publisher.stage_append(batch, "out", [batch_of(values(*data))]))),
        Write("table", RowChange.PUT, tuple(publisher.stage(batch, [keyed], table="table", change=RowChange.PUT))),
    ]


def seen(store: Store) -> tuple[list[Any], list[Any], dict[int, int]]:
    keys = [row["id"] for row in rows_of(store.table("table"))]
    return data_in(store.queue("out")), keys, store.consumer("reader").offsets("in")


# -- publications -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fate",
    [
        LOSE_ANSWER,
        LOSE_REQUEST,
        error(1700, "Transaction lock conflict"),
        error(1702, "Tablet is not mounted"),
        error(11000, "No such transaction"),
        (503, {"code": 105, "message": "Proxy is not available"}),
    ],
    ids=["lost answer", "lost request", "conflict", "unmounted", "expired", "unavailable"],
)
def test_a_failed_commit_is_published_once(store: Store, proxy: FaultyProxy, publisher: Publisher, fate: Any) -> None:
    writes = staged(publisher, 1, "a", "b")
    proxy.times("commit_transaction", fate)
    assert publisher.publish(1, writes, advances=[Advance("reader", "in", {0: 4}, {0: 0})])
    assert publisher.published(1)
    assert seen(store) == (["a", "b"], ["a", "b"], {0: 4})


def test_a_commit_without_an_answer_is_looked_up(store: Store, proxy: FaultyProxy, publisher: Publisher) -> None:
    writes = staged(publisher, 1, "a")
    # The commit succeeds; a repeated commit gets the error that there is no such transaction.
    answers = iter([LOSE_ANSWER])
    proxy.fault = lambda command: (
        next(answers, error(11000, "No such transaction")) if command == "commit_transaction" else "forward"
    )
    assert publisher.publish(1, writes)
    assert seen(store)[:2] == (["a"], ["a"])
    proxy.fault = lambda command: "forward"
    assert not publisher.publish(1, writes)


def test_a_publication_that_fails_for_good_changes_nothing_and_can_be_repeated(
    store: Store, proxy: FaultyProxy, publisher: Publisher
) -> None:
    writes = staged(publisher, 1, "a")
    proxy.times("commit_transaction", error(1702, "Tablet is not mounted"), 1000)
    with pytest.raises(StoreError, match="yt mount-table"):
        publisher.publish(1, writes, advances=[Advance("reader", "in", {0: 4}, {0: 0})])
    proxy.fault = lambda command: "forward"
    assert seen(store) == ([], [], {0: 0})
    assert publisher.publish(1, writes, advances=[Advance("reader", "in", {0: 4}, {0: 0})])
    assert seen(store) == (["a"], ["a"], {0: 4})


def test_staging_survives_proxy_restarts(store: Store, proxy: FaultyProxy, publisher: Publisher) -> None:
    proxy.times("write_file", (503, {"code": 105, "message": "Proxy is not available"}))
    writes = staged(publisher, 1, "a")
    assert publisher.publish(1, writes)
    assert seen(store)[0] == ["a"]


# -- batches in parts -----------------------------------------------------------------------------------------


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the maximum of rows in a transaction below ten."""
    for module in (planned_writes, writing):
        monkeypatch.setattr(module, "ROWS_PER_TABLET", 10)
    monkeypatch.setattr(planned_writes, "ROWS_PER_REQUEST", 4)


MANY = tuple(f"{number:02}" for number in range(25))
MOVED = [Advance("reader", "in", {0: 4}, {0: 0})]


def killed_after(calls: int) -> Callable[[str], Any]:
    """Simulate a killed driver: after a number of writing requests, no request arrives."""
    left = [calls]

    def fault(command: str) -> Any:
        if command in ("push_queue_producer", "insert_rows", "commit_transaction"):
            left[0] -= 1
        return "forward" if left[0] >= 0 else error(500_000, "killed here")

    return fault


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("calls", [0, 3, 8])
def test_an_interrupted_batch_in_parts_is_completed_from_its_files(
    store: Store, proxy: FaultyProxy, publisher: Publisher, calls: int
) -> None:
    writes = staged(publisher, 1, *MANY)
    proxy.fault = killed_after(calls)
    with pytest.raises(HeadraceError):
        publisher.publish(1, writes, advances=MOVED, content="x")
    proxy.fault = lambda command: "forward"
    # Spark's behaviour after a failed batch: the staged rows are discarded, and the batch runs again.
    publisher.discard(1, [receipt for write in writes for receipt in write.staged])
    again = store.publisher("job")
    assert again.publish(1, staged(again, 1, *MANY), advances=MOVED, content="x")
    assert seen(store) == (list(MANY), list(MANY), {0: 4})
    assert not again.publish(1, [], content="x")
    assert again.publish(2, staged(again, 2, "last"))
    assert seen(store) == ([*MANY, "last"], [*MANY, "last"], {0: 4})


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("calls", [0, 8])
def test_resume_completes_a_batch_of_which_a_part_can_be_visible(
    store: Store, proxy: FaultyProxy, publisher: Publisher, calls: int
) -> None:
    writes = staged(publisher, 1, *MANY)
    proxy.fault = killed_after(calls)
    with pytest.raises(HeadraceError):
        publisher.publish(1, writes, advances=MOVED, content="x")
    proxy.fault = lambda command: "forward"
    again = store.publisher("job")
    assert again.resume(1) == bool(calls)
    assert seen(store) == ((list(MANY), list(MANY), {0: 4}) if calls else ([], [], {0: 0}))
    assert again.publish(1, staged(again, 1, *MANY), advances=MOVED, content="x") != bool(calls)
    assert again.resume(1)
    assert seen(store) == (list(MANY), list(MANY), {0: 4})


@pytest.mark.usefixtures("in_parts")
def test_lost_answers_do_not_repeat_a_part(store: Store, proxy: FaultyProxy, publisher: Publisher) -> None:
    writes = staged(publisher, 1, *MANY)
    asked: dict[str, int] = {}

    def every_second(command: str) -> str:
        asked[command] = asked.get(command, 0) + 1
        lossy = command in ("push_queue_producer", "commit_transaction") and asked[command] % 2
        return LOSE_ANSWER if lossy else "forward"

    proxy.fault = every_second
    assert publisher.publish(1, writes, advances=MOVED)
    assert seen(store) == (list(MANY), list(MANY), {0: 4})


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("call", [1, 5, 8, 9, 10])
def test_an_overtaken_driver_writes_no_old_rows(
    store: Store, proxy: FaultyProxy, publisher: Publisher, yt_server: YtServer, home: str, call: int
) -> None:
    def rows(number: int) -> pa.RecordBatch:
        return batch_of([{"id": value, "n": number} for value in MANY])

    writes: list[Write | Append] = [
        Append("out", tuple(publisher.stage_append(1, "out", [batch_of(values(*MANY))]))),
        Write("table", RowChange.PUT, tuple(publisher.stage(1, [rows(1)], table="table", change=RowChange.PUT))),
    ]
    asked = {"commit_transaction": 0, "push_queue_producer": 0}
    other = headrace.open(f"yt+{yt_server.url}{home}", token=TOKEN).publisher("job")

    def fault(command: str) -> str:
        # The intent is committed first. The other driver finishes it, and publishes the next batch, before this call.
        if command in asked:
            asked[command] += 1
            if sum(asked.values()) == call + 1:
                newer = tuple(other.stage(2, [rows(2)], table="table", change=RowChange.PUT))
                assert other.publish(2, [Write("table", RowChange.PUT, newer)], content="two")
        return "forward"

    proxy.fault = fault
    with contextlib.suppress(HeadraceError):
        publisher.publish(1, writes, advances=MOVED, content="one")
    assert sum(asked.values()) > call
    assert other.published(2)
    assert {row["n"] for row in rows_of(store.table("table"))} == {2}
    assert (data_in(store.queue("out")), store.consumer("reader").offsets("in")) == (list(MANY), {0: 4})


def test_another_driver_has_published_this_batch_and_the_next(
    store: Store, proxy: FaultyProxy, publisher: Publisher, yt_server: YtServer, home: str
) -> None:
    """The staged rows disappear after the marker was read, before they are."""
    other = headrace.open(f"yt+{yt_server.url}{home}", token=TOKEN).publisher("job")
    writes = staged(publisher, 1, "a")

    def fault(command: str) -> str:
        if command == "list" and not other.published(2):
            assert other.publish(1, staged(other, 1, "a"))
            assert other.publish(2, staged(other, 2, "b"))
        return "forward"

    proxy.fault = fault
    assert not publisher.publish(1, writes)
    assert other.published(2)
    assert seen(store) == (["a", "b"], ["a", "b"], {0: 0})


@pytest.mark.usefixtures("in_parts")
def test_a_conflict_is_found_before_a_part_is_written(store: Store, publisher: Publisher) -> None:
    store.consumer("reader").advance("in", {0: 2})
    writes = staged(publisher, 1, *MANY)
    with pytest.raises(OffsetConflictError):
        publisher.publish(1, writes, advances=MOVED)
    assert seen(store) == ([], [], {0: 2})
    assert publisher.publish(1, writes, advances=[Advance("reader", "in", {0: 4}, {0: 2})])


@pytest.mark.usefixtures("in_parts")
def test_a_stale_batch_is_refused_before_anything_is_written(store: Store, publisher: Publisher) -> None:
    assert publisher.publish(5, staged(publisher, 5, *MANY), content="five")
    before = seen(store)
    with pytest.raises(HeadraceError, match="checkpoint is older than the store"):
        publisher.publish(4, staged(publisher, 4, "stale"), content="four")
    assert seen(store) == before


# -- other calls ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "fate"),
    [
        ("insert_rows", LOSE_ANSWER),
        ("insert_rows", error(1702, "Tablet is not mounted")),
        ("select_rows", error(2100, "Proxy is banned")),
        ("lookup_rows", LOSE_REQUEST),
    ],
)
def test_calls_on_tables_are_retried(store: Store, proxy: FaultyProxy, command: str, fate: Any) -> None:
    table = store.table("table")
    proxy.times(command, fate)
    table.put([{"id": "a"}, {"id": "b"}])
    assert rows_of(table, ["id"]) == [{"id": "a"}, {"id": "b"}]
    assert table.get({"id": "b"}) == {"id": "b", "n": None}
    assert proxy.commands.count(command) >= 2


def test_a_table_that_stays_unmounted_is_an_error_that_names_the_remedy(store: Store, proxy: FaultyProxy) -> None:
    proxy.times("insert_rows", error(1702, "Tablet 1-2-3-4 is not mounted"), 1000)
    with pytest.raises(StoreError, match=r"//tmp/.*Tablet 1-2-3-4 is not mounted.*yt mount-table"):
        store.table("table").put({"id": "a"})


def test_an_append_with_an_unanswered_commit_is_not_retried(store: Store, proxy: FaultyProxy) -> None:
    queue = store.queue("out")
    proxy.times("commit_transaction", LOSE_ANSWER, 1000)
    with pytest.raises(StoreBusyError):
        queue.append(values("a"))
    proxy.fault = lambda command: "forward"
    # The rows arrived exactly once.
    assert data_in(queue) == ["a"]


@pytest.mark.parametrize(
    "fate", [LOSE_ANSWER, CUT_ANSWER, error(1702, "Tablet is not mounted")], ids=lambda fate: fate[0]
)
def test_reads_of_queue_pages_are_retried(store: Store, proxy: FaultyProxy, fate: Any) -> None:
    queue: Queue = store.queue("in")
    proxy.times("pull_queue", fate, 2)
    assert data_in(queue, page_rows=3) == [str(number) for number in range(10)]


def test_calls_wait_for_moving_tablets(store: Store, proxy: FaultyProxy) -> None:
    queue = store.queue("in")
    proxy.times("get_tablet_infos", error(1702, "Tablet is not mounted"))
    assert queue.bounds()[0].upper == 10
    proxy.times("commit_transaction", error(1702, "Tablet is not mounted"))
    queue.append(values("once"))
    assert data_in(queue)[10:] == ["once"]


def test_a_transaction_is_restarted_at_another_proxy(yt_server: YtServer, home: str) -> None:
    with faulty_proxy(yt_server.url) as proxy, faulty_proxy(yt_server.url) as going:
        proxy.hosts = [going.address]
        store = headrace.open(f"yt+http://{proxy.address}{home}", token=TOKEN, retry_seconds=4)
        queue = store.create_queue("q", {"data": "string"})
        queue.append(values("before"))
        assert "commit_transaction" in going.commands
        going.fault = lambda command: LOSE_REQUEST
        proxy.hosts = []
        queue.append(values("after"))
        assert data_in(queue) == ["before", "after"]


@pytest.mark.parametrize(
    "fates",
    [
        [error(1700, "Transaction lock conflict")],
        [error(1702, "Tablet is not mounted")],
        [error(1744, "Row is blocked")],
        # It was committed; a repeated commit gets the error that there is no such transaction.
        [LOSE_ANSWER, error(11000, "No such transaction")],
    ],
    ids=["conflict", "unmounted", "blocked", "lost answer"],
)
def test_an_advance_without_an_answer_is_retried(store: Store, proxy: FaultyProxy, fates: list[Any]) -> None:
    consumer = store.consumer("reader")
    left = iter(fates)
    proxy.fault = lambda command: next(left, "forward") if command == "commit_transaction" else "forward"
    consumer.advance("in", {0: 3}, {0: 0})
    assert consumer.offsets("in") == {0: 3}
    assert next(left, None) is None


def test_an_unreachable_proxy_is_an_error_without_the_token() -> None:
    store = headrace.open("yt+http://127.0.0.1:9//x", token=TOKEN, retry_seconds=0)
    with pytest.raises(StoreBusyError) as caught:
        store.tables()
    assert "127.0.0.1" in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_options_can_be_texts_as_on_the_command_line() -> None:
    url = "yt+http://127.0.0.1:9//x"
    with pytest.raises(StoreBusyError):
        headrace.open(url, token=TOKEN, retry_seconds="0", binary_strings="True").tables()
    with pytest.raises(OptionError, match="option retry_seconds cannot be read; received: 'soon'"):
        headrace.open(url, token=TOKEN, retry_seconds="soon")
    with pytest.raises(OptionError, match="option binary_strings must be True or False; received: 'perhaps'"):
        headrace.open(url, token=TOKEN, binary_strings="perhaps")


def test_a_wrong_token_is_an_option_to_set(yt_server: YtServer) -> None:
    store = headrace.open(f"yt+{yt_server.url}//x", token="wrong-token", retry_seconds=0)
    with pytest.raises(OptionError, match="YT_TOKEN") as caught:
        store.tables()
    assert "wrong-token" not in str(caught.value)


# -- connections ---------------------------------------------------------------------------------------------


def test_a_thread_keeps_connections_to_the_addresses_that_it_used_last(yt_server: YtServer, home: str) -> None:
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(faulty_proxy(yt_server.url)) for _ in range(connection._MOST_ADDRESSES + 3)]
        for proxy in proxies:
            headrace.open(f"yt+http://{proxy.address}{home}", token=TOKEN, retry_seconds=PATIENCE).tables()
        ports = [int(proxy.address.rpartition(":")[2]) for proxy in proxies]
        connected = {each.raddr.port for each in psutil.Process().net_connections("tcp") if each.raddr}
        assert [port for port in ports if port in connected] == ports[3:]
