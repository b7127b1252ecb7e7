"""Removal of nodes that expire, at a time or after a period without use.

A node with ``@expiration_time`` is removed at this time, a node with ``@expiration_timeout`` (ms) when it has not been
used for this period, both with their descendants. A locked node is removed after its locks are released. The process
keeps the times of use in memory; its start counts as a use of all nodes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.cypress.operations import remove_node
from headrace_ytsaurus.endpoint.storage.tree import EXPIRING, TRUNK
from headrace_ytsaurus.endpoint.values import moment_of
from headrace_ytsaurus.wire.errors import YtError
from headrace_ytsaurus.wire.yson import documents

TIME, TIMEOUT = EXPIRING
_log = logging.getLogger("headrace")


class Uses:
    """Times of the last use of nodes with a timeout, µs since 1970."""

    def __init__(self) -> None:
        self._started = _now()
        self._used: dict[str, int] = {}

    def used(self, node_id: str) -> None:
        """Record a use of a node, if it has a timeout."""
        if node_id in self._used:
            self._used[node_id] = _now()

    def last(self, node_id: str) -> int:
        """Return the time of the last use of a node with a timeout."""
        return self._used.setdefault(node_id, self._started)

    def changed(self, node_id: str, moment: int) -> int:
        """Record a change of a node, which is a use too; return the time of the last use."""
        self._used[node_id] = max(moment, self.last(node_id))
        return self._used[node_id]

    def keep_only(self, nodes: Mapping[str, Any]) -> None:
        """Remove all nodes without a timeout."""
        for node_id in self._used.keys() - nodes.keys():
            self._used.pop(node_id, None)


def remove_expired(context: Context, uses: Uses) -> None:
    """Remove the expired nodes."""
    expiring = context.cypress.tree.expiring()
    uses.keep_only(expiring)
    for node_id, attributes in expiring.items():
        if not _is_over(context, uses, node_id, attributes):
            continue
        try:
            with context.database.write():
                node = context.cypress.by_id((TRUNK,), node_id)
                if node is not None:
                    remove_node(context, node)
        except YtError as error:
            _log.debug("an expired node cannot be removed yet", extra={"facts": {"node": node_id, "why": str(error)}})


def _is_over(context: Context, uses: Uses, node_id: str, attributes: Mapping[str, bytes]) -> bool:
    now = _now()
    if TIME in attributes and moment_of(documents.loads(attributes[TIME]), TIME) <= now:
        return True
    if TIMEOUT not in attributes:
        return False
    timeout = documents.loads(attributes[TIMEOUT]) * 1000
    if uses.last(node_id) + timeout > now:
        return False
    with context.database.read():
        node = context.cypress.by_id((TRUNK,), node_id)
        return node is not None and uses.changed(node_id, context.cypress.changed(node)) + timeout <= now


def _now() -> int:
    return time.time_ns() // 1000
