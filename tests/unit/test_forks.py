"""Handles of an embedded store and of a workspace after a fork: they work, or their error gives the reason."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path

import psutil
import pytest

import headrace
from headrace.errors import StoreError
from headrace.stores.embedded import writer_lock
from headrace.stores.embedded.connection import Database
from headrace.stores.embedded.tables import reading
from headrace.streaming_sql.workspace import Workspace
from headrace.support.sqlite import forks
from tests.clocks import patch_time
from tests.descriptors import files_in

# Newer versions of Python warn about a fork in a process with threads, which these tests need.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def store(tmp_path: Path) -> headrace.Store:
    store = headrace.open(tmp_path / "store", create=True)
    store.create_table("rows", {"id": "long"}, "id")
    return store


def put(store: headrace.Store, number: int) -> None:
    store.table("rows").put({"id": number})


def numbers(store: headrace.Store) -> list[int]:
    return store.table("rows").scan().read_all()["id"].to_pylist()  # type: ignore[no-any-return]


class Child:
    """A forked process that runs a function."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                work()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)

    def ended_well(self) -> bool:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0


def expect_refusal(work: Callable[[], object]) -> None:
    """Run a function that must fail because this process was forked during a transaction."""
    with pytest.raises(StoreError, match=r"forked during a transaction of a store or workspace.*spawn"):
        work()


def elsewhere(store_path: Path, number: int) -> None:
    """Open a store, write and close it in a process that has inherited no handles."""
    program = (
        "import sys, headrace\n"
        "with headrace.open(sys.argv[1]) as store: store.table('rows').put({'id': int(sys.argv[2])})"
    )
    subprocess.run([sys.executable, "-c", program, store_path, str(number)], check=True)


def test_rows_of_a_child_are_kept_when_all_other_processes_close_the_store(
    store: headrace.Store, tmp_path: Path
) -> None:
    put(store, 1)
    closed, is_closed = os.pipe()

    def work() -> None:
        put(store, 2)
        os.read(closed, 1)
        for number in range(10, 15):
            put(store, number)

    child = Child(work)
    store.close()
    elsewhere(tmp_path / "store", 3)
    os.write(is_closed, b"!")
    assert child.ended_well()
    elsewhere(tmp_path / "store", 4)
    assert numbers(store) == [1, 2, 3, 4, *range(10, 15)]


def test_a_child_can_open_a_store_that_its_parent_has_open(store: headrace.Store, tmp_path: Path) -> None:
    put(store, 1)

    def work() -> None:
        with headrace.open(tmp_path / "store") as own:
            put(own, 2)
            assert Child(lambda: put(own, 3)).ended_well()
            assert numbers(own) == [1, 2, 3]

    assert Child(work).ended_well()
    assert numbers(store) == [1, 2, 3]


def test_a_fork_waits_for_the_transactions_of_other_threads(tmp_path: Path) -> None:
    database = Database(tmp_path / "store", create=True, synchronous="off")
    begun, done = threading.Event(), []

    def write() -> None:
        with database.write() as connection:
            begun.set()
            # Long enough for the call of fork to begin. The fork itself always follows the commit.
            connection.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 300000) SELECT sum(i) FROM n"
            )
            connection.execute("UPDATE clock SET version = version + 1")
        done.append(True)

    thread = threading.Thread(target=write)
    thread.start()
    begun.wait()

    def work() -> None:
        assert database.query("SELECT version FROM clock") == [(1,)]
        with database.write() as connection:
            connection.execute("UPDATE clock SET version = version + 1")

    child = Child(work)
    thread.join()
    assert done
    assert child.ended_well()
    assert database.query("SELECT version FROM clock") == [(2,)]


def test_a_child_forked_inside_a_transaction_cannot_use_stores(tmp_path: Path) -> None:
    database = Database(tmp_path / "store", create=True, synchronous="off")

    def work() -> None:
        expect_refusal(database.store_id)
        expect_refusal(lambda: headrace.open(tmp_path / "other", create=True))
        assert Child(lambda: expect_refusal(database.store_id)).ended_well()

    with database.write() as connection:
        connection.execute("UPDATE clock SET version = 7")
        assert Child(work).ended_well()
    assert database.query("SELECT version FROM clock") == [(7,)]


def test_a_fork_waits_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "PATIENCE_SECONDS", 0.1)
    database = Database(tmp_path / "store", create=True, synchronous="off")
    begun, forked = threading.Event(), threading.Event()

    def write() -> None:
        with database.write() as connection:
            begun.set()
            forked.wait()
            connection.execute("UPDATE clock SET version = 7")

    thread = threading.Thread(target=write)
    thread.start()
    begun.wait()
    child = Child(lambda: expect_refusal(database.store_id))
    forked.set()
    thread.join()
    assert child.ended_well()
    assert database.query("SELECT version FROM clock") == [(7,)]


