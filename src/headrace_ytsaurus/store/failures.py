"""Errors of YTsaurus and of its client as errors of headrace.

Each is both: a `YtError` with the code, and a headrace error. Headers of requests are not copied, so no message
contains a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from yt.common import YtError as ClientError
from yt.packages.requests.exceptions import RequestException
from yt.wrapper.errors import YtProxyUnavailable, YtTokenError

from headrace.errors import (
    AlreadyExistsError,
    HeadraceError,
    NotFoundError,
    OptionError,
    SequenceNumberError,
    SessionEpochError,
    StoreBusyError,
    StoreError,
)
from headrace_ytsaurus.wire.errors import REQUEST_MAY_PASS, TABLETS_MAY_PASS, Code, YtError

# Attributes that the client adds about requests, headers included. The other attributes come from the server.
_OF_THE_CLIENT = frozenset(
    {"url", "request_headers", "response_headers", "params", "transparent", "request_info", "headers", "body"}
)
_WRAPPING = "Received HTTP response with error"
_NOT_REGISTERED = "is not registered"


class YtNotFoundError(YtError, NotFoundError):
    """The node does not exist."""


class YtExistsError(YtError, AlreadyExistsError):
    """A node with this path exists."""


class YtRefusedError(YtError, OptionError):
    """The token is invalid, or its user has no permission."""


class YtNotRegisteredError(YtError, NotFoundError):
    """The consumer is not registered for the queue."""


class YtUnmountedError(YtError, StoreError):
    """The tablets of a table are not mounted."""


class YtBusyError(YtError, StoreBusyError):
    """A proxy, a cell or a lock was busy until the time limit."""


class YtTransactionLostError(YtError, StoreBusyError):
    """A transaction expired, or its proxy is down. It had no effect, except if its commit was being sent."""


class YtTooManyRowsError(YtError, StoreError):
    """A transaction has more rows of one tablet than the cluster allows."""


class YtOffsetConflictError(YtError, StoreError):
    """A consumer's offset is not the expected one; the attributes of the error contain it."""


class YtEpochError(YtError, SessionEpochError):
    """A producer's session has another epoch."""


class YtSequenceError(YtError, SequenceNumberError):
    """The sequence numbers of a push are invalid."""


_MOUNT = "mount it (yt mount-table <path>), or wait until its cells are healthy; `yt get <path>/@tablet_state` shows it"
_BY_CODE: tuple[tuple[frozenset[int], type[YtError], str | None], ...] = (
    (
        frozenset({Code.AUTHENTICATION}),
        YtRefusedError,
        "set option token, the environment's YT_TOKEN, or the file ~/.yt/token to a token of this cluster",
    ),
    (frozenset({Code.CONSUMER_OFFSET_CONFLICT}), YtOffsetConflictError, None),
    (frozenset({Code.INVALID_EPOCH, Code.ZOMBIE_EPOCH}), YtEpochError, "another writer has opened the session"),
    (
        frozenset({Code.INVALID_ROW_SEQUENCE_NUMBERS}),
        YtSequenceError,
        "number the rows from 0 on, each above the one before; gaps are allowed",
    ),
    (
        frozenset({Code.TOO_MANY_ROWS_IN_TRANSACTION}),
        YtTooManyRowsError,
        "give the table more tablets, or read less in each batch (max_rows_per_partition)",
    ),
    (frozenset({Code.TABLET_LOCK_CONFLICT}), YtBusyError, "another transaction wrote the same rows first: try again"),
    (
        frozenset({Code.NO_SUCH_TRANSACTION}),
        YtTransactionLostError,
        "it took longer than its time-out, or its proxy was restarted: run it again",
    ),
    (
        frozenset(
            {
                Code.NO_SUCH_TABLET,
                Code.TABLET_NOT_MOUNTED,
                Code.INVALID_MOUNT_REVISION,
                Code.INVALID_TABLET_STATE,
                Code.NO_SUCH_CELL,
            }
        ),
        YtUnmountedError,
        _MOUNT,
    ),
    (
        frozenset({Code.ALL_WRITES_DISABLED}),
        YtUnmountedError,
        "the tablet cells accept no writes now: inform the cluster's administrators",
    ),
    (
        frozenset({Code.AUTHORIZATION}),
        YtRefusedError,
        "ask for the permission on the node, or name another directory in the store's URL (yt://proxy//home/you)",
    ),
    (frozenset({Code.ACCOUNT_LIMIT}), YtError, "the account has no room left: raise its quota"),
    (frozenset({Code.PROXY_BANNED}), YtBusyError, "the proxy is banned: name another proxy, or its balancer"),
    (
        # The other errors: rows are locked, stores are being loaded, and similar ones.
        REQUEST_MAY_PASS | TABLETS_MAY_PASS,
        YtBusyError,
        "the cluster has no time for the request now: try again later",
    ),
    (frozenset({Code.RESOLVE}), YtNotFoundError, None),
    (frozenset({Code.ALREADY_EXISTS}), YtExistsError, None),
)


