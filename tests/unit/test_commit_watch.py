"""The wake of a waiting thread by commits of other processes, and what remains where the system reports nothing."""

from __future__ import annotations

import multiprocessing
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import headrace
from headrace.stores.embedded import commit_watch, connection
from headrace.stores.embedded.commit_watch import CommitWatch

_LONG_SECONDS = 60.0
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has inotify")


@pytest.fixture
def store(tmp_path: Path) -> headrace.Store:
    store = headrace.open(tmp_path / "store", create=True)
    store.create_table("numbers", {"n": "long"}, ["n"])
    return store


def _put(path: str, number: int) -> None:
    with headrace.open(path) as store:
        store.table("numbers").put([{"n": number}])


def _put_in_another_process(store: headrace.Store, number: int) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_put, args=(store.url, number))
    process.start()
    process.join()
    assert process.exitcode == 0


def _watches(path: Path) -> int:
    """Return the number of this process' descriptors of inotify that watch a file."""
    watched = re.compile(rf"^inotify .* ino:{path.stat().st_ino:x} ", re.MULTILINE)
    found = 0
    for descriptor in Path("/proc/self/fdinfo").iterdir():
        # It may be closed meanwhile; that of the listing itself is.
        with suppress(FileNotFoundError):
            found += watched.search(descriptor.read_text()) is not None
    return found


@linux
def test_a_commit_of_another_process_ends_the_wait(store: headrace.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the pauses between looks, only the watch can end the wait.
    monkeypatch.setattr(connection, "_UNWATCHED_SECONDS", _LONG_SECONDS)
    store.wait_for_change(0)
    writer = threading.Thread(target=_put_in_another_process, args=(store, 1))
    begin = time.monotonic()
    writer.start()
    assert store.wait_for_change(_LONG_SECONDS)
    assert time.monotonic() - begin < _LONG_SECONDS / 2
    writer.join()
    assert store.table("numbers").get({"n": 1})


@linux
def test_a_commit_between_the_look_and_the_wait_ends_the_wait(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    watch = CommitWatch(lock)
    watch.prepare()
    lock.write_text("")
    begin = time.monotonic()
    watch.wait(_LONG_SECONDS)
    assert time.monotonic() - begin < _LONG_SECONDS / 2


@linux
def test_a_forked_child_does_not_take_the_events_of_its_parent(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    watch = CommitWatch(lock)
    watch.prepare()
    lock.write_text("")
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_prepare_and_wait, args=(watch,))
    child.start()
    child.join()
    assert child.exitcode == 0
    begin = time.monotonic()
    watch.wait(_LONG_SECONDS)
    assert time.monotonic() - begin < _LONG_SECONDS / 2


def _prepare_and_wait(watch: CommitWatch) -> None:
    watch.prepare()
    watch.wait(0.01)


@linux
def test_a_closed_store_has_no_descriptor_of_inotify(tmp_path: Path) -> None:
    store = headrace.open(tmp_path / "store", create=True)
    store.wait_for_change(0)
    assert _watches(tmp_path / "store" / "writer.lock") == 1
    store.close()
    assert _watches(tmp_path / "store" / "writer.lock") == 0


@linux
def test_a_missing_lock_file_is_watched_when_it_exists(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    watch = CommitWatch(lock)
    watch.prepare()
    watch.wait(0)
    lock.touch()
    watch.prepare()
    lock.write_text("")
    begin = time.monotonic()
    watch.wait(_LONG_SECONDS)
    assert time.monotonic() - begin < _LONG_SECONDS / 2


def test_without_inotify_the_store_is_looked_at_again(store: headrace.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_watch, "_inotify", lambda: None)
    store.wait_for_change(0)
    writer = threading.Thread(target=_put_in_another_process, args=(store, 1))
    writer.start()
    assert store.wait_for_change(_LONG_SECONDS)
    writer.join()
