"""The commands that start, keep, commit and abort transactions, of whatever type."""

from __future__ import annotations

from typing import Any

from headrace.endpoints.ytsaurus.commands import Answer, Context, Parameters, command
from headrace.endpoints.ytsaurus.errors import no_such_transaction, refused
from headrace.endpoints.ytsaurus.ids import NULL_ID, is_id, kind_of
from headrace.endpoints.ytsaurus.parameters import as_text
from headrace.endpoints.ytsaurus.storage.tree import TRUNK
from headrace.endpoints.ytsaurus.transactions.transactions import DEFAULT_TIMEOUT
from headrace.endpoints.ytsaurus.transactions.types import TRANSACTION_TYPES, Start, TransactionType
from headrace.endpoints.ytsaurus.values import time_of

MASTER = "master"


@command("start_transaction", "start_tx", volatile=True)
def start_transaction(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Begin a transaction."""
    kind = parameters.text("type", MASTER, valid=(MASTER, *TRANSACTION_TYPES))
    parent = parameters.text("transaction_id", parameters.text("parent_id", None))
    parent = None if parent == NULL_ID else parent
    wanted = Start(
        parent,
        parameters.number("timeout", DEFAULT_TIMEOUT, least=1),
        _deadline(parameters),
        parameters.mapping("attributes", {}),
    )
    if kind != MASTER:
        return Answer.structured({"transaction_id": TRANSACTION_TYPES[kind].start(context, wanted)})
    begun = context.transactions.start(
        parent or TRUNK,
        timeout=wanted.timeout,
        deadline=wanted.deadline,
        user=context.user,
        attributes=wanted.attributes,
        now=context.now,
    )
    return Answer.structured({"transaction_id": begun.id})


def _deadline(parameters: Parameters) -> int | None:
    given: Any = parameters.value("deadline", None)
    if given is None:
        return None
    deadline = time_of(as_text(given) or "")
    if deadline is None:
        raise refused(
            "Error reading parameter /deadline", received=repr(given)[:100], valid="a time: 2030-01-01T00:00:00.000000Z"
        )
    return deadline


def _id(parameters: Parameters) -> str:
    transaction_id = str(parameters.text("transaction_id"))
    if not is_id(transaction_id):
        raise refused(
            "Error reading parameter /transaction_id", received=repr(transaction_id)[:100], valid="an id: 1-2-3-4"
        )
    if transaction_id == NULL_ID:
        raise no_such_transaction(transaction_id)
    return transaction_id


def _type_of(transaction_id: str) -> TransactionType | None:
    """Return the type that an id tells; None of a master transaction, and of what is no transaction at all."""
    kind = kind_of(transaction_id)
    return next((known for known in TRANSACTION_TYPES.values() if known.object_type == kind), None)


# Pings change nothing that is kept, and come often: they take no write transaction.
@command("ping_transaction", "ping_tx", volatile=True, atomic=False)
def ping_transaction(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Let a transaction live for another timeout."""
    transaction_id = _id(parameters)
    other = _type_of(transaction_id)
    if other is None:
        context.transactions.ping(transaction_id, ancestors=parameters.flag("ping_ancestor_transactions"))
    else:
        other.ping(context, transaction_id)
    return Answer.structured({})


@command("commit_transaction", "commit_tx", volatile=True)
def commit_transaction(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Make the changes of a transaction visible."""
    transaction_id = _id(parameters)
    other = _type_of(transaction_id)
    if other is not None:
        return Answer.structured(other.commit(context, transaction_id))
    context.transactions.commit(transaction_id)
    return Answer.structured({})


@command("abort_transaction", "abort_tx", volatile=True)
def abort_transaction(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Forget the changes of a transaction."""
    transaction_id = _id(parameters)
    other = _type_of(transaction_id)
    if other is None:
        context.transactions.abort(transaction_id)
    else:
        other.abort(context, transaction_id)
    return Answer.structured({})