@contextmanager
def translated(what: str = "") -> Iterator[None]:
    """Raise errors of YTsaurus' client as errors of headrace.

    Args:
        what: the operation, for the message.
    """
    try:
        yield
    except HeadraceError:
        raise
    except (ClientError, RequestException, OSError) as error:
        raise failure_of(error, what) from None


def failure_of(error: Exception, what: str = "") -> HeadraceError:
    """Return the headrace error for an error of the client."""
    if isinstance(error, YtTokenError):
        inner = [YtError.from_json(_plain(cause)) for cause in error.inner_errors]
        return _kind_of(YtError(Code.AUTHENTICATION, what or "the cluster refused the token", inner=inner))
    if isinstance(error, YtProxyUnavailable):
        inner = [YtError.from_json(_plain(cause)) for cause in error.inner_errors if cause]
        return _kind_of(YtError(Code.UNAVAILABLE, what or "the proxy is not available", inner=inner))
    if isinstance(error, ClientError):
        plain = _plain(error)
        while plain["message"] == _WRAPPING and len(plain["inner_errors"]) == 1:
            (plain,) = plain["inner_errors"]
        if what:
            plain = {"code": plain["code"], "message": what, "attributes": {}, "inner_errors": [plain]}
        return _kind_of(YtError.from_json(plain))
    # Connection errors: the text contains the address, but no headers.
    problem = what or "the proxy was not reached"
    broken = YtError(Code.TRANSPORT, problem, inner=[YtError(Code.TRANSPORT, _reason(error))])
    return _as(YtBusyError, broken, "check the address of the proxy, and that it runs; it was tried again already")


def _kind_of(error: YtError) -> YtError:
    if error.contains(Code.AUTHORIZATION) and any(_NOT_REGISTERED in part.message for part in error):
        return _as(YtNotRegisteredError, error, "register it with store.register_consumer(queue, consumer)")
    for codes, kind, remedy in _BY_CODE:
        if error.contains(*codes):
            return _as(kind, error, remedy)
    return error


def _as(kind: type[YtError], error: YtError, remedy: str | None) -> YtError:
    message, *causes = dict.fromkeys(part.message for part in error)
    problem = ": ".join([message, *causes])
    return kind(error.code, problem, remedy=remedy, attributes=_attributes(error))


def _attributes(error: YtError) -> dict[str, Any]:
    """Return the attributes of an error tree; outer errors take precedence."""
    found: dict[str, Any] = {}
    for part in reversed(list(error)):
        found |= part.attributes
    return found


def _plain(error: Any) -> dict[str, Any]:
    """Return an error of the client in the form of responses, without the client's additions."""
    value = error.simplify() if isinstance(error, ClientError) else error
    if not isinstance(value, Mapping):
        return {"code": int(Code.GENERIC), "message": str(value)}
    attributes = value.get("attributes") or {}
    return {
        "code": int(value.get("code") or Code.GENERIC),
        "message": str(value.get("message") or ""),
        "attributes": {str(name): kept for name, kept in attributes.items() if name not in _OF_THE_CLIENT},
        "inner_errors": [_plain(cause) for cause in value.get("inner_errors") or ()],
    }


def _reason(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
