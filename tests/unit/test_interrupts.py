"""Ctrl-C and other signals at any moment: no lock and no transaction stays behind, so other writers go on at once."""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import apsw
import pyarrow as pa
import pytest

import headrace
from headrace.errors import StoreError
from headrace.model.findings import Status
from headrace.model.tables.changes import RowChange
from headrace.ports import Store, Write
from headrace.stores.embedded.connection import Database
from headrace.stores.embedded.store import EmbeddedStore
from headrace.streaming_sql.workspace import Workspace
from headrace.support.sqlite import forks, interrupts
from headrace.testing.effort import THOROUGH, thorough
from headrace.testing.processes import CONTEXT
from tests.interrupting import interrupted_in

# Python drops an exception, also that of a signal, in the end of an object.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

# A thread or process that waits this long for a writer that no longer writes waits for ever.
PATIENCE = 20.0
SOURCE = str(Path(headrace.__file__).parent)
# The code that is interrupted, beside that of the standard library which it calls.
INTERRUPTED = ("sqlite/", "stores/embedded/", "streaming_sql/workspace.py")


def _write_on_request(directory: Path, requests: Any, answers: Any) -> None:
    with headrace.open(directory, synchronous="off") as store:
        for number in iter(requests.get, None):
            store.table("orders").put([{"id": number, "note": "process"}])
            answers.put(number)


class Others:
    """Another thread and another process, which write to a store."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self._number = 1_000_000
        self._pool = ThreadPoolExecutor(1)
        self._requests, self._answers = CONTEXT.Queue(), CONTEXT.Queue()
        self._process = CONTEXT.Process(
            target=_write_on_request, args=(store.database.directory, self._requests, self._answers)
        )
        self._process.start()

    def write(self) -> None:
        """Let both write, and fail if they wait."""
        self._number += 1
        self._requests.put(self._number)
        assert self._answers.get(timeout=PATIENCE) == self._number
        rows = [{"id": -self._number, "note": "thread"}]
        self._pool.submit(self._store.table("orders").put, rows).result(timeout=PATIENCE)

    def end(self) -> None:
        self._requests.put(None)
        self._process.join()
        self._pool.shutdown()
        for queue in (self._requests, self._answers):
            queue.close()


@pytest.fixture(autouse=True)
def handlers_of_python() -> Iterator[None]:
    """Python's own handler of Ctrl-C: an active session of Spark has another one."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as created:
        assert isinstance(created, EmbeddedStore)
        created.create_table("orders", {"id": "long", "note": "string"}, "id")
        created.create_queue("clicks", {"n": "long"})
        yield created


@pytest.fixture
def others(store: EmbeddedStore) -> Iterator[Others]:
    made = Others(store)
    yield made
    made.end()


def put(store: Store, workspace: Workspace) -> None:
    store.table("orders").put([{"id": 1, "note": "one"}, {"id": 2, "note": "two"}])


def append(store: Store, workspace: Workspace) -> None:
    store.queue("clicks").append([{"n": 1}], partition=0)


def get(store: Store, workspace: Workspace) -> None:
    store.table("orders").get({"id": 1})


def scan(store: Store, workspace: Workspace) -> None:
    store.table("orders").scan().read_all()


def publish(store: Store, workspace: Workspace) -> None:
    publisher = store.publisher("job")
    batch = 1 + int(store.queue("clicks").bounds()[0].upper)
    rows = pa.RecordBatch.from_pydict({"id": [batch], "note": ["published"]})
    publisher.publish(batch, [Write("orders", RowChange.PUT, tuple(publisher.stage(batch, [rows])))])


def open_and_put(store: Store, workspace: Workspace) -> None:
    with headrace.open(store.url, synchronous="off") as opened:
        opened.table("orders").put([{"id": 1, "note": "one"}])


def write_workspace(store: Store, workspace: Workspace) -> None:
    with workspace.write() as connection:
        connection.execute("INSERT OR REPLACE INTO definition VALUES ('a', 'b')")
    workspace.query("SELECT * FROM definition")


Place = tuple[CodeType, int, str]


def places_of(action: Callable[[], None]) -> list[tuple[Place, int]]:
    """Return the places at which an action could be interrupted, with the number of times that it passes them."""
    counts: dict[Place, int] = {}

    def count(place: Place) -> None:
        counts[place] = counts.get(place, 0) + 1

    _watch(action, count)
    return list(counts.items())


def interrupt(action: Callable[[], None], place: Place, time: int) -> None:
    """Run an action, with a signal when it passes a place for the given time."""
    left = time

    def send(at: Place) -> None:
        nonlocal left
        left -= at == place
        if at == place and not left:
            signal.raise_signal(signal.SIGINT)

    _watch(action, send)


