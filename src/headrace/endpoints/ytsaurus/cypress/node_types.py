"""The types of nodes: what a node is beyond its place in the tree and the attributes that users give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.endpoints.ytsaurus.ids import ObjectType
from headrace.endpoints.ytsaurus.storage.tree import TRUNK

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.commands import Context

NOTHING: Any = type("Nothing", (), {"__repr__": lambda _: "NOTHING"})()
"""What `NodeType.attribute` returns for a name that the type does not know."""


@dataclass(frozen=True)
class Node:
    """A node, as one transaction sees it.

    Attributes:
        id: its id, for ever.
        type: the name of its type.
        path: where it is, without links: ``//tmp/q``.
        chain: the master transaction through which it is seen, those that it is nested in, and `TRUNK` in the end.
    """

    id: str
    type: str
    path: str
    chain: tuple[str, ...] = (TRUNK,)

    @property
    def transaction(self) -> str | None:
        """The master transaction through which the node is seen; None outside of any."""
        return self.chain[0] or None

    @property
    def kind(self) -> NodeType:
        """The node's type."""
        return NODE_TYPES[self.type]


class NodeType:
    """A type of nodes. The base class does what a node needs that is only a name with attributes.

    Every method is called inside the transaction of the store in which the command runs, so whatever a method writes to
    the store is undone if the command fails. Methods that are called while something is read may not write.

    Attributes:
        name: what ``@type`` says.
        object_type: what ids of such nodes say.
        aliases: names that ``create`` takes for it besides ``name``, such as ``queue_consumer`` of a table.
        has_children: such nodes are maps of other nodes.
        virtual: names of attributes that the type itself answers, and that cannot be set unless `set_attribute` takes
            them.
        cheap: those of them that ``get path/@`` gives, and others that users may set; of the rest it gives the names
            only.
        settable: those that users may set, though they are not their own; what is set is kept as an attribute.
    """

    name: ClassVar[str]
    object_type: ClassVar[ObjectType]
    aliases: ClassVar[Sequence[str]] = ()
    has_children: ClassVar[bool] = False
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

    def after_create(self, context: Context, node: Node) -> None:
        """Do what needs the node with its attributes."""

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


def register(node_type: NodeType) -> NodeType:
    """Make a type of nodes known, and return it."""
    if node_type.name in NODE_TYPES:
        raise AssertionError(f"two types of one name: {node_type.name}")
    NODE_TYPES[node_type.name] = node_type
    for name in (node_type.name, *node_type.aliases):
        ALIASES[name] = node_type
    return node_type
