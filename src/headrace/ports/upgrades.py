"""Whether opening a store may upgrade it to the format of this version of headrace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_permitted: ContextVar[bool] = ContextVar("headrace_upgrades_permitted", default=True)


def are_permitted() -> bool:
    """Return whether this thread may upgrade stores."""
    return _permitted.get()


@contextmanager
def not_permitted() -> Iterator[None]:
    """Let this thread upgrade no store: it only reads, or does not know yet whether a store is the right one."""
    token = _permitted.set(False)
    try:
        yield
    finally:
        _permitted.reset(token)
