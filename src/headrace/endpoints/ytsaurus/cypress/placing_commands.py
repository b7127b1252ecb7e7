"""The commands that give nodes a place in Cypress: create, copy, move and link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.endpoints.ytsaurus.commands import Answer, Context, Parameters, command
from headrace.endpoints.ytsaurus.cypress.basic_types import LINK, MAP_NODE, NamedObject
from headrace.endpoints.ytsaurus.cypress.inner_nodes import make_inside
from headrace.endpoints.ytsaurus.cypress.node_commands import chain_of
from headrace.endpoints.ytsaurus.cypress.node_types import ALIASES, Node, NodeType
from headrace.endpoints.ytsaurus.errors import already_exists, refused
from headrace.endpoints.ytsaurus.parameters import as_text
from headrace.endpoints.ytsaurus.storage.tree import EXPIRING, Facet
from headrace.wire.ytsaurus.errors import Code, YtError
from headrace.wire.ytsaurus.paths import YPath

TABLET_CELLS = "//sys/tablet_cells"
CELL = "tablet_cell"


@dataclass(frozen=True)
class _Place:
    """Where a node is to go: a name in a parent that is there, or that is to be made, and what is there already."""

    path: YPath
    parent: Node
    missing: tuple[str, ...]
    name: str
    taken: Node | None


def _place(context: Context, chain: tuple[str, ...], path: YPath, *, recursive: bool) -> _Place:
    if path.attribute is not None or path.children:
        raise refused("this is not the place of a node", received=path.text)
    found = context.cypress.look(chain, path, follow=False)
    if not found.rest:
        parent = context.cypress.parent(found.node)
        if parent is None:
            raise already_exists(path.text)
        return _Place(path, parent, (), context.cypress.name(found.node), found.node)
    if not found.node.kind.has_children or (len(found.rest) > 1 and not recursive):
        raise context.cypress.not_found(path, found)
    return _Place(path, found.node, found.rest[:-1], found.rest[-1], None)


def _free(context: Context, place: _Place, *, force: bool) -> Node:
    """Return the parent in which the name of a place is free, after removing what is there and making what is not."""
    if place.taken is not None:
        if not force:
            raise already_exists(place.taken.path)
        context.cypress.remove(context, place.taken)
    parent = place.parent
    for name in place.missing:
        parent = context.cypress.make(context, parent, name, MAP_NODE, {})
    return parent


def _existing(parameters: Parameters) -> tuple[bool, bool]:
    """Return whether what is at a place already may stay, and whether it may be replaced."""
    ignored, force = parameters.flag("ignore_existing"), parameters.flag("force")
    if ignored and force:
        raise refused('Cannot specify both "ignore_existing" and "force" options simultaneously')
    return ignored, force


@command("create", volatile=True)
def create(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Make a node."""
    name = parameters.text("type")
    kind = ALIASES.get(name)
    if kind is None:
        raise refused("Error reading parameter /type", received=repr(name)[:100], valid=sorted(ALIASES))
    attributes = dict(parameters.mapping("attributes", {}))
    if "path" not in parameters:
        return _create_object(context, kind, attributes, ignored=parameters.flag("ignore_existing"))
    chain = chain_of(context, parameters)
    of_list = make_inside(context, chain, parameters.path(), name, attributes)
    if of_list is not None:
        return Answer.structured({"node_id": of_list})
    place = _place(context, chain, parameters.path(), recursive=parameters.flag("recursive"))
    ignored, force = _existing(parameters)
    if place.taken is not None and ignored:
        if place.taken.kind is not kind and not parameters.flag("ignore_type_mismatch"):
            raise YtError(
                Code.ALREADY_EXISTS,
                f'{place.taken.path} already exists and has type "{place.taken.type}" while node of "{name}" type '
                "is about to be created",
            )
        if parameters.flag("lock_existing"):
            context.cypress.locks.need(chain, place.taken.id, place.taken.path)
        return Answer.structured({"node_id": place.taken.id})
    parent = _free(context, place, force=force)
    node = context.cypress.make(context, parent, place.name, kind, attributes, name)
    return Answer.structured({"node_id": node.id})