def _watch(action: Callable[[], None], each: Callable[[Place], None]) -> None:
    """Call a function where Python looks for signals: at the begin of a function, and after each call of one in C."""

    def profile(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event in ("call", "c_return") and (
            (name.startswith(SOURCE) and name[len(SOURCE) + 1 :].startswith(INTERRUPTED))
            or name.endswith(("/contextlib.py", "/threading.py"))
        ):
            each((frame.f_code, frame.f_lasti, event))

    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(previous)


@pytest.mark.parametrize("run", [put, append, get, scan, publish, open_and_put, write_workspace])
def test_a_signal_at_any_place_leaves_nothing_behind(
    store: EmbeddedStore,
    others: Others,
    tmp_path: Path,
    run: Callable[[Store, Workspace], None],
) -> None:
    workspace = Workspace(tmp_path / "workspace")

    def action() -> None:
        run(store, workspace)

    action()
    found = places_of(action)
    assert len(found) > 15
    kept: list[BaseException] = []
    places = [(place, time) for place, count in found for time in sorted({1, count} if THOROUGH else {count})]
    for place, time in places:
        where = f"{place[0].co_filename}, {place[0].co_qualname}+{place[1]}, {place[2]}, {time}"
        try:
            interrupt(action, place, time)
        except KeyboardInterrupt as error:
            # As a notebook keeps the traceback, with all its frames.
            kept.append(error)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, where
        assert not forks.no_fork._depths, where
        others.write()
        action()
        with Workspace(tmp_path / "workspace").write():
            pass
    assert len(kept) > len(places) * 0.9
    # Their frames have handles of the store, and this frame.
    kept.clear()
    # The rows that an interrupted publication has staged are left for its next attempt.
    assert {finding.status for finding in store.check()} <= {Status.OK, Status.WARN}
    workspace.close()


def test_signals_at_random_moments_stop_no_writer(store: EmbeddedStore, others: Others) -> None:
    class Alarm(Exception):
        """What a time-out raises."""

    def ring(number: int, frame: object) -> None:
        raise Alarm

    orders, clicks = store.table("orders"), store.queue("clicks")
    moments = random.Random(1)
    ctrl_c = signal.getsignal(signal.SIGINT)
    previous = signal.signal(signal.SIGALRM, ring)
    kept: list[Alarm] = []
    acknowledged = 0
    try:
        while len(kept) < thorough(600):
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.0001, 0.004))
                for _ in range(20):
                    clicks.append([{"n": 1}], partition=0)
                    acknowledged += 1
                    orders.put([{"id": 1, "note": "one"}])
                    orders.get({"id": 1})
            except Alarm as error:
                kept.append(error)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            others.write()
            assert signal.getsignal(signal.SIGALRM) is ring
            assert signal.getsignal(signal.SIGINT) is ctrl_c
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert not forks.no_fork._depths
    # An append that was interrupted after its commit is not acknowledged.
    assert acknowledged <= clicks.bounds()[0].upper <= acknowledged + len(kept)


def test_ctrl_c_ends_the_wait_for_another_process_and_another_thread(store: EmbeddedStore) -> None:
    ready, go = CONTEXT.Event(), CONTEXT.Event()
    process = CONTEXT.Process(target=_hold, args=(store.database.directory, ready, go))
    process.start()
    assert ready.wait(PATIENCE)
    _interrupt_a_write(store, "_wait_for")
    go.set()
    process.join()
    with ThreadPoolExecutor(1) as pool:
        held, end = threading.Event(), threading.Event()

        def hold() -> None:
            with store.database.write():
                held.set()
                end.wait(PATIENCE)

        holding = pool.submit(hold)
        assert held.wait(PATIENCE)
        _interrupt_a_write(store, "acquire")
        end.set()
        holding.result()
    store.table("orders").put([{"id": 1, "note": "one"}])


def _hold(directory: Path, ready: Any, go: Any) -> None:
    with Database(directory, synchronous="off").write():
        ready.set()
        go.wait(PATIENCE)


def _interrupt_a_write(store: Store, function: str) -> None:
    """Send Ctrl-C to a write that waits in a function."""
    with pytest.raises(KeyboardInterrupt), interrupted_in(function):
        store.table("orders").put([{"id": 1, "note": "one"}])


def test_a_long_write_can_be_interrupted_and_is_rolled_back(store: EmbeddedStore) -> None:
    with pytest.raises(KeyboardInterrupt), store.database.write() as connection:  # noqa: PT012
        connection.execute("UPDATE clock SET version = 77")
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not interrupted")
    assert store.database.query("SELECT version = 77 FROM clock") == [(0,)]


def test_a_cursor_that_an_exception_keeps_stops_no_later_write(store: EmbeddedStore) -> None:
    orders = store.table("orders")
    orders.put([{"id": number, "note": "n"} for number in range(1000)])
    kept: list[apsw.Cursor] = []

    def fail() -> None:
        with store.database.write() as connection:
            kept.append(connection.execute("SELECT * FROM t1"))
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(orders.put, [{"id": 5000, "note": "thread"}]).result()
    # From the state of the cursor, SQLite would refuse to begin a write.
    orders.put([{"id": 5001, "note": "this one"}])
    assert orders.get({"id": 5001}) is not None


def test_the_handler_of_a_signal_is_the_users_again_after_each_transaction(store: EmbeddedStore) -> None:
    seen: list[int] = []

    def handle(number: int, frame: object) -> None:
        seen.append(number)

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        with store.database.write():
            signal.raise_signal(signal.SIGTERM)
            assert seen == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is handle
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        # A handler that is set during a transaction stays.
        with store.database.write():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert not interrupts._handlers


def test_an_error_at_the_begin_leaves_nothing_behind(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreError("at the begin")

    with monkeypatch.context() as patch:
        patch.setattr(store.database._connections, "of_this_thread", fail)
        with pytest.raises(StoreError, match="at the begin"):
            store.table("orders").put([{"id": 1, "note": "one"}])
    assert not forks.no_fork._depths
    with ThreadPoolExecutor(1) as pool:
        pool.submit(store.table("orders").put, [{"id": 1, "note": "one"}]).result(timeout=PATIENCE)
