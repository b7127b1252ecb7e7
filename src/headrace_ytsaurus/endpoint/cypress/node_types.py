"""The base class of node types: the properties of a node beyond its place in the tree and its users' attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.cypress.node import Node
from headrace_ytsaurus.endpoint.ids import ObjectType

NOTHING: Any = type("Nothing", (), {"__repr__": lambda _: "NOTHING"})()
"""The result of `NodeType.attribute` for an unknown name."""


class NodeType:
    """A type of nodes. The base class is enough for nodes that have only a name and attributes.

    Every method runs in the command's transaction of the store, so its writes are undone if the command fails. Methods
    that read must not write.

    Attributes:
        name: the value of ``@type``.
        object_type: the type in the ids of such nodes.
        aliases: other names for ``create``, for example ``queue_consumer`` for a table.
        virtual: names of attributes that the type computes. They can only be set if `set_attribute` accepts them.
        cheap: names of the attributes whose values ``get path/@`` returns; for others of `virtual`, it returns only the
            names.
        settable: names of system attributes that users can set; their values are saved.
    """

    name: ClassVar[str]
    object_type: ClassVar[ObjectType]
    aliases: ClassVar[Sequence[str]] = ()
    virtual: ClassVar[Sequence[str]] = ()
    cheap: ClassVar[Sequence[str]] = ()
    settable: ClassVar[Sequence[str]] = ()

    def create(self, context: Context, node: Node, attributes: Mapping[str, Any], alias: str) -> Mapping[str, Any]:
        """Create the resources of a new node, which is already in the tree but has no attributes.

        Args:
            attributes: from the client.
            alias: the name of the type from the client.

        Returns:
            The attributes to be saved with the node. The type handles the others itself.
        """
        return attributes

    def attribute(self, context: Context, node: Node, name: str) -> Any:
        """Return the value of a computed attribute, `NOTHING` for an unknown name; saved attributes have precedence."""
        return NOTHING

    def set_attribute(self, context: Context, node: Node, name: str, value: Any) -> bool:
        """Set an attribute and return True; return False to have it saved as a user attribute."""
        return False

    def remove_attribute(self, context: Context, node: Node, name: str) -> bool:
        """Remove a computed attribute and return True; return False if the type does not handle it."""
        return False

    def value(self, context: Context, node: Node) -> Any:
        """Return the node's value for ``get``; None is an entity."""
        return None

    def remove(self, context: Context, node: Node) -> None:
        """Release the resources of a node when its deletion is final: by a commit, or by the abort of its creation."""

    def move(self, context: Context, node: Node, source: str) -> None:
        """Handle the move of the node, or of a node above it, from the path ``source``."""

    def copy(self, context: Context, node: Node, source: Node) -> None:
        """Copy the resources of another node. Attributes and content are already copied."""


NODE_TYPES: dict[str, NodeType] = {}
"""Name → type. Modules that define types fill it with `register` when they are imported."""
ALIASES: dict[str, NodeType] = {}
"""Name or alias for ``create`` → type."""


def node_type(node: Node) -> NodeType:
    """Return the type of a node."""
    return NODE_TYPES[node.type]


Registered = TypeVar("Registered", bound=NodeType)


def register(node_type: Registered) -> Registered:
    """Add a type to `NODE_TYPES`, and return it."""
    if node_type.name in NODE_TYPES:
        raise AssertionError(f"two types of one name: {node_type.name}")
    NODE_TYPES[node_type.name] = node_type
    for name in (node_type.name, *node_type.aliases):
        ALIASES[name] = node_type
    return node_type