def test_a_scan_continues_in_the_parent_and_fails_in_the_child(
    store: headrace.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ_AHEAD_BYTES", 1)
    store.table("rows").put([{"id": number} for number in range(100)])
    reader = store.table("rows").scan(batch_rows=10)
    reader.read_next_batch()

    def work() -> None:
        # Arrow replaces the errors of a reader by its own.
        with pytest.raises(Exception, match="begin the scan again"):
            reader.read_all()
        put(store, 100)

    assert Child(work).ended_well()
    assert reader.read_all().num_rows == 90
    assert numbers(store) == list(range(101))


# Begin a process with these lines, and fork it in C, without notifying Python. The process must be quiet: Python
# repairs its own locks after os.fork only, so that a child of a fork by C code can wait for ever for a lock that a
# running thread of its parent had.
C_FORK = """
import ctypes, os, sys, threading, headrace
from pathlib import Path
import headrace.stores.embedded.store
from headrace.errors import StoreError
from headrace.stores.embedded import writer_lock

def refusal(work):
    try:
        work()
    except StoreError as error:
        return str(error)
    return "nothing was refused"

def in_c_fork(work):
    if ctypes.PyDLL(None).fork() == 0:
        print(work(), flush=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0

path = sys.argv[1]
"""


def in_c_fork(program: str, store_path: Path) -> str:
    """Return what the child of a fork by C code prints."""
    command = [sys.executable, "-c", C_FORK + program, os.path.realpath(store_path)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_a_fork_by_c_code_is_detected(store: headrace.Store, tmp_path: Path) -> None:
    inherited = (
        "table = headrace.open(path).table('rows')\n"
        "table.put({'id': 1})\n"
        "in_c_fork(lambda: refusal(lambda: table.put({'id': 2})))"
    )
    assert "forked during a transaction of a store or workspace" in in_c_fork(inherited, tmp_path / "store")
    opened = "in_c_fork(lambda: headrace.open(path).table('rows').put({'id': 3}))"
    in_c_fork(opened, tmp_path / "store")
    assert numbers(store) == [1, 3]


# The first conversion of a thread loads pandas, which does not end before a fork has begun.
FORK_DURING_FIRST_CONVERSION = """
import os, signal, sys, threading
import headrace
import pyarrow as pa

began, forked = threading.Event(), threading.Event()
main = threading.main_thread()

def wait_for_fork():
    began.set()
    while not is_in_hook() and not forked.is_set():
        pass

def is_in_hook():
    frame = sys._current_frames()[main.ident]
    while frame and frame.f_code.co_name != "_before_fork":
        frame = frame.f_back
    return frame is not None

store = headrace.open(sys.argv[1])
sys.path.insert(0, sys.argv[2])
thread = threading.Thread(target=store.table("rows").put, args=({"id": 1},))
thread.start()
began.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    pa.array([1])
    os._exit(0)
forked.set()
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_fork_waits_for_the_first_conversion_of_another_thread(store: headrace.Store, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "pandas.py").write_text("import __main__\n__main__.wait_for_fork()\nraise ImportError")
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK_DURING_FIRST_CONVERSION]
    subprocess.run([*command, tmp_path / "store", slow], check=True)


def test_parent_and_child_of_a_fork_can_use_a_workspace(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    owner = workspace.owner()

    def work() -> None:
        assert workspace.owner() != owner
        assert workspace.is_alive(owner)
        with workspace.write() as connection:
            connection.execute("INSERT INTO definition VALUES ('child', '')")

    child = Child(work)
    workspace.close()
    assert child.ended_well()
    other = Workspace(tmp_path)
    assert other.query("SELECT name FROM definition") == [("child",)]
    other.close()
    assert workspace.query("SELECT count(*) FROM owner") == [(2,)]


def test_closed_stores_leave_no_descriptors(tmp_path: Path) -> None:
    for number in range(20):
        with headrace.open(tmp_path / str(number), create=True) as store:
            store.create_table("rows", {"id": "long"}, "id")
    assert files_in(tmp_path) == 0


def test_connections_of_ended_threads_are_closed(store: headrace.Store, tmp_path: Path) -> None:
    put(store, 0)
    before = files_in(tmp_path)
    for number in range(1, 20):
        thread = threading.Thread(target=put, args=(store, number))
        thread.start()
        thread.join()
    # The last thread's connection is closed when another thread needs one. It has three descriptors: the database, its
    # log and its shared memory.
    assert files_in(tmp_path) <= before + 3
    assert len(numbers(store)) == 20


def test_transactions_go_on_when_another_thread_closes_the_store(store: headrace.Store, tmp_path: Path) -> None:
    database = Database(tmp_path / "store")
    version = database.query("SELECT version FROM clock")[0][0]

    def close_in_another_thread() -> None:
        thread = threading.Thread(target=database.close)
        thread.start()
        thread.join()

    with database.write():
        database.execute("UPDATE clock SET version = version + 1")
        close_in_another_thread()
        database.execute("UPDATE clock SET version = version + 1")
    with database.read():
        assert database.query("SELECT version FROM clock") == [(version + 2,)]
        close_in_another_thread()
        put(store, 1)
        assert database.query("SELECT version FROM clock") == [(version + 2,)]
    assert database.query("SELECT version FROM clock") == [(version + 3,)]
    database.close()


def test_a_store_recreated_at_the_same_path_has_its_own_lock(tmp_path: Path) -> None:
    for _ in range(2):
        database = Database(tmp_path / "store", create=True)
        with database.write():
            assert str(tmp_path / "store" / "writer.lock") in [file.path for file in psutil.Process().open_files()]
        database.close()
        shutil.rmtree(tmp_path / "store")


def test_a_child_that_exits_a_transaction_of_its_parent_does_not_end_it(tmp_path: Path) -> None:
    database = Database(tmp_path / "store", create=True, synchronous="off")

    def leave_it() -> None:
        assert not transaction.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)

    def go_on_with_it() -> None:
        with pytest.raises(StoreError, match="only its parent can continue"):
            connection.execute("UPDATE clock SET version = 8")
        with pytest.raises(StoreError, match="only its parent can continue"):
            transaction.__exit__(None, None, None)

    transaction = database.write()
    connection = transaction.__enter__()
    # Uncommitted pages are written to the shared log, from which a rollback in a child would remove them.
    connection.pragma("cache_size", 10)
    connection.execute("CREATE TABLE large (value)")
    fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000) INSERT INTO large"
    connection.execute(f"{fill} SELECT zeroblob(500) FROM n")
    assert Child(leave_it).ended_well()
    assert Child(go_on_with_it).ended_well()
    connection.execute(f"{fill} SELECT zeroblob(500) FROM n")
    transaction.__exit__(None, None, None)
    assert database.query("SELECT count(*), version FROM large, clock") == [(4000, 0)]
    assert database.query("PRAGMA integrity_check") == [("ok",)]


def test_a_handle_collected_during_a_fork_is_closed(store: headrace.Store, tmp_path: Path) -> None:
    cycle: list[object] = [headrace.open(tmp_path / "store")]
    cycle.append(cycle)
    forks.no_fork.before_fork()
    try:
        del cycle
        gc.collect()
    finally:
        forks.no_fork.after_in_parent()
    put(store, 1)
    assert numbers(store) == [1]


def test_a_signal_handler_can_fork_while_its_thread_waits_in_a_fork(store: headrace.Store) -> None:
    forks.no_fork.before_fork()
    try:
        assert Child(lambda: put(store, 1)).ended_well()
    finally:
        forks.no_fork.after_in_parent()
    assert Child(lambda: put(store, 2)).ended_well()
    assert numbers(store) == [1, 2]


def test_a_child_forked_by_c_code_does_not_wait_for_writers_of_its_parent(
    store: headrace.Store, tmp_path: Path
) -> None:
    program = (
        "store = headrace.open(path)\n"
        "store.table('rows').put({'id': 1})\n"
        "lock = writer_lock.WriterLock(Path(path) / 'writer.lock')\n"
        "begun, done = threading.Event(), threading.Event()\n"
        "def hold():\n"
        "    with lock:\n"
        "        begun.set()\n"
        "        done.wait()\n"
        "thread = threading.Thread(target=hold)\n"
        "thread.start()\n"
        "begun.wait()\n"
        "in_c_fork(lambda: refusal(lambda: store.create_table('more', {'id': 'long'}, 'id')))\n"
        "done.set()"
    )
    assert "forked during a transaction of a store or workspace" in in_c_fork(program, tmp_path / "store")


def test_threads_that_wait_for_two_stores_do_not_deadlock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused_out, refused_in = os.pipe()
    release_out, release_in = os.pipe()
    pause = time.sleep

    def noted(seconds: float) -> None:
        os.write(refused_in, b"!")
        pause(seconds)

    patch_time(monkeypatch, "headrace.stores.embedded.writer_lock", sleep=noted)

    def hold_and_wait(mine: str, other: str, wait_for_release: Callable[[], object]) -> bool:
        got = []

        def wait() -> None:
            try:
                with writer_lock.WriterLock(tmp_path / other):
                    got.append(True)
            finally:
                os.write(refused_in, b"!")

        thread = threading.Thread(target=wait)
        with writer_lock.WriterLock(tmp_path / mine):
            thread.start()
            wait_for_release()
        thread.join()
        return bool(got)

    def work() -> None:
        assert hold_and_wait("b", "a", lambda: os.read(release_out, 1))

    child = Child(work)

    def refused() -> None:
        # The system has refused one of the two threads, or 20 seconds have passed.
        connection.wait([refused_out], 20)
        os.write(release_in, b"!")

    assert hold_and_wait("a", "b", refused)
    assert child.ended_well()
    for end in (refused_out, refused_in, release_out, release_in):
        os.close(end)
