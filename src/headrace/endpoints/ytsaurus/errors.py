"""What goes wrong behind the endpoint, as errors of YTsaurus."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.endpoints.ytsaurus.names import shown
from headrace.errors import AlreadyExistsError, HeadraceError, NotFoundError, StoreBusyError, StoreError
from headrace.wire.ytsaurus.errors import Code, YtError


def refused(
    problem: str, *, received: object = None, valid: str | Iterable[object] | None = None, remedy: str | None = None
) -> YtError:
    """Return the error for what has no code of its own; the arguments are those of `HeadraceError`."""
    return YtError(Code.GENERIC, problem, received=received, valid=valid, remedy=remedy)


def unresolved(path: str, reason: str) -> YtError:
    """Return the error for a path that leads nowhere."""
    return YtError(Code.RESOLVE, f"Error resolving path {path}", inner=[YtError(Code.RESOLVE, reason)])


def no_child(path: str, node: str, name: str) -> YtError:
    """Return the error for a path that names a child which its node has not."""
    return unresolved(path, f'Node {node} has no child with key "{shown(name)}"')


def no_attribute(path: str, name: str) -> YtError:
    """Return the error for a path that names an attribute which its node has not."""
    return unresolved(path, f'Attribute "{shown(name)}" is not found')


def already_exists(path: str) -> YtError:
    """Return the error for a place that is taken."""
    return YtError(Code.ALREADY_EXISTS, f"Node {path} already exists", attributes={"path": path})


def lock_conflict(path: str, wanted: str, held: str, holder: str, *, own: bool) -> YtError:
    """Return the error for a lock that another transaction, or a snapshot of the same one, stands against."""
    who = "the same or an outer" if own else "concurrent"
    return YtError(
        Code.CYPRESS_LOCK_CONFLICT,
        f'Cannot take "{wanted}" lock for node {path} since "{held}" lock is taken by {who} transaction {holder}',
        attributes={"winner_transaction": {"id": holder}, "path": path},
    )


def no_such_transaction(transaction: str) -> YtError:
    """Return the error for a transaction that is not there any more, or never was."""
    return YtError(
        Code.NO_SUCH_TRANSACTION,
        f"No such transaction {transaction}",
        remedy="it was committed or aborted, or was not pinged within its timeout",
        attributes={"transaction_id": transaction},
    )


def yt_error(error: BaseException) -> YtError | None:
    """Return what a client is told of an error of a command; None for one that is nobody's mistake but ours."""
    match error:
        case YtError():
            return error
        case NotFoundError():
            return YtError(Code.RESOLVE, str(error))
        case AlreadyExistsError():
            return YtError(Code.ALREADY_EXISTS, str(error))
        case StoreBusyError():
            return YtError(Code.UNAVAILABLE, "The store is busy")
        case StoreError():
            return None
        case HeadraceError():
            return YtError(Code.GENERIC, str(error))
    return None
