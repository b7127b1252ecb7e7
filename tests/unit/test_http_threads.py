"""Threads of servers: results, errors, cancelled calls, and the exit of a process while a call does not return."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from headrace.http.threads import Threads, ThreadsClosedError


def test_a_call_returns_the_result_of_its_function_or_raises_its_error() -> None:
    threads = Threads(1, "test")

    async def calls() -> int:
        with pytest.raises(ZeroDivisionError):
            await threads.run(divmod, 1, 0)
        return await threads.run(pow, 2, 10)

    assert asyncio.run(calls()) == 1024
    assert threads.close()
    with pytest.raises(ThreadsClosedError):
        asyncio.run(threads.run(int))


def test_a_cancelled_call_that_waits_is_not_made() -> None:
    threads, leave, made = Threads(1, "test"), threading.Event(), list[int]()

    async def cancel_second() -> None:
        first = asyncio.create_task(threads.run(leave.wait))
        second = asyncio.create_task(threads.run(made.append, 2))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        leave.set()
        await first

    asyncio.run(cancel_second())
    assert threads.close()
    assert made == []


_UNFINISHED = """
import atexit, dataclasses, http.client, threading, time
from headrace.http.application import Application
from headrace.http.limits import Limits
from headrace.http.listening import LOOPBACK, listen
from headrace.http.serving import ServingThread
from headrace.http.threads import Threads

started = threading.Event()

class Unfinished(Application):
    limits = Limits(grace_seconds=0, stop_seconds=0.5)
    threads = Threads(1, "test")

    def close(self, seconds=None):
        print("all done:", self.threads.close(seconds))

    async def respond(self, scope, receive, send):
        started.set()
        await self.threads.run(time.sleep, 600)

listener = listen(LOOPBACK, 0)
serving = ServingThread(Unfinished(), listener, "test")
atexit.register(serving.stop)
http.client.HTTPConnection(*listener.getsockname()).request("GET", "/")
started.wait()
print("request started", flush=True)
"""


def test_a_process_exits_while_a_request_does_not_end() -> None:
    process = subprocess.Popen([sys.executable, "-c", _UNFINISHED], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "request started\n"
        # The request takes 600 seconds.
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, output) == (0, "all done: False\n")
