"""The commands that read and change Cypress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace_ytsaurus.endpoint.context import Answer, Context
from headrace_ytsaurus.endpoint.cypress.attributes import (
    all_attributes,
    attribute_names,
    has_attribute,
    read_attribute,
    remove_attribute,
    write_attribute,
)
from headrace_ytsaurus.endpoint.cypress.basic_types import LIST_NODE
from headrace_ytsaurus.endpoint.cypress.inner_nodes import InnerNode, inner_node
from headrace_ytsaurus.endpoint.cypress.node_types import node_type
from headrace_ytsaurus.endpoint.cypress.node_values import is_there, remove_at, set_at, value_at
from headrace_ytsaurus.endpoint.cypress.objects import by_id, find_object
from headrace_ytsaurus.endpoint.cypress.operations import remove_node
from headrace_ytsaurus.endpoint.errors import no_attribute, refused, unresolved
from headrace_ytsaurus.endpoint.formats import read_value
from headrace_ytsaurus.endpoint.names import value_of as name_value
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.storage.tree import TRUNK
from headrace_ytsaurus.endpoint.transactions.locks import EXCLUSIVE, MODES, PENDING, SHARED, SNAPSHOT
from headrace_ytsaurus.endpoint.transactions.transactions import Transactions
from headrace_ytsaurus.endpoint.values import MISSING, attributes_of, look_inside, names_of, with_attributes
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.paths import YPath


def chain_of(transactions: Transactions, parameters: Parameters) -> tuple[str, ...]:
    """Return the chain of a request's transaction, see `headrace_ytsaurus.endpoint.storage.tree.Tree`."""
    return transactions.chain(parameters.text("transaction_id", None))


def _value(parameters: Parameters, value: Any) -> Answer:
    """Return an answer with the bare value or with a map, as the client asks for it."""
    return Answer.structured(value if parameters.flag("return_only_value") else {"value": value})


def _wanted(parameters: Parameters) -> list[str] | None:
    """Return the names of the attributes that the client asks for, from a list or a filter."""
    given = parameters.value("attributes", [])
    if isinstance(given, Mapping):
        # Newer clients send a filter.
        if given.get("paths"):
            raise refused("Error reading parameter /attributes", received="paths", valid="keys: a list of names")
        given = given.get("keys", [])
    if not isinstance(given, list):
        raise refused("Error reading parameter /attributes", received=repr(given)[:200], valid="a list of names")
    return names_of(given)


def _object_attributes(context: Context, path: YPath) -> Mapping[str, Any] | None:
    """Return the attributes of a transaction or lock at the root of a path, None if the root is a node."""
    found = None if path.root == "/" else find_object(context, path.root[1:])
    if found is not None and (path.nodes or path.attribute is None):
        raise unresolved(path.text, "Transactions and locks have nothing but attributes")
    return found


