"""Writes of one table by several requests at once, done together.

For a request of at most 200 rows, its transaction and its steps over columns cost more than its rows. While one thread
writes, other threads wait. Then the first of them writes the rows of all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.errors import SchemaError
from headrace_tablestore.wire.errors import ServiceError

Write: TypeAlias = Callable[[Sequence[bytes]], bool]
"""Writes rows on the wire in one transaction. Returns False, without a write, if they must be written one by one."""


@dataclass
class _Waiting:
    """The rows of one request.

    Attributes:
        kind: the kind of write.
        turn: set when the rows were tried, or when their thread has to write for all that wait.
        tried: whether a thread has tried to write the rows. Then they are written, or have an error, or neither if they
            must be written one by one.
    """

    kind: int
    records: Sequence[bytes]
    turn: threading.Event = field(default_factory=threading.Event)
    tried: bool = False
    written: bool = False
    error: Exception | None = None


class ConcurrentWrites:
    """The writes of one table. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._writing = False

    def write(self, kind: int, records: Sequence[bytes], write: Write) -> bool:
        """Write rows, perhaps together with those of other threads. Return the result of ``write``.

        Args:
            kind: only rows of the same kind are written together. They all have the same ``write``.
        """
        mine = _Waiting(kind, records)
        with self._lock:
            self._waiting.append(mine)
            first = not self._writing
            self._writing = True
        if not first:
            mine.turn.wait()
        if not mine.tried:
            self._write_waiting(kind, write)
        if mine.error is not None:
            raise mine.error
        return mine.written

    def _write_waiting(self, kind: int, write: Write) -> None:
        """Write all that waits and is of one kind. Then let the next thread write."""
        with self._lock:
            taken = [each for each in self._waiting if each.kind == kind]
            self._waiting = [each for each in self._waiting if each.kind != kind]
        try:
            _write_all(taken, write)
        finally:
            with self._lock:
                following = self._waiting[:1]
                self._writing = bool(following)
            for each in taken:
                each.tried = True
            for each in [*taken, *following]:
                each.turn.set()


def _write_all(taken: Sequence[_Waiting], write: Write) -> None:
    if len(taken) > 1 and _are_written(taken, write):
        return
    for each in taken:
        try:
            each.written = write(each.records)
        except Exception as error:
            each.error = error


def _are_written(taken: Sequence[_Waiting], write: Write) -> bool:
    """Write the rows of several requests in one transaction. Return False if each request must be written alone."""
    try:
        written = write([record for each in taken for record in each.records])
    except (SchemaError, ServiceError):
        # Some rows cannot be written. Alone, each request gets its own error.
        return False
    except Exception as error:
        for each in taken:
            each.error = error
        return True
    for each in taken:
        each.written = written
    return written
