"""A time limit for calls to stores, for what is shown to a person who waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call that takes at most this time.

    A call that takes longer continues in a daemon thread, and its result is lost: stores repeat calls to a server that
    cannot be reached for longer than a person waits.

    Raises:
        TimeoutError: the call has not ended in time.
        Exception: the error of the call.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="headrace-time-limit", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    return results[0]
