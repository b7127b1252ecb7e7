"""The types of nodes except tables: maps, values, documents, links, files, tablet cells and system objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.cypress.node import Node
from headrace_ytsaurus.endpoint.cypress.node_types import NOTHING, NodeType, register
from headrace_ytsaurus.endpoint.errors import refused, unresolved
from headrace_ytsaurus.endpoint.ids import ObjectType
from headrace_ytsaurus.endpoint.values import type_of
from headrace_ytsaurus.wire.errors import YtError
from headrace_ytsaurus.wire.paths import PathError, parse_path
from headrace_ytsaurus.wire.yson import documents
from headrace_ytsaurus.wire.yson.scalars import as_text


class MapNode(NodeType):
    """A map of names to nodes."""

    name = "map_node"
    object_type = ObjectType.MAP_NODE
    has_children = True
    virtual = cheap = ("count",)

    def attribute(self, context: Context, node: Node, name: str) -> Any:
        return context.cypress.count(node) if name == "count" else NOTHING


class ValueNode(NodeType):
    """A node with one value of a certain type as its content."""

    def __init__(self, name: str, object_type: ObjectType, empty: Any) -> None:
        # One class serves all types, which differ only in these attributes.
        self.name = name  # type: ignore[misc]
        self.object_type = object_type  # type: ignore[misc]
        self._empty = empty

    def create(self, context: Context, node: Node, attributes: Mapping[str, Any], alias: str) -> Mapping[str, Any]:
        kept = dict(attributes)
        # A document can be created with its content, in the attribute ``value``.
        value = kept.pop("value", self._empty) if self.name == "document" else self._empty
        context.cypress.set_content(context.now, node, documents.dumps(value, text=False))
        return kept

    def value(self, context: Context, node: Node) -> Any:
        return documents.loads(context.cypress.content(node) or b"#")

    def set_value(self, context: Context, node: Node, value: Any) -> None:
        """Replace the value.

        Raises:
            YtError: the value has another type.
        """
        kind = type_of(value)
        if self.name == "uint64_node" and kind == "int64_node" and value >= 0:
            kind = self.name
        if self.name not in ("document", kind):
            mine, its = self.name.removesuffix("_node"), kind.removesuffix("_node")
            problem = f'Cannot update "{mine}" node with "{its}" value; types must match'
            raise refused(problem, received=repr(value)[:200])
        context.cypress.set_content(context.now, node, documents.dumps(value, text=False))

    def attribute(self, context: Context, node: Node, name: str) -> Any:
        value = self.value(context, node) if name in ("count", "value") else None
        if name == "count" and isinstance(value, list | Mapping):
            return len(value)
        return value if name == "value" and self.name == "document" else NOTHING

    def set_attribute(self, context: Context, node: Node, name: str, value: Any) -> bool:
        if name != "value" or self.name != "document":
            return False
        self.set_value(context, node, value)
        return True


class Link(NodeType):
    """A link to another node."""

    name = "link"
    object_type = ObjectType.LINK
    virtual = cheap = ("broken", "target_path")

    def create(self, context: Context, node: Node, attributes: Mapping[str, Any], alias: str) -> Mapping[str, Any]:
        kept = dict(attributes)
        target = as_text(kept.pop("target_path", None))
        if target is None:
            raise refused("a link needs the attribute target_path", valid="a text with a path")
        try:
            path = parse_path(target)
        except PathError as error:
            raise unresolved(target, str(error)) from None
        if path.attribute is not None:
            raise refused("a link leads to a node", received=path.text, valid="a path without an attribute")
        context.cypress.set_content(context.now, node, path.text.encode())
        return kept

    def attribute(self, context: Context, node: Node, name: str) -> Any:
        if name == "target_path":
            return (context.cypress.content(node) or b"").decode()
        if name != "broken":
            return NOTHING
        try:
            return bool(context.cypress.look(node.chain, parse_path(node.path)).rest)
        except YtError:
            return True


class File(NodeType):
    """A file. Copies and snapshots share its parts."""

    name = "file"
    object_type = ObjectType.FILE
    cheap = (
        "chunk_count",
        "compressed_data_size",
        "compression_codec",
        "replication_factor",
        "uncompressed_data_size",
    )
    virtual = (*cheap, "chunk_ids")

    def create(self, context: Context, node: Node, attributes: Mapping[str, Any], alias: str) -> Mapping[str, Any]:
        context.cluster.contents.replace(node.chain, node.id, ())
        return attributes

    def attribute(self, context: Context, node: Node, name: str) -> Any:
        if name == "replication_factor":
            return 1
        if name == "compression_codec":
            return "none"
        if name not in self.virtual:
            return NOTHING
        if name == "chunk_ids":
            return [part.chunk_id for part in context.cluster.contents.parts(node.chain, node.id)]
        parts, _, size = context.cluster.contents.totals(node.chain, node.id)
        return parts if name == "chunk_count" else size

    def set_attribute(self, context: Context, node: Node, name: str, value: Any) -> bool:
        # Clients can set them, but the store does not replicate or compress files.
        return name in ("replication_factor", "compression_codec")


class TabletCell(NodeType):
    """A tablet cell. The endpoint needs none, but clients check that there is a healthy one."""

    name = "tablet_cell"
    object_type = ObjectType.TABLET_CELL
    virtual = cheap = ("health", "status")

    def attribute(self, context: Context, node: Node, name: str) -> Any:
        if name == "health":
            return "good"
        return {"health": "good", "decommissioned": False} if name == "status" else NOTHING


class NamedObject(NodeType):
    """An account, a user or a group. The endpoint only saves its name and attributes."""

    virtual: ClassVar[Sequence[str]] = ("name",)
    cheap = virtual

    def __init__(self, name: str, object_type: ObjectType) -> None:
        # One class serves all three, which differ only in these attributes.
        self.name = name  # type: ignore[misc]
        self.object_type = object_type  # type: ignore[misc]

    def create(self, context: Context, node: Node, attributes: Mapping[str, Any], alias: str) -> Mapping[str, Any]:
        return {name: value for name, value in attributes.items() if name != "name"}

    def attribute(self, context: Context, node: Node, name: str) -> Any:
        return context.cypress.name(node) if name == "name" else NOTHING


class Group(NamedObject):
    """A group. Users have all permissions, so no group has members."""

    virtual = cheap = ("members", "name")

    def attribute(self, context: Context, node: Node, name: str) -> Any:
        return [] if name == "members" else super().attribute(context, node, name)


class TransactionMap(NodeType):
    """The map of master transactions by id; their properties are attributes."""

    name = "transaction_map"
    object_type = ObjectType.TRANSACTION_MAP
    virtual = cheap = ("count",)

    def value(self, context: Context, node: Node) -> Any:
        found = [transaction.id for transaction in context.transactions.all()]
        return dict.fromkeys(each for each in found if context.transactions.find(each) is not None)

    def attribute(self, context: Context, node: Node, name: str) -> Any:
        return len(self.value(context, node)) if name == "count" else NOTHING


MAP_NODE = register(MapNode())
DOCUMENT = register(ValueNode("document", ObjectType.DOCUMENT, None))
LIST_NODE = ValueNode("list_node", ObjectType.LIST_NODE, [])
register(LIST_NODE)
for _name, _type, _empty in (
    ("string_node", ObjectType.STRING_NODE, ""),
    ("int64_node", ObjectType.INT64_NODE, 0),
    ("uint64_node", ObjectType.UINT64_NODE, 0),
    ("double_node", ObjectType.DOUBLE_NODE, 0.0),
    ("boolean_node", ObjectType.BOOLEAN_NODE, False),
):
    register(ValueNode(_name, _type, _empty))
LINK = register(Link())
FILE = register(File())
TABLET_CELL = register(TabletCell())
ACCOUNT = register(NamedObject("account", ObjectType.ACCOUNT))
USER = register(NamedObject("user", ObjectType.USER))
GROUP = register(Group("group", ObjectType.GROUP))
TRANSACTION_MAP = register(TransactionMap())
