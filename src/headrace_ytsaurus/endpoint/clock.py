"""Timestamps of YTsaurus: seconds since 1970 shifted left by 30 bits, plus a counter within the second."""

from __future__ import annotations

import threading
import time

_SECOND_BITS = 30
_guard = threading.Lock()
_last = 0


def timestamp_of(microseconds: int) -> int:
    """Return the first timestamp of a time, µs since 1970."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return (seconds << _SECOND_BITS) + rest * 1000


def next_timestamp() -> int:
    """Return a timestamp of now, later than all that this process has returned before."""
    global _last
    with _guard:
        _last = max(_last + 1, timestamp_of(time.time_ns() // 1000))
        return _last
