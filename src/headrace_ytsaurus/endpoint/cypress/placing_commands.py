"""The commands that add nodes to the tree: create, copy, move and link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace_ytsaurus.endpoint.context import Answer, Context
from headrace_ytsaurus.endpoint.cypress.basic_types import LINK, MAP_NODE, NamedObject
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.cypress.inner_nodes import make_inside
from headrace_ytsaurus.endpoint.cypress.node import Node
from headrace_ytsaurus.endpoint.cypress.node_commands import chain_of
from headrace_ytsaurus.endpoint.cypress.node_types import ALIASES, NodeType, node_type
from headrace_ytsaurus.endpoint.cypress.operations import copy_node, make_node, move_node, remove_node
from headrace_ytsaurus.endpoint.errors import already_exists, refused
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.storage.tree import EXPIRING, Facet
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.paths import YPath
from headrace_ytsaurus.wire.yson.scalars import as_text

TABLET_CELLS = "//sys/tablet_cells"
CELL = "tablet_cell"


@dataclass(frozen=True)
class _Destination:
    """The destination of a node.

    Attributes:
        parent: the last existing node of the path.
        missing: names of the nodes to create below it.
        name: the name in the last of these.
        taken: the existing node at the path, if any.
    """

    path: YPath
    parent: Node
    missing: tuple[str, ...]
    name: str
    taken: Node | None


def _destination(context: Context, parameters: Parameters, parameter: str) -> _Destination:
    path: YPath = parameters.path(parameter)
    if path.attribute is not None or path.children:
        raise refused("a node cannot be at this path", received=path.text)
    found = context.cypress.look(chain_of(context.transactions, parameters), path, follow=False)
    if not found.rest:
        parent = context.cypress.parent(found.node)
        if parent is None:
            raise already_exists(path.text)
        return _Destination(path, parent, (), context.cypress.name(found.node), found.node)
    if not found.node.has_children or (len(found.rest) > 1 and not parameters.flag("recursive")):
        raise context.cypress.not_found(path, found)
    return _Destination(path, found.node, found.rest[:-1], found.rest[-1], None)


def _free(context: Context, destination: _Destination, *, force: bool) -> Node:
    """Return the parent for a new node, after removing the existing node and creating missing parents."""
    if destination.taken is not None:
        if not force:
            raise already_exists(destination.taken.path)
        remove_node(context, destination.taken)
    parent = destination.parent
    for name in destination.missing:
        parent = make_node(context, parent, name, MAP_NODE, {})
    return parent


def _existing(parameters: Parameters) -> tuple[bool, bool]:
    """Return whether an existing node is kept, and whether it is replaced."""
    ignored, force = parameters.flag("ignore_existing"), parameters.flag("force")
    if ignored and force:
        raise refused('Cannot specify both "ignore_existing" and "force" options simultaneously')
    return ignored, force


def create(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Create a node."""
    name = parameters.text("type")
    kind = ALIASES.get(name)
    if kind is None:
        raise refused("Error reading parameter /type", received=repr(name)[:100], valid=sorted(ALIASES))
    attributes = dict(parameters.mapping("attributes", {}))
    if "path" not in parameters:
        return _create_object(context, kind, attributes, ignored=parameters.flag("ignore_existing"))
    chain = chain_of(context.transactions, parameters)
    of_list = make_inside(context, chain, parameters.path(), name, attributes)
    if of_list is not None:
        return Answer.structured({"node_id": of_list})
    destination = _destination(context, parameters, "path")
    ignored, force = _existing(parameters)
    if destination.taken is not None and ignored:
        if node_type(destination.taken) is not kind and not parameters.flag("ignore_type_mismatch"):
            raise YtError(
                Code.ALREADY_EXISTS,
                f'{destination.taken.path} already exists and has type "{destination.taken.type}" '
                f'while node of "{name}" type is about to be created',
            )
        if parameters.flag("lock_existing"):
            context.cypress.locks.need(chain, destination.taken.id, destination.taken.path)
        return Answer.structured({"node_id": destination.taken.id})
    parent = _free(context, destination, force=force)
    node = make_node(context, parent, destination.name, kind, attributes, name)
    return Answer.structured({"node_id": node.id})


