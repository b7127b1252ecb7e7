"""The check after each test finds every kind of leftover."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import headrace.errors
from tests import isolation
from tests.isolation import process_as_found

Leave = Callable[[ExitStack], None]


def leave_variable(_: ExitStack) -> None:
    os.environ["LEFT_BEHIND"] = "1"


def leave_directory(_: ExitStack) -> None:
    os.chdir("/")


def leave_without_module(_: ExitStack) -> None:
    del sys.modules["headrace.errors"]


def leave_thread(later: ExitStack) -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    later.callback(thread.join)
    later.callback(ended.set)


def leave_process(later: ExitStack) -> None:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    later.callback(process.communicate, b"\n")
    # A starting process has no command line yet.
    assert process.stdout is not None
    process.stdout.readline()


def leave_socket(later: ExitStack) -> None:
    later.enter_context(socket.create_server(("127.0.0.1", 0)))


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    """Ends the leftovers of a test, after the check has found them."""
    monkeypatch.setattr(isolation, "_PATIENCE", 0.0)
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("leave", "found"),
    [
        (leave_variable, "environment variables: LEFT_BEHIND"),
        (leave_directory, "working directory: /"),
        (leave_without_module, r"modules: headrace\.errors"),
        (leave_thread, "threads: "),
        (leave_process, "processes: .*input"),
        (leave_socket, r"listening sockets: \('127\.0\.0\.1'"),
    ],
)
def test_the_leftovers_of_a_test_are_named(later: ExitStack, leave: Leave, found: str) -> None:
    if leave in (leave_process, leave_socket) and not Path("/proc/self/fd").exists():
        return
    before = (Path.cwd(), sys.modules["headrace.errors"])
    with pytest.raises(AssertionError, match=found), process_as_found():
        leave(later)
    # It does not affect other tests.
    assert (Path.cwd(), sys.modules["headrace.errors"]) == before
    assert "LEFT_BEHIND" not in os.environ
    assert headrace.errors is before[1]
