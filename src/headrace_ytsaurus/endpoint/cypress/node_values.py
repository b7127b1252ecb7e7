"""Conversion between nodes, with their descendants, and the values of ``get`` and ``set``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.cypress.attributes import all_attributes, attribute, write_attribute
from headrace_ytsaurus.endpoint.cypress.basic_types import LIST_NODE, MAP_NODE, TRANSACTION_MAP, ValueNode
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.cypress.node import Node, ResolvedPath
from headrace_ytsaurus.endpoint.cypress.node_types import NODE_TYPES, node_type
from headrace_ytsaurus.endpoint.cypress.objects import transactions_with
from headrace_ytsaurus.endpoint.cypress.operations import make_node, remove_node
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.names import name_of
from headrace_ytsaurus.endpoint.names import value_of as name_value
from headrace_ytsaurus.endpoint.values import (
    MISSING,
    attributes_of,
    look_inside,
    remove_inside,
    set_inside,
    type_of,
    with_attributes,
)
from headrace_ytsaurus.wire.paths import YPath
from headrace_ytsaurus.wire.yson.scalars import as_flag


def node_value(context: Context, node: Node, wanted: Sequence[str] = (), *, top: bool = True) -> Any:
    """Return a node as a value, with the requested attributes of it and its descendants."""
    cypress = context.cypress
    value: Any
    if not top and node.has_children and as_flag(attribute(context, node, "opaque")):
        value = None
    elif node.has_children:
        children = cypress.children(node).items()
        value = {name_value(name): node_value(context, child, wanted, top=False) for name, child in children}
    elif node_type(node) is TRANSACTION_MAP:
        value = transactions_with(context, wanted)
    elif node_type(node) is LIST_NODE and "type" in wanted:
        value = [_with_types(item) for item in node_type(node).value(context, node)]
    else:
        value = node_type(node).value(context, node)
    return with_attributes(value, all_attributes(context, node, wanted) if wanted else {})


def _with_types(value: Any) -> Any:
    """Return a value with the attribute ``type`` on it and on all values inside; on a cluster they are nodes."""
    kind = type_of(value)
    if isinstance(value, Mapping):
        value = {name: _with_types(inner) for name, inner in value.items()}
    elif isinstance(value, list):
        value = [_with_types(item) for item in value]
    return with_attributes(value, {**attributes_of(value), "type": kind})


def value_at(context: Context, path: YPath, found: ResolvedPath, wanted: Sequence[str] = ()) -> Any:
    """Return a node as a value, or a value inside of its content."""
    if not found.rest:
        return node_value(context, found.node, wanted)
    inside = look_inside(node_type(found.node).value(context, found.node), found.rest)
    if inside is MISSING or found.node.has_children:
        raise context.cypress.not_found(path, found)
    return inside


def is_there(context: Context, found: ResolvedPath) -> bool:
    """Return whether a path resolves to a node, or to a value inside of its content."""
    if not found.rest:
        return True
    if found.node.has_children:
        return False
    return look_inside(node_type(found.node).value(context, found.node), found.rest) is not MISSING


def set_at(
    context: Context, path: YPath, found: ResolvedPath, value: Any, *, recursive: bool = False, force: bool = False
) -> None:
    """Set the value of a path: change a node, create one with descendants, or change a value inside of one."""
    node, rest = found.node, found.rest
    if not rest:
        _set_node(context, node, value, force=force)
    elif not node.has_children:
        kind = _holder(context.cypress, path, found)
        changed = set_inside(kind.value(context, node), rest, value, recursive=recursive)
        if changed is MISSING:
            raise context.cypress.not_found(path, found)
        kind.set_value(context, node, changed)
    else:
        if len(rest) > 1 and not recursive:
            raise context.cypress.not_found(path, found)
        for name in rest[:-1]:
            node = make_node(context, node, name, MAP_NODE, {})
        make_from(context, node, rest[-1], value)


def _set_node(context: Context, node: Node, value: Any, *, force: bool) -> None:
    kind = node_type(node)
    if isinstance(kind, ValueNode):
        kind.set_value(context, node, value)
    elif kind is not MAP_NODE:
        raise refused(f'"set" is not supported by nodes of type "{kind.name}"', received=node.path)
    elif not isinstance(value, Mapping):
        its = type_of(value).removesuffix("_node")
        raise refused(f'Cannot update "map" node with "{its}" value; types must match', received=node.path)
    elif not force:
        raise refused(
            f'"set" command without "force" flag is forbidden: {node.path} is a map_node, and would lose its children',
            remedy="set its children one by one, or pass force",
        )
    else:
        # The lock prevents concurrent creation of children that the new value does not have.
        context.cypress.locks.need(node.chain, node.id, node.path)
        for child in context.cypress.children(node).values():
            remove_node(context, child)
        for name, inner in value.items():
            make_from(context, node, name_of(name), inner)
    for name, inner in attributes_of(value).items():
        write_attribute(context, node, [name], inner, node.path)


def make_from(context: Context, parent: Node, name: str, value: Any) -> Node:
    """Create a node from a value; for a map, with its descendants."""
    kind = type_of(value)
    if kind == "entity":
        raise refused("Cannot create a node from an entity", received=f"{parent.path}/{name}")
    attributes = dict(attributes_of(value))
    node = make_node(context, parent, name, NODE_TYPES[kind], attributes)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            make_from(context, node, name_of(key), inner)
    else:
        holder = NODE_TYPES[kind]
        assert isinstance(holder, ValueNode)
        holder.set_value(context, node, value)
    return node


def remove_at(context: Context, path: YPath, found: ResolvedPath, *, force: bool = False) -> None:
    """Remove a value inside of a node's content."""
    kind = _holder(context.cypress, path, found)
    changed = remove_inside(kind.value(context, found.node), found.rest)
    if changed is not MISSING:
        kind.set_value(context, found.node, changed)
    elif not force:
        raise context.cypress.not_found(path, found)


def _holder(cypress: Cypress, path: YPath, found: ResolvedPath) -> ValueNode:
    kind = node_type(found.node)
    if not isinstance(kind, ValueNode):
        raise cypress.not_found(path, found)
    return kind