def get(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return a node with its descendants, an attribute, or a value inside of one."""
    path = by_id(parameters.path())
    chain = chain_of(context.transactions, parameters)
    known = _object_attributes(context, path)
    if known is not None:
        names = path.attribute or ()
        inside = look_inside(known, names)
        if inside is MISSING:
            raise no_attribute(path.text, "/".join(names))
        return _value(parameters, inside)
    wanted = _wanted(parameters) or []
    if path.attribute is None:
        return _value(parameters, value_at(context, path, context.cypress.look(chain, path), wanted))
    inner = inner_node(context, chain, path)
    if inner is not None:
        return _value(parameters, inner.read(path.attribute))
    node = context.cypress.need(chain, path)
    if not path.attribute and wanted:
        return _value(parameters, all_attributes(context, node, wanted))
    return _value(parameters, read_attribute(context, node, path.attribute, path.text))


def list_(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the keys of a node or a value, with the requested attributes of the children."""
    path = parameters.path()
    chain = chain_of(context.transactions, parameters)
    most = parameters.number("max_size", None, least=0)
    wanted = _wanted(parameters) or []
    inner = inner_node(context, chain, path)
    if inner is not None:
        return _listed(parameters, _keys(inner.read(path.attribute or ()), path), most)
    if path.attribute is not None:
        node = context.cypress.need(chain, path)
        names = _keys(read_attribute(context, node, path.attribute, path.text), path) if path.attribute else None
        return _listed(parameters, attribute_names(context, node) if names is None else names, most)
    found = context.cypress.look(chain, path)
    if found.rest or not found.node.has_children:
        value = value_at(context, path, found, wanted)
        return _listed(parameters, [_with_own(name, value[name], wanted) for name in _keys(value, path)], most)
    if not wanted:
        return _listed(parameters, list(map(name_value, context.cypress.child_names(found.node))), most)
    children = context.cypress.children(found.node)
    shown = list(children.items())[:most]
    named = [with_attributes(name_value(name), all_attributes(context, child, wanted)) for name, child in shown]
    return _listed(parameters, named, most, len(children))


def _with_own(name: str, value: Any, wanted: Sequence[str]) -> Any:
    """Return a key with the requested attributes of its value."""
    own = attributes_of(value)
    return with_attributes(name, {each: own[each] for each in wanted if each in own})


def _keys(value: Any, path: YPath) -> list[str]:
    if isinstance(value, Mapping):
        return list(value)
    raise refused('"list" needs a map', received=path.text)


def _listed(parameters: Parameters, names: list[Any], most: int | None, count: int | None = None) -> Answer:
    complete = most is None or (len(names) if count is None else count) <= most
    return _value(parameters, names if complete else with_attributes(names[:most], {"incomplete": True}))


def exists(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return whether a path resolves."""
    path = by_id(parameters.path())
    chain = chain_of(context.transactions, parameters)
    if path.root != "/" and (known := find_object(context, path.root[1:])) is not None:
        is_present = not path.nodes and look_inside(known, path.attribute or ()) is not MISSING
        return Answer.structured({"value": is_present})
    try:
        found = context.cypress.look(chain, path)
    except YtError as error:
        if error.code != Code.RESOLVE:
            raise
        return Answer.structured({"value": False})
    if path.attribute is None:
        return Answer.structured({"value": is_there(context, found)})
    if found.rest and is_there(context, found):
        return Answer.structured({"value": InnerNode(context, path, found).has(path.attribute)})
    return Answer.structured({"value": not found.rest and has_attribute(context, found.node, path.attribute)})


def set_(context: Context, parameters: Parameters, body: bytes) -> None:
    """Set a node, an attribute, or a value inside of one, to the value in the body."""
    path = parameters.path()
    value = read_value(body, context.input_format)
    chain = chain_of(context.transactions, parameters)
    recursive = parameters.flag("recursive")
    if path.attribute is None:
        found = context.cypress.look(chain, path)
        set_at(context, path, found, value, recursive=recursive, force=parameters.flag("force"))
    elif (inner := inner_node(context, chain, path)) is not None:
        inner.write(path.attribute, value, recursive=recursive)
    else:
        node = context.cypress.need(chain, path)
        write_attribute(context, node, path.attribute, value, path.text, recursive=recursive)


def multiset_attributes(context: Context, parameters: Parameters, body: bytes) -> None:
    """Set several attributes of one node, atomically."""
    path = parameters.path()
    if path.attribute is None:
        raise refused("Error reading parameter /path", received=path.text, valid="a path that ends in /@")
    values = read_value(body, context.input_format)
    if not isinstance(values, Mapping):
        raise refused("the attributes of a node must be a map", received=repr(values)[:200])
    chain = chain_of(context.transactions, parameters)
    for name, value in values.items():
        inner = inner_node(context, chain, path)
        if inner is not None:
            inner.write([*path.attribute, name], value, recursive=True)
            continue
        node = context.cypress.need(chain, path)
        write_attribute(context, node, [*path.attribute, name], value, path.text, recursive=True)


def remove(context: Context, parameters: Parameters, body: bytes) -> None:
    """Remove a node, an attribute, or a value inside of one."""
    path = parameters.path()
    chain = chain_of(context.transactions, parameters)
    force = parameters.flag("force")
    if path.attribute is not None:
        _remove_attribute(context, chain, path, force=force)
    elif path.children:
        node = context.cypress.need(chain, path)
        if node_type(node) is LIST_NODE:
            LIST_NODE.set_value(context, node, [])
        for child in context.cypress.children(node).values():
            remove_node(context, child)
    else:
        _remove(context, chain, path, force=force, recursive=parameters.flag("recursive"))


def _remove_attribute(context: Context, chain: tuple[str, ...], path: YPath, *, force: bool) -> None:
    names = path.attribute
    if not names and not path.children:
        raise refused("all attributes at once are removed by /@*", received=path.text)
    inner = inner_node(context, chain, path)
    if inner is not None:
        inner.remove(names or (), force=force)
    else:
        remove_attribute(context, context.cypress.need(chain, path), names or (), path.text, force=force)


def _remove(context: Context, chain: tuple[str, ...], path: YPath, *, force: bool, recursive: bool) -> None:
    try:
        found = context.cypress.look(chain, path, follow=False)
    except YtError as error:
        if not force or error.code != Code.RESOLVE:
            raise
        return
    if not found.rest:
        if not recursive and found.node.has_children and context.cypress.count(found.node):
            raise refused("Cannot remove non-empty composite node", received=found.node.path, remedy="pass recursive")
        remove_node(context, found.node)
    elif not force or is_there(context, found):
        remove_at(context, path, found, force=force)


def lock(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Lock a node for a transaction."""
    chain = chain_of(context.transactions, parameters)
    if chain[0] == TRUNK:
        raise _outside()
    mode = parameters.text("mode", EXCLUSIVE, valid=MODES)
    kinds = [kind for kind in ("child", "attribute") if f"{kind}_key" in parameters]
    keys = [f"{kind}:{parameters.text(f'{kind}_key')}" for kind in kinds]
    if keys and (mode != SHARED or len(keys) > 1):
        raise refused("only a shared lock can be of one child, or of one attribute", received=mode)
    waitable = parameters.flag("waitable")
    if waitable and mode == SNAPSHOT:
        raise refused("a snapshot lock never waits", received="waitable")
    node = context.cypress.need(chain, parameters.path())
    taken = context.cypress.locks.take(
        chain, node.id, node.path, mode, "".join(keys), waitable=waitable, now=context.now
    )
    revision = 0 if taken.state == PENDING else context.cypress.changed(node)
    return Answer.structured({"lock_id": taken.id, "node_id": node.id, "revision": revision})


def _outside() -> YtError:
    return refused(
        "A valid master transaction is required",
        received="a lock outside of a transaction",
        remedy="pass transaction_id",
    )


def unlock(context: Context, parameters: Parameters, body: bytes) -> None:
    """Release the explicit locks on a node."""
    chain = chain_of(context.transactions, parameters)
    if chain[0] == TRUNK:
        raise _outside()
    node = context.cypress.need(chain, parameters.path())
    own = [held for held in context.cypress.locks.of_node(node.id) if held.transaction == chain[0]]
    snapshot = any(held.mode == SNAPSHOT for held in own)
    if not any(held.explicit for held in own):
        return
    if not snapshot and context.cypress.tree.is_changed(chain[0], node.id):
        raise refused("Node is modified by transaction and cannot be unlocked", received=node.path)
    if snapshot:
        context.cypress.tree.forget(chain[0], node.id)
    context.cypress.locks.release(chain[0], node.id)
    context.transactions.grant()


def check_permission(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Allow everything: users with a token have all permissions."""
    context.cypress.need(chain_of(context.transactions, parameters), parameters.path())
    return Answer.structured({"action": "allow"})


def parse_ypath(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Parse the attributes in the text of a path."""
    path = parameters.path()
    return Answer.structured({"path": with_attributes(path.text, path.attributes)})