def _create_object(context: Context, kind: NodeType, attributes: dict[str, Any], *, ignored: bool) -> Answer:
    """Create an object whose place follows from its type."""
    if kind.name == CELL:
        node = context.cypress.make(context, context.cypress.find(TABLET_CELLS), None, kind, attributes)
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
    node = context.cypress.make(context, parent, name, kind, attributes)
    return Answer.structured({"object_id": node.id})


@command("link", volatile=True)
def link(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Make a link to a node."""
    chain = chain_of(context, parameters)
    target: YPath = parameters.path("target_path")
    context.cypress.need(chain, target.node, follow=False)
    place = _place(context, chain, parameters.path("link_path"), recursive=parameters.flag("recursive"))
    ignored, force = _existing(parameters)
    if place.taken is not None and ignored:
        return Answer.structured({"node_id": place.taken.id})
    attributes = dict(parameters.mapping("attributes", {})) | {"target_path": target.text}
    parent = _free(context, place, force=force)
    node = context.cypress.make(context, parent, place.name, LINK, attributes)
    return Answer.structured({"node_id": node.id})


@command("copy", volatile=True)
def copy(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Make a copy of a node with all that is below it."""
    chain = chain_of(context, parameters)
    source = context.cypress.need(chain, parameters.path("source_path"))
    place = _place(context, chain, parameters.path("destination_path"), recursive=parameters.flag("recursive"))
    ignored, force = _existing(parameters)
    if place.taken is not None and ignored:
        return Answer.structured({"node_id": place.taken.id})
    _check_apart(context, source, place, force=force)
    parent = _free(context, place, force=force)
    made = _copy(context, source, parent, place.name, as_old=parameters.flag("preserve_creation_time"))
    _let_stay(context, parameters, made)
    return Answer.structured({"node_id": made.id})


def _let_stay(context: Context, parameters: Parameters, made: Node) -> None:
    """Take from a copied or moved node, and from all below it, what would end it, unless that is to be preserved."""
    tree = context.cypress.tree
    names = [name for name in EXPIRING if not parameters.flag(f"preserve_{name}")]
    for node in [made, *context.cypress.below(made)]:
        for name in names:
            if tree.get(node.chain, node.id, Facet.ATTRIBUTE, name) is not None:
                tree.put(node.chain[0], node.id, Facet.ATTRIBUTE, name, None)


def _copy(context: Context, source: Node, parent: Node, name: str, *, as_old: bool) -> Node:
    children = context.cypress.children(source) if source.kind.has_children else {}
    made = context.cypress.make_copy(context, parent, name, source, as_old=as_old)
    for key, child in children.items():
        _copy(context, child, made, key, as_old=as_old)
    return made


@command("move", volatile=True)
def move(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Give a node another place, in one step: nobody sees it at neither of the two, nor at both."""
    chain = chain_of(context, parameters)
    source = context.cypress.need(chain, parameters.path("source_path"), follow=False)
    place = _place(context, chain, parameters.path("destination_path"), recursive=parameters.flag("recursive"))
    force = parameters.flag("force")
    _check_apart(context, source, place, force=force)
    nodes = [source, *context.cypress.below(source)]
    context.cypress.check_free(nodes)
    for node in nodes:
        context.cypress.locks.need(chain, node.id, node.path)
    parent = _free(context, place, force=force)
    moved = context.cypress.place(context, source, parent, place.name)
    _let_stay(context, parameters, moved)
    context.cypress.touch(context, moved)
    return Answer.structured({"node_id": moved.id})


def _check_apart(context: Context, source: Node, place: _Place, *, force: bool) -> None:
    """Raise the error for a place that is taken, or that is the node itself, or is below it or above."""
    if place.taken is not None and not force:
        raise already_exists(place.taken.path)
    above: Node | None = place.taken or place.parent
    while above is not None:
        if above.id == source.id:
            problem = "a node cannot be copied or moved to its own place, or below itself"
            raise refused(problem, received=f"{source.path} to {place.path.text}")
        above = context.cypress.parent(above)
    above = context.cypress.parent(source)
    while above is not None and place.taken is not None:
        if above.id == place.taken.id:
            raise refused("a node cannot take the place of one that it is in", received=place.path.text)
        above = context.cypress.parent(above)
