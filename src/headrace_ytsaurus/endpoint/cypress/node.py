"""A node of Cypress as one transaction sees it, and the result of following a path."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_ytsaurus.endpoint.storage.tree import TRUNK

MAP_NODE_TYPE = "map_node"
"""The only type of nodes that have children."""


@dataclass(frozen=True)
class Node:
    """A node, as one transaction sees it.

    Attributes:
        id: never changes.
        type: the name of its type, see `headrace_ytsaurus.endpoint.cypress.node_types`.
        path: without links, for example ``//tmp/q``.
        chain: the master transaction that sees it, the transactions that this one is nested in, and `TRUNK`.
    """

    id: str
    type: str
    path: str
    chain: tuple[str, ...] = (TRUNK,)

    @property
    def transaction(self) -> str | None:
        """The master transaction that sees the node; None outside of transactions."""
        return self.chain[0] or None

    @property
    def has_children(self) -> bool:
        return self.type == MAP_NODE_TYPE


@dataclass(frozen=True)
class ResolvedPath:
    """The existing part of a path.

    Attributes:
        node: the last node of the path that exists.
        rest: the names after it, which lead into its content or to a missing node.
    """

    node: Node
    rest: tuple[str, ...]
