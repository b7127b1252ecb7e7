"""Retries of a call that failed with a temporary error: growing random pauses until time or retries run out."""

from __future__ import annotations

import logging
import random
from time import monotonic, sleep

# Programs seed module random for their own purposes, also alike in several processes.
_random = random.SystemRandom()
_log = logging.getLogger("headrace")
_SHOWN_SECONDS = 1.0


def jitter(least: float, most: float) -> float:
    """Return a random number between two others, another one in each process and thread."""
    return _random.uniform(least, most)


class Retries:
    """The retries of one call.

    The limit of a pause doubles with each retry. A pause is random between half of the limit and the limit: clients
    that failed together must not return together. The log has one line about the first long pause, with the time that
    is left, and one when the time has run out.

    Args:
        seconds: no retry begins later than this after the creation of the object.
        first_pause: the limit of the first pause, in seconds.
        longest_pause: the limit of any pause, in seconds.
        count: the largest number of retries; None is no limit.
    """

    def __init__(self, seconds: float, *, first_pause: float, longest_pause: float, count: int | None = None) -> None:
        self._ends = monotonic() + seconds
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._count = count
        self._retry = 0
        self._began = monotonic()
        self._shown = False

    def wait(self, reason: object, *, first_pause: float | None = None) -> bool:
        """Wait until the next retry and return True; return False immediately if time or retries have run out.

        Args:
            reason: what failed, for the log.
            first_pause: replaces the limit of the first pause in the calculation of this one.
        """
        if self._count is not None and self._retry >= self._count:
            return False
        first = self._first_pause if first_pause is None else first_pause
        # A larger power of two would not fit into a float.
        limit = min(self._longest_pause, first * 2 ** min(self._retry, 100))
        pause = jitter(limit / 2, limit)
        now = monotonic()
        if now + pause >= self._ends:
            if self._shown:
                _log.warning("gave up after %d retries in %.0f s", self._retry, now - self._began)
            return False
        if pause > _SHOWN_SECONDS and not self._shown:
            self._shown = True
            _log.warning("%s; trying again for up to %.0f s", reason, self._ends - now)
        else:
            _log.info("%s; retry in %.2f s", reason, pause)
        sleep(pause)
        self._retry += 1
        return True
