"""Objects that are known by their ids and are no nodes: transactions and locks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.endpoints.ytsaurus.cypress.attributes import lock_value
from headrace.endpoints.ytsaurus.ids import NULL_ID, ObjectType, is_id, kind_of
from headrace.endpoints.ytsaurus.transactions.types import TRANSACTION_TYPES
from headrace.endpoints.ytsaurus.values import time_text
from headrace.wire.ytsaurus.paths import YPath

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.commands import Context


TRANSACTIONS = "//sys/transactions"


def by_id(path: YPath) -> YPath:
    """Return a path to an attribute of a transaction, if it is one through all transactions, as one from its id."""
    if path.attribute is None or path.root != "/" or path.nodes[:2] != ("sys", "transactions"):
        return path
    known = len(path.nodes) == 3 and is_id(path.nodes[2])
    return replace(path, root=f"#{path.nodes[2]}", nodes=()) if known else path


def find_object(context: Context, object_id: str) -> Mapping[str, Any] | None:
    """Return the attributes of a transaction or a lock, None if an id is of neither."""
    kind = kind_of(object_id)
    if kind == ObjectType.LOCK:
        lock = context.cypress.locks.find(object_id)
        if lock is None:
            return None
        return {**lock_value(lock), "type": "lock", "node_id": lock.node, "creation_time": time_text(lock.created)}
    if kind in (ObjectType.TRANSACTION, ObjectType.NESTED_TRANSACTION):
        return _transaction(context, object_id)
    for transaction_type in TRANSACTION_TYPES.values():
        if kind == transaction_type.object_type:
            return transaction_type.attributes(context, object_id)
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
