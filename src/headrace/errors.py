"""Every error that headrace raises on purpose.

::

    HeadraceError
     +-- OptionError            an option, argument or address is missing or wrong
     +-- SchemaError            columns, keys or rows do not fit the table
     +-- SqlError               a statement cannot be parsed or run; carries line and column
     +-- NotFoundError          no such store, table, tunnel, scan or stream
     +-- AlreadyExistsError     the name is taken
     +-- UnsupportedError       the store, or this version, cannot do it
     +-- MissingDependencyError an optional package is not installed
     +-- DataLossError          rows that were asked for are gone
     +-- StoreError             the store failed
     |    +-- StoreBusyError    (retry) another process held it for too long
     |    +-- RowsNotWrittenError  some rows of a write were refused
     |    +-- StoreDamagedError the files are not what they should be
     +-- LostRaceError          (retry) another reader fixed the end of a batch first
     +-- PublicationError       staged rows cannot be published
     +-- TunnelTakenError       another query, or clients, have begun to read the tunnel
     +-- ClientGoneError        a client of a tunnel was silent for too long
     +-- OffsetConflictError    a consumer is not where its reader left it
     +-- SessionEpochError      a producer's session belongs to somebody else
     +-- SequenceNumberError    rows of a producer, or saves of a client, are not numbered as they must be

Whether trying again can help is a property of the type: ``retryable``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar


class HeadraceError(Exception):
    """The root of headrace's errors.

    The text is built from four parts, so that no message leaves one out by accident:

    Args:
        problem: what went wrong, in one sentence without a full stop.
        received: the offending value; pass nothing here that may hold a secret.
        valid: what would have been accepted, a text or a list of values.
        remedy: what to do now, naming the option or command.
    """

    retryable: ClassVar[bool] = False

    def __init__(
        self,
        problem: str,
        *,
        received: object = None,
        valid: str | Iterable[object] | None = None,
        remedy: str | None = None,
    ) -> None:
        problem = printable(problem)
        self.problem = problem
        self.received = None if received is None else _cut(printable(received), _LONGEST_RECEIVED)
        if valid is None or isinstance(valid, str):
            self.valid = None if valid is None else printable(valid)
        else:
            self.valid = ", ".join(printable(value) for value in valid) or "nothing here yet"
        self.remedy = remedy = None if remedy is None else printable(remedy)
        parts = [problem]
        if self.received is not None:
            parts.append(f"received: {self.received}")
        if self.valid is not None:
            parts.append(f"valid: {self.valid}")
        if remedy is not None:
            parts.append(remedy)
        super().__init__("; ".join(parts))

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (Spark workers, multiprocessing): rebuild from the state.
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


_LONGEST_RECEIVED = 1000
_LONGEST_SHOWN = 100


def shown(value: object) -> str:
    """Return a value for a message, shortened. The type follows, unless the value is a text."""
    if type(value) is str:
        return _cut(repr(value), _LONGEST_SHOWN)
    try:
        text = ascii(value)
    except Exception:
        # An integer with too many digits for Python, or a class whose repr fails.
        text = f"{value.bit_length()} bits" if isinstance(value, int) else "not printable"
    return f"{_cut(text, _LONGEST_SHOWN)} ({type(value).__name__})"


def printable(value: object) -> str:
    """Return the text of a value in a form that can be encoded: surrogates become escapes."""
    try:
        text = str(value)
    except Exception:
        return shown(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _rebuild(kind: type[HeadraceError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


_OWN_ERROR = re.compile(r"^headrace\.[\w.]+Error: (.+)$", re.MULTILINE)


def own_message(text: str) -> str | None:
    """Return the message of the headrace error that a text tells of with a traceback, as Spark's errors do.

    What fails in one of Spark's Python workers reaches the driver as text only. None if there is no such error.
    """
    found = _OWN_ERROR.findall(text)
    return found[-1] if found else None


class OptionError(HeadraceError, ValueError):
    """An option, argument or address is missing or wrong."""


class SchemaError(HeadraceError, ValueError):
    """Columns, keys or rows do not fit the table."""


_LONGEST_LINE = 500


class SqlError(HeadraceError):
    """A statement cannot be parsed or run.

    ``line`` and ``column`` count from 1; the text ends with the line and a caret under the place.
    """

    def __init__(
        self,
        problem: str,
        *,
        text: str | None = None,
        offset: int | None = None,
        received: object = None,
        valid: str | Iterable[object] | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(problem, received=received, valid=valid, remedy=remedy)
        self.line: int | None = None
        self.column: int | None = None
        if text is not None and offset is not None:
            offset = min(offset, len(text))
            before = text[:offset]
            self.line = before.count("\n") + 1
            self.column = offset - (before.rfind("\n") + 1) + 1
            shown, place = _excerpt(text.split("\n")[self.line - 1], self.column - 1)
            caret = "".join("\t" if char == "\t" else " " for char in shown[:place]) + "^"
            where = f"line {self.line}, column {self.column}"
            self.args = (f"{where}: {self.args[0]}\n  {printable(shown)}\n  {caret}",)


def _excerpt(line: str, place: int) -> tuple[str, int]:
    """Return a line, or the part of a long one around a place, and where the place is in it."""
    if len(line) <= _LONGEST_LINE:
        return line, place
    first = max(0, min(place - _LONGEST_LINE // 2, len(line) - _LONGEST_LINE))
    before, after = "…" if first else "", "…" if first + _LONGEST_LINE < len(line) else ""
    return f"{before}{line[first : first + _LONGEST_LINE]}{after}", place - first + len(before)


class NotFoundError(HeadraceError, LookupError):
    """No such store, table, tunnel, scan or stream."""


class AlreadyExistsError(HeadraceError):
    """The name is taken."""


class UnsupportedError(HeadraceError):
    """The store, or this version of headrace, cannot do what was asked."""


class MissingDependencyError(HeadraceError, ImportError):
    """An optional package is not installed; the remedy names the pip command."""


class DataLossError(HeadraceError):
    """Rows that were asked for are gone: trimmed, expired or dropped."""


class StoreError(HeadraceError):
    """The store failed for a reason of its own: disk, permissions, server."""


class StoreBusyError(StoreError):
    """Another process held the store for longer than the waiting time."""

    retryable = True


class RowsNotWrittenError(StoreError):
    """The store did not take some rows of a write; the message has their keys. Other rows may have been written."""


class StoreDamagedError(StoreError):
    """The files of a store are not what they should be."""


class LostRaceError(HeadraceError):
    """Another reader of the same batch recorded a different end first; a retry reads up to that end."""

    retryable = True


class PublicationError(HeadraceError):
    """Staged rows cannot be published: they are not there, do not fit, or the checkpoint went back."""


class TunnelTakenError(HeadraceError):
    """Another query, or a client, has begun to read the tunnel since; a tunnel serves one query, or clients."""


class ClientGoneError(HeadraceError):
    """A client of a tunnel let its time-out pass without a heartbeat, or was closed; connect again."""


class OffsetConflictError(HeadraceError):
    """A consumer's offset is not the expected one: somebody else moved it.

    ``consumer``, ``queue``, ``partition``, ``expected`` and ``found`` tell which.
    """

    consumer: str
    queue: str
    partition: int
    expected: int
    found: int

    @classmethod
    def of(cls, consumer: str, queue: str, partition: int, expected: int, found: int) -> OffsetConflictError:
        """Return the error for one partition."""
        error = cls(
            f"consumer {consumer!r} stands at row {found} in partition {partition} of queue {queue!r}",
            received=f"expected row {expected}",
            remedy="somebody else moved it: read its offsets again before the next advance, and give each streaming "
            "query a consumer of its own",
        )
        error.consumer, error.queue = consumer, queue
        error.partition, error.expected, error.found = partition, expected, found
        return error


class SessionEpochError(HeadraceError):
    """A push with an epoch that is not the session's: a newer one was given out, or this one never was."""


class SequenceNumberError(HeadraceError, ValueError):
    """The rows of a push are not numbered, numbered twice over, or not in strictly rising order; or a save is not."""
