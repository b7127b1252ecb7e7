"""Creating, copying, moving and removing nodes, together with the resources of their types."""

from __future__ import annotations

from typing import Any

from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.cypress.attributes import check_name, is_builtin, valid_attribute
from headrace_ytsaurus.endpoint.cypress.node import Node
from headrace_ytsaurus.endpoint.cypress.node_types import NodeType, node_type
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.storage.part_lists import Version
from headrace_ytsaurus.endpoint.storage.tree import Facet
from headrace_ytsaurus.endpoint.transactions.locks import EXCLUSIVE
from headrace_ytsaurus.wire.paths import escape


def make_node(
    context: Context, parent: Node, name: str | None, kind: NodeType, attributes: dict[str, Any], alias: str = ""
) -> Node:
    """Create a node under a free name; by default, its id is its name."""
    cypress = context.cypress
    node = cypress.insert(context.now, parent, name, kind.name, kind.object_type)
    remaining = kind.create(context, node, attributes, alias or kind.name)
    for key, value in remaining.items():
        check_name(key)
        if not is_builtin(kind, key):
            cypress.put_attribute(node, key, valid_attribute(key, value))
        elif not kind.set_attribute(context, node, key, value):
            raise refused(f'Builtin attribute "{key}" cannot be set')
    return node


def copy_node(context: Context, parent: Node, name: str, source: Node, *, as_old: bool = False) -> Node:
    """Copy a node without its children to a free name.

    Args:
        as_old: the copy has the creation time of the source.
    """
    cypress, tree, kind = context.cypress, context.cypress.tree, node_type(source)
    node = cypress.insert(context.now, parent, name, kind.name, kind.object_type)
    if as_old:
        tree.put(node.chain[0], node.id, Facet.TYPE, "", f"{source.type} {cypress.created(source)}")
    for facet in (Facet.ATTRIBUTE, Facet.CONTENT):
        for key, value in tree.items(source.chain, source.id, facet).items():
            tree.put(node.chain[0], node.id, facet, key, value)
    version = tree.version(source.chain, source.id)
    if version is not None:
        tree.set_version(node.chain, node.id, Version(added=version.whole))
    kind.copy(context, node, source)
    return node


def move_node(context: Context, node: Node, parent: Node, name: str) -> Node:
    """Move a node with its descendants to a free name."""
    cypress, old = context.cypress, node.path
    cypress.detach(context.now, node)
    cypress.attach(context.now, parent, name, node.id)
    moved = Node(node.id, node.type, f"{parent.path}/{escape(name)}", node.chain)
    node_type(moved).move(context, moved, old)
    for other in cypress.below(moved):
        node_type(other).move(context, other, old + other.path[len(moved.path) :])
    return moved


def remove_node(context: Context, node: Node) -> None:
    """Remove a node with its descendants, with exclusive locks."""
    cypress = context.cypress
    nodes = [node, *cypress.below(node)]
    cypress.check_not_protected(nodes)
    for each in nodes:
        cypress.locks.need(each.chain, each.id, each.path, EXCLUSIVE)
    cypress.detach(context.now, node)
    for each in reversed(nodes):
        if cypress.tree.get(each.chain[1:], each.id, Facet.TYPE) is None:
            # Only this transaction sees the node: it is outside of transactions, or was created in this one.
            node_type(each).remove(context, each)
            cypress.tree.forget(each.chain[0], each.id)
        else:
            cypress.tree.put(each.chain[0], each.id, Facet.TYPE, "", None)


def release_node(context: Context, chain: tuple[str, ...], node_id: str) -> None:
    """Release the resources of a node whose last version is about to be deleted; the chain still sees the node."""
    node = context.cypress.by_id(chain, node_id)
    assert node is not None
    node_type(node).remove(context, node)
