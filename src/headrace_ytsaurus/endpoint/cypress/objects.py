"""Objects other than nodes that have ids: transactions and locks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.cypress.attributes import lock_value
from headrace_ytsaurus.endpoint.ids import NULL_ID, ObjectType, is_id, kind_of
from headrace_ytsaurus.endpoint.values import time_text, with_attributes
from headrace_ytsaurus.wire.paths import YPath

TRANSACTIONS = "//sys/transactions"


def by_id(path: YPath) -> YPath:
    """Convert ``//sys/transactions/<id>/@...`` to ``#<id>/@...``; return other paths unchanged."""
    if path.attribute is None or path.root != "/" or path.nodes[:2] != ("sys", "transactions"):
        return path
    known = len(path.nodes) == 3 and is_id(path.nodes[2])
    return replace(path, root=f"#{path.nodes[2]}", nodes=()) if known else path


def transactions_with(context: Context, wanted: Sequence[str]) -> dict[str, Any]:
    """Return the value of `TRANSACTIONS`: an entity for each transaction, with the requested attributes."""
    found = {each.id: _transaction(context, each.id) for each in context.transactions.all()}
    return {
        transaction: with_attributes(None, {name: known[name] for name in wanted if name in known})
        for transaction, known in found.items()
        if known is not None
    }


def find_object(context: Context, object_id: str) -> Mapping[str, Any] | None:
    """Return the attributes of the transaction or lock with an id, None if there is none."""
    kind = kind_of(object_id)
    if kind == ObjectType.LOCK:
        lock = context.cypress.locks.find(object_id)
        if lock is None:
            return None
        return {**lock_value(lock), "type": "lock", "node_id": lock.node, "creation_time": time_text(lock.created)}
    if kind in (ObjectType.TRANSACTION, ObjectType.NESTED_TRANSACTION):
        return _transaction(context, object_id)
    if kind == ObjectType.ATOMIC_TABLET_TRANSACTION:
        return context.tablet_transactions.attributes(object_id)
    return None


def _transaction(context: Context, transaction_id: str) -> Mapping[str, Any] | None:
    found = context.transactions.find(transaction_id)
    if found is None:
        return None
    nested = found.parent != ""
    locks = context.cypress.locks.of_transaction(found.id)
    return {
        **found.attributes,
        "id": found.id,
        "type": "nested_transaction" if nested else "transaction",
        "timeout": found.timeout,
        "deadline": None if found.deadline is None else time_text(found.deadline),
        "start_time": time_text(found.started),
        "parent_id": found.parent or NULL_ID,
        "owner": found.user,
        "nested_transaction_ids": [other.id for other in context.transactions.nested(found.id)],
        "lock_ids": [lock.id for lock in locks],
        "locked_node_ids": sorted({lock.node for lock in locks}),
        "branched_node_ids": sorted({entry[0] for entry in context.cypress.tree.own_entries(found.id)}),
    }
