"""Ctrl-C at a place of the main thread, instead of at a time."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupted_in(*functions: str) -> Iterator[None]:
    """Send Ctrl-C to the main thread when it is in functions with all of these names."""
    main, left = threading.main_thread(), threading.Event()

    def send() -> None:
        while not left.wait(0.001):
            if set(functions) <= _functions(main):
                signal.pthread_kill(main.ident or 0, signal.SIGINT)
                return

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        left.set()
        sender.join()


def _functions(thread: threading.Thread) -> set[str]:
    """Return the names of the functions that a thread is in."""
    frame, found = sys._current_frames().get(thread.ident or 0), set[str]()
    while frame is not None:
        found.add(frame.f_code.co_name)
        frame = frame.f_back
    return found
