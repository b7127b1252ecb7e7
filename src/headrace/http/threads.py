"""Threads that run blocking functions for coroutines."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class ThreadsClosedError(Exception):
    """The threads run no more functions, because their server stops."""


class Threads:
    """Daemon threads up to a limit. A thread is started for a call if none is idle, as each may open files.

    Python joins the threads of a `ThreadPoolExecutor` at exit, before it calls atexit handlers. A request that retries
    while its store is unreachable would delay the exit of the process for minutes. It does not wait for daemon threads.

    Interrupting a thread is safe: a store writes in a transaction, or into a temporary file that is renamed when it is
    complete. The unfinished part is rolled back or ignored, as after a killed process.

    Args:
        count: the limit of threads.
        name: the prefix of the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._closed = False
        self._lock = threading.Lock()

    async def run(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function in one of the threads and return its result. A cancelled call that waits is not made.

        Raises:
            ThreadsClosedError: `close` has been called.
        """
        future: Future[_Result] = Future()
        with self._lock:
            if self._closed:
                raise ThreadsClosedError
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
                self._start()
            self._calls.put((future, lambda: function(*arguments)))
        return await asyncio.wrap_future(future)

    def close(self, seconds: float | None = None) -> bool:
        """Accept no more calls, and wait for the accepted ones. Return False if ``seconds`` are too short for that."""
        with self._lock:
            self._closed = True
        for _ in self._threads:
            self._calls.put(None)
        end = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # Python starts no threads while it exits.
            if not self._threads:
                raise ThreadsClosedError from None
        else:
            self._threads.append(thread)

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except Empty:
                self._idle.release()
                call = self._calls.get()
            if call is None:
                return
            future, function = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            # The thread keeps no result and no arguments while it waits.
            del call, future, function
