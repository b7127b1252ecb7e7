"""The commands that begin, ping, commit and abort transactions. The id of a transaction shows its type."""

from __future__ import annotations

from headrace_ytsaurus.endpoint.context import Answer, Context
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.ids import NULL_ID, ObjectType, kind_of
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.storage.tree import TRUNK
from headrace_ytsaurus.endpoint.transactions.transactions import DEFAULT_TIMEOUT
from headrace_ytsaurus.endpoint.values import moment_of

MASTER, TABLET = "master", "tablet"


def start_transaction(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Begin a transaction."""
    kind = parameters.text("type", MASTER, valid=(MASTER, TABLET))
    parent = parameters.text("transaction_id", parameters.text("parent_id", None))
    parent = None if parent == NULL_ID else parent
    timeout, deadline = parameters.duration("timeout", DEFAULT_TIMEOUT, least=1), _deadline(parameters)
    attributes = parameters.mapping("attributes", {})
    if kind == TABLET:
        if parent is not None:
            raise refused("A tablet transaction is not nested", received=parent)
        transaction_id = context.tablet_transactions.start(timeout, attributes)
        # It is not in the store. If the store cannot save this answer, no client knows it.
        context.undo.callback(context.tablet_transactions.discard, transaction_id)
    else:
        begun = context.transactions.start(
            parent or TRUNK,
            timeout=timeout,
            deadline=deadline,
            user=context.user,
            attributes=attributes,
            now=context.now,
        )
        transaction_id = begun.id
    return Answer.structured({"transaction_id": transaction_id})


def ping_transaction(context: Context, parameters: Parameters, body: bytes) -> None:
    """Restart the timeout of a transaction.

    Pings are frequent and save nothing, so the command needs no write transaction of the store.
    """
    transaction_id = parameters.object_id("transaction_id")
    if _is_tablet_transaction(transaction_id):
        context.tablet_transactions.get(transaction_id).ping()
    else:
        context.transactions.ping(transaction_id, ancestors=parameters.flag("ping_ancestor_transactions"))


def commit_transaction(context: Context, parameters: Parameters, body: bytes) -> None:
    """Make the changes of a transaction visible."""
    transaction_id = parameters.object_id("transaction_id")
    if _is_tablet_transaction(transaction_id):
        context.tablet_transactions.commit(transaction_id)
    else:
        context.undo.callback(context.transactions.resume, context.transactions.get(transaction_id))
        context.transactions.commit(transaction_id)


def abort_transaction(context: Context, parameters: Parameters, body: bytes) -> None:
    """Discard the changes of a transaction."""
    transaction_id = parameters.object_id("transaction_id")
    if _is_tablet_transaction(transaction_id):
        context.tablet_transactions.abort(transaction_id)
    else:
        context.undo.callback(context.transactions.resume, context.transactions.get(transaction_id))
        context.transactions.abort(transaction_id)


def _is_tablet_transaction(transaction_id: str) -> bool:
    return kind_of(transaction_id) == ObjectType.ATOMIC_TABLET_TRANSACTION


def _deadline(parameters: Parameters) -> int | None:
    given = parameters.value("deadline", None)
    return None if given is None else moment_of(given, "parameter /deadline")
