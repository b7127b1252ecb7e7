"""The types of nodes: what a node is beyond its place in the tree and the attributes that users give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from headrace.endpoints.ytsaurus.context import Context
from headrace.endpoints.ytsaurus.cypress.node import Node
from headrace.endpoints.ytsaurus.ids import ObjectType

NOTHING: Any = type("Nothing", (), {"__repr__": lambda _: "NOTHING"})()
"""What `NodeType.attribute` returns for a name that the type does not know."""


class NodeType:
    """A type of nodes. The base class does what a node needs that is only a name with attributes.

    Every method is called inside the transaction of the store in which the command runs, so whatever a method writes to
    the store is undone if the command fails. Methods that are called while something is read may not write.

    Attributes:
        name: what ``@type`` says.
        object_type: what ids of such nodes say.
        aliases: names that ``create`` takes for it besides ``name``, such as ``queue_consumer`` of a table.
        virtual: names of attributes that the type itself answers, and that cannot be set unless `set_attribute` takes
            them.
        cheap: those of them that ``get path/@`` gives, and others that users may set; of the rest it gives the names
            only.
        settable: those that users may set, though they are not their own; what is set is kept as an attribute.
    """

    name: ClassVar[str]
    object_type: ClassVar[ObjectType]
    aliases: ClassVar[Sequence[str]] = ()
    virtual: ClassVar[Sequence[str]] = ()
    cheap: ClassVar[Sequence[str]] = ()
    settable: ClassVar[Sequence[str]] = ()

    def create(self, context: Context, node: Node, attributes: Mapping[str, Any], alias: str) -> Mapping[str, Any]:
        """Make what belongs to a new node, which is in the tree already but has no attributes.

        Args:
            attributes: what the client gave.
            alias: the name of the type that the client gave.

        Returns:
            What is to be kept as attributes of the node; the others of ``attributes`` are known by the type itself.
        """
        return attributes

    def attribute(self, context: Context, node: Node, name: str) -> Any:
        """Return the value of an attribute of the type's own, `NOTHING` if it has none of this name.

        What is kept as an attribute goes before.
        """
        return NOTHING

    def set_attribute(self, context: Context, node: Node, name: str, value: Any) -> bool:
        """Take a new value of an attribute; False lets it be kept as an attribute of the user."""
        return False

    def remove_attribute(self, context: Context, node: Node, name: str) -> bool:
        """Take an attribute away that the type itself answers; False if it is not such a one."""
        return False

    def value(self, context: Context, node: Node) -> Any:
        """Return what ``get`` of the node answers; None is an entity."""
        return None

    def remove(self, context: Context, node: Node) -> None:
        """The node is gone for good: removed outside of transactions, by a commit, or its creation was aborted."""

    def move(self, context: Context, node: Node, source: str) -> None:
        """The node has a new path, after ``source``; also called for all nodes below the one that was moved."""

    def copy(self, context: Context, node: Node, source: Node) -> None:
        """The node was made as a copy of another one and has its attributes, and its content if it has one."""


NODE_TYPES: dict[str, NodeType] = {}
"""Name of a type → type, filled by `register` as modules are imported (see `headrace.endpoints.ytsaurus.cluster`)."""
ALIASES: dict[str, NodeType] = {}
"""Name that ``create`` takes → type."""


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
