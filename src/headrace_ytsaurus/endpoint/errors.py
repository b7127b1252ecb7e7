"""Errors of the endpoint and the embedded store as errors of YTsaurus."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import AlreadyExistsError, HeadraceError, NotFoundError, StoreBusyError, StoreError
from headrace_ytsaurus.endpoint.names import shown
from headrace_ytsaurus.wire.errors import Code, YtError


def refused(
    problem: str, *, received: object = None, valid: str | Iterable[object] | None = None, remedy: str | None = None
) -> YtError:
    """Return an error with the generic code; the arguments are those of `HeadraceError`."""
    return YtError(Code.GENERIC, problem, received=received, valid=valid, remedy=remedy)


def unresolved(path: str, reason: str) -> YtError:
    """Return the error for a path that does not resolve."""
    return YtError(Code.RESOLVE, f"Error resolving path {path}", inner=[YtError(Code.RESOLVE, reason)])


def no_child(path: str, node: str, name: str) -> YtError:
    """Return the error for a missing child."""
    return unresolved(path, f'Node {node} has no child with key "{shown(name)}"')


def no_attribute(path: str, name: str) -> YtError:
    """Return the error for a missing attribute."""
    return unresolved(path, f'Attribute "{shown(name)}" is not found')


def already_exists(path: str) -> YtError:
    """Return the error for an existing node."""
    return YtError(Code.ALREADY_EXISTS, f"Node {path} already exists", attributes={"path": path})


def lock_conflict(path: str, wanted: str, held: str, holder: str, key: str = "") -> YtError:
    """Return the error for a lock in conflict with another transaction's.

    Args:
        key: the target of the lock, ``child:name`` or ``attribute:name``; empty for the whole node.
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
    """Return the error for a lock in conflict with one of the same or an outer transaction."""
    return YtError(
        Code.SAME_TRANSACTION_LOCK_CONFLICT,
        f'Cannot take "{wanted}" lock for node {path} since "{held}" lock is already taken by'
        f" {'same' if same else 'parent'} transaction {holder}",
        attributes={"path": path},
    )


def nested_lock_conflict(path: str, wanted: str, held: str) -> YtError:
    """Return the error for a snapshot lock on a node that a nested transaction has locked."""
    return YtError(
        Code.DESCENDANT_TRANSACTION_LOCK_CONFLICT,
        f'Cannot take "{wanted}" lock for node {path} since "{held}" lock is already taken by a descendant transaction',
        attributes={"path": path},
    )


def no_such_transaction(transaction: str) -> YtError:
    """Return the error for a transaction that does not exist."""
    return YtError(
        Code.NO_SUCH_TRANSACTION,
        f"No such transaction {transaction}",
        remedy="it was committed or aborted, or was not pinged within its timeout",
        attributes={"transaction_id": transaction},
    )


def yt_error(error: BaseException) -> YtError | None:
    """Return an error of a command in the form for the client; None for an internal error."""
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