def _create_object(context: Context, kind: NodeType, attributes: dict[str, Any], *, ignored: bool) -> Answer:
    """Create an object whose path the server chooses."""
    if kind.name == CELL:
        node = make_node(context, context.cypress.find(TABLET_CELLS), None, kind, attributes)
        return Answer.structured({"object_id": node.id})
    if not isinstance(kind, NamedObject):
        raise YtError(Code.GENERIC, "Missing required parameter /path")
    name = as_text(attributes.get("name"))
    if name is None:
        raise refused(f"A {kind.name} needs the attribute name", valid="a text")
    parent = context.cypress.find(f"//sys/{kind.name}s")
    taken = context.cypress.child(parent, name)
    if taken is not None:
        if not ignored:
            raise already_exists(taken.path)
        return Answer.structured({"object_id": taken.id})
    node = make_node(context, parent, name, kind, attributes)
    return Answer.structured({"object_id": node.id})


def link(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Create a link to a node."""
    chain = chain_of(context.transactions, parameters)
    target: YPath = parameters.path("target_path")
    context.cypress.need(chain, target.node, follow=False)
    destination = _destination(context, parameters, "link_path")
    ignored, force = _existing(parameters)
    if destination.taken is not None and ignored:
        return Answer.structured({"node_id": destination.taken.id})
    attributes = dict(parameters.mapping("attributes", {})) | {"target_path": target.text}
    parent = _free(context, destination, force=force)
    node = make_node(context, parent, destination.name, LINK, attributes)
    return Answer.structured({"node_id": node.id})


def copy(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Copy a node with its descendants."""
    chain = chain_of(context.transactions, parameters)
    source = context.cypress.need(chain, parameters.path("source_path"))
    destination = _destination(context, parameters, "destination_path")
    ignored, force = _existing(parameters)
    if destination.taken is not None and ignored:
        return Answer.structured({"node_id": destination.taken.id})
    _check_apart(context.cypress, source, destination, force=force)
    parent = _free(context, destination, force=force)
    made = _copy(context, source, parent, destination.name, as_old=parameters.flag("preserve_creation_time"))
    _let_stay(context.cypress, parameters, made)
    return Answer.structured({"node_id": made.id})


def _let_stay(cypress: Cypress, parameters: Parameters, made: Node) -> None:
    """Remove the expiration attributes of a copied or moved node and its descendants, unless they are preserved."""
    tree = cypress.tree
    names = [name for name in EXPIRING if not parameters.flag(f"preserve_{name}")]
    for node in [made, *cypress.below(made)]:
        for name in names:
            if tree.get(node.chain, node.id, Facet.ATTRIBUTE, name) is not None:
                tree.put(node.chain[0], node.id, Facet.ATTRIBUTE, name, None)


def _copy(context: Context, source: Node, parent: Node, name: str, *, as_old: bool) -> Node:
    children = context.cypress.children(source) if source.has_children else {}
    made = copy_node(context, parent, name, source, as_old=as_old)
    for key, child in children.items():
        _copy(context, child, made, key, as_old=as_old)
    return made


def move(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Move a node with its descendants. Readers see it at one of the two paths, never at both."""
    chain = chain_of(context.transactions, parameters)
    source = context.cypress.need(chain, parameters.path("source_path"), follow=False)
    destination = _destination(context, parameters, "destination_path")
    force = parameters.flag("force")
    _check_apart(context.cypress, source, destination, force=force)
    nodes = [source, *context.cypress.below(source)]
    context.cypress.check_not_protected(nodes)
    for node in nodes:
        context.cypress.locks.need(chain, node.id, node.path)
    parent = _free(context, destination, force=force)
    moved = move_node(context, source, parent, destination.name)
    _let_stay(context.cypress, parameters, moved)
    context.cypress.touch(context.now, moved)
    return Answer.structured({"node_id": moved.id})


def _check_apart(cypress: Cypress, source: Node, destination: _Destination, *, force: bool) -> None:
    """Raise an error if the destination exists, or is the source, or is above or below it."""
    if destination.taken is not None and not force:
        raise already_exists(destination.taken.path)
    above: Node | None = destination.taken or destination.parent
    while above is not None:
        if above.id == source.id:
            problem = "a node cannot be copied or moved to its own place, or below itself"
            raise refused(problem, received=f"{source.path} to {destination.path.text}")
        above = cypress.parent(above)
    above = cypress.parent(source)
    while above is not None and destination.taken is not None:
        if above.id == destination.taken.id:
            raise refused("a node cannot replace a node that contains it", received=destination.path.text)
        above = cypress.parent(above)
