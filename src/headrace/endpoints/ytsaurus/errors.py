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


def lock_conflict(path: str, wanted: str, held: str, holder: str, key: str = "") -> YtError:
    """Return the error for a lock that a lock of another transaction excludes.

    Args:
        key: what the lock is about, if not about all of the node: ``child:name`` or ``attribute:name``.
    """
    kind, _, name = key.partition(":")
    if kind:
        what = f'Cannot take lock for {kind} "{name}" of node {path} since this {kind} is locked'
    else:
        what = f'Cannot take "{wanted}" lock for node {path} since "{held}" lock is taken'
    return YtError(
        Code.CYPRESS_LOCK_CONFLICT,
        f"{what} by concurrent transaction {holder}",
        attributes={"winner_transaction": {"id": holder}, "path": path},
    )


def own_lock_conflict(path: str, wanted: str, held: str, holder: str, *, same: bool) -> YtError:
    """Return the error for a lock that one of the same transaction excludes, or one of an outer transaction."""
    return YtError(
        Code.SAME_TRANSACTION_LOCK_CONFLICT,
        f'Cannot take "{wanted}" lock for node {path} since "{held}" lock is already taken by'
        f" {'same' if same else 'parent'} transaction {holder}",
        attributes={"path": path},
    )


def nested_lock_conflict(path: str, wanted: str, held: str) -> YtError:
    """Return the error for a snapshot of a node that a nested transaction has locked for a change."""
    return YtError(
        Code.DESCENDANT_TRANSACTION_LOCK_CONFLICT,
        f'Cannot take "{wanted}" lock for node {path} since "{held}" lock is already taken by a descendant transaction',
        attributes={"path": path},
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
