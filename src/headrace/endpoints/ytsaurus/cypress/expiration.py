"""Nodes that end by themselves: at a time, or when nobody has looked for them for a while.

A node with ``@expiration_time`` is removed when that has come, one with ``@expiration_timeout`` (ms) when it was not
used for so long; with all that is below it. One that a transaction has locked stays until it is free. When a node was
used is known to the process alone: a start counts as a use of all nodes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.endpoints.ytsaurus.errors import refused
from headrace.endpoints.ytsaurus.parameters import as_text, is_boolean
from headrace.endpoints.ytsaurus.periodic import at_start, periodic
from headrace.endpoints.ytsaurus.storage.tree import EXPIRING, TRUNK
from headrace.endpoints.ytsaurus.values import time_of, time_text
from headrace.wire.yson import documents
from headrace.wire.ytsaurus.errors import YtError

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.cluster import Cluster

TIME, TIMEOUT = EXPIRING
_LONGEST = 1 << 40
_LATEST = 253402300799999
_log = logging.getLogger("headrace")


def checked(name: str, value: Any) -> Any:
    """Return the value of an attribute as it is kept; of those that end a node, in their one form.

    Raises:
        YtError: it is neither a time nor a number of milliseconds.
    """
    if name not in EXPIRING:
        return value
    whole = isinstance(value, int) and not is_boolean(value)
    if name == TIMEOUT:
        if whole and 0 <= value <= _LONGEST:
            return int(value)
        raise refused(f'Error setting attribute "{name}"', received=repr(value)[:100], valid="milliseconds")
    if whole and 0 <= value <= _LATEST:
        return time_text(int(value) * 1000)
    moment = time_of(as_text(value) or "")
    if moment is None:
        valid = "a time such as 2030-01-31T00:00:00.000000Z, or milliseconds since 1970"
        raise refused(f'Error setting attribute "{name}"', received=repr(value)[:100], valid=valid)
    return time_text(moment)


class Uses:
    """When nodes with a timeout were last used (µs since 1970)."""

    def __init__(self, cluster: Cluster) -> None:
        self._started = _now()
        self._used: dict[str, int] = {}

    def used(self, node_id: str) -> None:
        """Note that somebody has found a node; it is remembered if it has a timeout."""
        if node_id in self._used:
            self._used[node_id] = _now()

    def last(self, node_id: str) -> int:
        """Return when a node with a timeout was last used."""
        return self._used.setdefault(node_id, self._started)

    def changed(self, node_id: str, moment: int) -> int:
        """Note when a node was changed, which is a use as well; return when it was last used."""
        self._used[node_id] = max(moment, self.last(node_id))
        return self._used[node_id]

    def keep_only(self, nodes: Mapping[str, Any]) -> None:
        """Forget all nodes but those that still have a timeout."""
        for node_id in self._used.keys() - nodes.keys():
            self._used.pop(node_id, None)


@at_start
def note_uses(cluster: Cluster) -> None:
    """Have the tree tell which nodes are used."""
    cluster.cypress.on_use = cluster.part(Uses).used


@periodic(0.5)
def remove_expired(cluster: Cluster) -> None:
    """Remove the nodes whose time is over."""
    uses = cluster.part(Uses)
    expiring = cluster.cypress.tree.expiring()
    uses.keep_only(expiring)
    for node_id, attributes in expiring.items():
        if not _is_over(cluster, node_id, attributes):
            continue
        context = cluster.context()
        try:
            with cluster.database.write():
                node = cluster.cypress.by_id((TRUNK,), node_id)
                if node is not None:
                    cluster.cypress.remove(context, node)
        except YtError as error:
            _log.debug("a node that has expired stays for now", extra={"facts": {"node": node_id, "why": str(error)}})


def _is_over(cluster: Cluster, node_id: str, attributes: Mapping[str, bytes]) -> bool:
    now = _now()
    if TIME in attributes and (time_of(documents.loads(attributes[TIME])) or now) <= now:
        return True
    if TIMEOUT not in attributes:
        return False
    uses, timeout = cluster.part(Uses), documents.loads(attributes[TIMEOUT]) * 1000
    if uses.last(node_id) + timeout > now:
        return False
    with cluster.database.read():
        node = cluster.cypress.by_id((TRUNK,), node_id)
        return node is not None and uses.changed(node_id, cluster.cypress.changed(node)) + timeout <= now


def _now() -> int:
    return time.time_ns() // 1000
