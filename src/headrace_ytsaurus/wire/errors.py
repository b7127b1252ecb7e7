"""Errors of YTsaurus: their codes, their form in answers, and which of them are temporary.

An error is a tree: outer errors name the operation, inner errors the reason. The codes of the whole tree matter, so use
`YtError.contains` instead of comparing only the outermost code.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from headrace.errors import StoreError


class Code(enum.IntEnum):
    """The codes that headrace uses by name; there are many more."""

    GENERIC = 1
    TIMEOUT = 3
    TRANSPORT = 100
    UNAVAILABLE = 105
    REQUEST_QUEUE_FULL = 108
    SORT_ORDER_VIOLATION = 301
    INCOMPARABLE_TYPE = 303
    UNIQUE_KEY_VIOLATION = 306
    SCHEMA_VIOLATION = 307
    ROW_WEIGHT_LIMIT_EXCEEDED = 308
    SAME_TRANSACTION_LOCK_CONFLICT = 400
    DESCENDANT_TRANSACTION_LOCK_CONFLICT = 401
    CYPRESS_LOCK_CONFLICT = 402
    RESOLVE = 500
    ALREADY_EXISTS = 501
    AUTHENTICATION = 900
    AUTHORIZATION = 901
    """Also for a consumer that is not registered for the queue."""
    ACCOUNT_LIMIT = 902
    RATE_LIMIT = 904
    PREREQUISITE_CHECK_FAILED = 1000
    PROXY_BANNED = 2100
    TABLET_LOCK_CONFLICT = 1700
    NO_SUCH_TABLET = 1701
    TABLET_NOT_MOUNTED = 1702
    ALL_WRITES_DISABLED = 1703
    INVALID_MOUNT_REVISION = 1704
    INVALID_TABLET_STATE = 1706
    NO_SYNC_REPLICAS = 1714
    TABLE_MUST_NOT_BE_REPLICATED = 1715
    TABLE_MUST_BE_SORTED = 1716
    TOO_MANY_ROWS_IN_TRANSACTION = 1717
    NO_SUCH_CELL = 1721
    COLUMN_NOT_FOUND = 1726
    WRITE_RETRY_IMPOSSIBLE = 1731
    CONSUMER_OFFSET_CONFLICT = 3100
    INVALID_EPOCH = 3101
    ZOMBIE_EPOCH = 3102
    INVALID_ROW_SEQUENCE_NUMBERS = 3103
    NO_SUCH_TRANSACTION = 11000


REQUEST_MAY_PASS: Final = frozenset({3, 100, 105, 108, 904, 2100})
"""Codes after which YTsaurus' client repeats the same request."""
TABLETS_MAY_PASS: Final = frozenset({1700, 1701, 1702, 1712, 1713, 1721, 1735, 1736, 1744, 1745, 1746})
"""Codes after which it repeats a call on dynamic tables outside of transactions."""

_MAX_DEPTH: Final = 32
_MAX_MESSAGE: Final = 4000


class YtError(StoreError):
    """An error in YTsaurus' form.

    Attributes:
        code: see `Code`.
        message: the text on the wire; it includes the received value, the valid values and the remedy.
        attributes: name → value; YSON can represent the values.
        inner: the causes.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        received: object = None,
        valid: str | Iterable[object] | None = None,
        remedy: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        inner: Iterable[YtError] = (),
    ) -> None:
        super().__init__(message, received=received, valid=valid, remedy=remedy)
        self.code = int(code)
        # Names in a message may have surrogates for bytes that are not UTF-8; no format can represent them.
        self.message = str(self.args[0]).encode(errors="backslashreplace").decode()
        self.attributes: dict[str, Any] = dict(attributes or {})
        self.inner = tuple(inner)
        # One line with all messages of the tree, outer ones first.
        messages = list(dict.fromkeys(error.message for error in self))
        self.args = (f"{': '.join(messages)} (YTsaurus error {self.code})",)

    def __iter__(self) -> Iterator[YtError]:
        """Iterate over the tree, outer errors before inner ones."""
        yield self
        for error in self.inner:
            yield from error

    def contains(self, *codes: int) -> bool:
        """Return whether this error or an inner one has one of the codes."""
        return any(error.code in codes for error in self)

    def find(self, code: int) -> YtError | None:
        """Return the outermost error with a code, None if there is none."""
        return next((error for error in self if error.code == code), None)

    def to_json(self) -> dict[str, Any]:
        """Return the error in the form of answers: code, message, attributes, inner_errors."""
        return {
            "code": self.code,
            "message": self.message,
            "attributes": dict(self.attributes),
            "inner_errors": [error.to_json() for error in self.inner],
        }

    @classmethod
    def from_json(cls, value: object) -> YtError:
        """Parse an error in an answer; invalid parts are ignored."""
        return cls._read(value, 0)

    @classmethod
    def _read(cls, value: object, depth: int) -> YtError:
        if not isinstance(value, Mapping):
            return cls(Code.GENERIC, "an error without a readable description")
        code, attributes, inner = (value.get(name) for name in ("code", "attributes", "inner_errors"))
        named = attributes.items() if isinstance(attributes, Mapping) else ()
        causes = inner if isinstance(inner, list | tuple) and depth < _MAX_DEPTH else ()
        return cls(
            code if isinstance(code, int) else Code.GENERIC,
            str(value.get("message") or "an error without a message")[:_MAX_MESSAGE],
            attributes={str(name): what for name, what in named},
            inner=[cls._read(cause, depth + 1) for cause in causes],
        )
