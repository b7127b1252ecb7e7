"""Attributes of nodes: attributes of all nodes, of a node's type, and of users."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.cypress.node import Node
from headrace_ytsaurus.endpoint.cypress.node_types import NOTHING, NodeType, node_type
from headrace_ytsaurus.endpoint.errors import no_attribute, refused
from headrace_ytsaurus.endpoint.names import restored, shown
from headrace_ytsaurus.endpoint.names import value_of as name_value
from headrace_ytsaurus.endpoint.parameters import duration_of
from headrace_ytsaurus.endpoint.storage.tree import ATTRIBUTES, EXPIRING
from headrace_ytsaurus.endpoint.transactions.locks import ACQUIRED, Lock
from headrace_ytsaurus.endpoint.values import MISSING, look_inside, moment_of, remove_inside, set_inside, time_text
from headrace_ytsaurus.wire.yson import documents

ACCOUNT = "default"
_, _EXPIRATION_TIMEOUT = EXPIRING
_MAX_TIMEOUT = 1 << 40


def lock_value(lock: Lock) -> dict[str, Any]:
    """Return a lock in the form of ``@locks``."""
    kind, _, name = lock.key.partition(":")
    named = {f"{kind}_key": name_value(restored(name))} if kind else {}
    return {
        "id": lock.id,
        "state": lock.state,
        "transaction_id": lock.transaction,
        "mode": lock.mode,
        "implicit": not lock.explicit,
        **named,
    }


def _locks(cypress: Cypress, node: Node) -> list[Lock]:
    return cypress.locks.of_node(node.id)


def _lock_mode(context: Context, node: Node) -> str:
    held = {
        lock.mode
        for lock in _locks(context.cypress, node)
        if lock.transaction == node.chain[0] and lock.state == ACQUIRED
    }
    return next((mode for mode in ("exclusive", "shared", "snapshot") if mode in held), "none")


def _key(context: Context, node: Node) -> Any:
    name = context.cypress.name(node)
    return name_value(name) if name else NOTHING


def _parent_id(context: Context, node: Node) -> Any:
    parent = context.cypress.parent(node)
    return NOTHING if parent is None else parent.id


def _user_attributes(context: Context, node: Node) -> dict[str, Any]:
    kept = context.cypress.kept_attributes(node)
    return {name: value for name, value in kept.items() if name not in {*_SETTABLE, *node_type(node).settable}}


def _resource_usage(context: Context, node: Node) -> dict[str, Any]:
    size = node_type(node).attribute(context, node, "compressed_data_size")
    size = 0 if size is NOTHING else size
    return {"node_count": 1, "chunk_count": 0, "disk_space": size, "disk_space_per_medium": {"default": size}}


def _recursive_resource_usage(context: Context, node: Node) -> dict[str, Any]:
    usages = [_resource_usage(context, each) for each in (node, *context.cypress.below(node))]
    total = {name: sum(usage[name] for usage in usages) for name in ("node_count", "chunk_count", "disk_space")}
    return {**total, "disk_space_per_medium": {"default": total["disk_space"]}}


_OF_ALL: Mapping[str, Callable[[Context, Node], Any]] = {
    "id": lambda context, node: node.id,
    "type": lambda context, node: node.type,
    "path": lambda context, node: node.path,
    "key": _key,
    "parent_id": _parent_id,
    "creation_time": lambda context, node: time_text(context.cypress.created(node)),
    "modification_time": lambda context, node: time_text(context.cypress.changed(node)),
    "access_time": lambda context, node: time_text(context.cypress.changed(node)),
    "revision": lambda context, node: context.cypress.changed(node),
    "content_revision": lambda context, node: context.cypress.content_changed(node),
    "attribute_revision": lambda context, node: context.cypress.attributes_changed(node),
    "lock_count": lambda context, node: len(_locks(context.cypress, node)),
    "lock_mode": _lock_mode,
    "locks": lambda context, node: [lock_value(lock) for lock in _locks(context.cypress, node)],
    "owner": lambda context, node: "root",
    "account": lambda context, node: ACCOUNT,
    "acl": lambda context, node: [],
    "inherit_acl": lambda context, node: True,
    "builtin": lambda context, node: False,
    "external": lambda context, node: False,
    "ref_counter": lambda context, node: 1,
    "resource_usage": _resource_usage,
    "user_attribute_keys": lambda context, node: list(_user_attributes(context, node)),
    "user_attributes": _user_attributes,
}
_EXPENSIVE: Mapping[str, Callable[[Context, Node], Any]] = {"recursive_resource_usage": _recursive_resource_usage}
_SETTABLE = {"account", "acl", "inherit_acl", "owner", *EXPIRING}


def check_name(name: object) -> None:
    """Raise an error unless a value is the name of an attribute: a text that is not empty."""
    if not isinstance(name, str) or not name or shown(name) != name:
        raise refused("Attribute key is empty, or is not UTF-8", received=ascii(name)[:100], valid="a text")


def valid_attribute(name: str, value: Any) -> Any:
    """Return the value to save for an attribute; the attributes that expire a node are converted to one form.

    Raises:
        YtError: the value is not a time, or not a number of milliseconds.
    """
    if name not in EXPIRING:
        return value
    if name == _EXPIRATION_TIMEOUT:
        return duration_of(value, f'attribute "{name}"', most=_MAX_TIMEOUT)
    return time_text(moment_of(value, f'attribute "{name}"'))


def is_builtin(kind: NodeType, name: str) -> bool:
    """Return whether an attribute is computed, and can only be set by the node's type."""
    return ((name in _OF_ALL or name in _EXPENSIVE) and name not in _SETTABLE) or name in kind.virtual


def attribute(context: Context, node: Node, name: str) -> Any:
    """Return the value of an attribute of a node, `NOTHING` if there is none."""
    kept = context.cypress.kept_attribute(node, name)
    if kept is not None:
        return documents.loads(kept)
    found = node_type(node).attribute(context, node, name)
    read = _OF_ALL.get(name) or _EXPENSIVE.get(name)
    return read(context, node) if found is NOTHING and read else found


def attribute_names(context: Context, node: Node) -> list[str]:
    """Return the names of all attributes of a node, in order."""
    kind = node_type(node)
    own = {name for name in _OF_ALL if _OF_ALL[name](context, node) is not NOTHING}
    own |= {name for name in kind.cheap if kind.attribute(context, node, name) is not NOTHING}
    own |= {*_EXPENSIVE, *(set(kind.virtual) - set(kind.cheap))}
    return sorted({*own, *context.cypress.kept_attributes(node)})


def all_attributes(context: Context, node: Node, wanted: Sequence[str] | None = None) -> dict[str, Any]:
    """Return name → value of all attributes, or of the existing ones among ``wanted``.

    Without ``wanted``, expensive attributes are entities.
    """
    if wanted is not None:
        found = {name: attribute(context, node, name) for name in wanted}
        return {name: value for name, value in found.items() if value is not NOTHING}
    kept, kind = context.cypress.kept_attributes(node), node_type(node)
    values = {name: read(context, node) for name, read in _OF_ALL.items()}
    values |= {name: kind.attribute(context, node, name) for name in kind.cheap}
    values |= {name: None for name in (*_EXPENSIVE, *kind.virtual) if name not in kind.cheap} | kept
    return {name: values[name] for name in sorted(values) if values[name] is not NOTHING}


def read_attribute(context: Context, node: Node, names: Sequence[str], path: str) -> Any:
    """Return an attribute of a node, or a value inside of it.

    Args:
        names: the name of the attribute and the path inside its value; empty for all attributes.
        path: the whole path, for messages.
    """
    if not names:
        return all_attributes(context, node)
    value = attribute(context, node, names[0])
    if value is NOTHING:
        raise no_attribute(path, names[0])
    inside = look_inside(value, names[1:])
    if inside is MISSING:
        raise no_attribute(path, "/".join(names))
    return inside


def has_attribute(context: Context, node: Node, names: Sequence[str]) -> bool:
    """Return whether a node has an attribute, or a value inside of it."""
    if not names:
        return True
    value = attribute(context, node, names[0])
    return value is not NOTHING and look_inside(value, names[1:]) is not MISSING


def write_attribute(
    context: Context, node: Node, names: Sequence[str], value: Any, path: str, *, recursive: bool = False
) -> None:
    """Set an attribute of a node, or a value inside of it; with no names, replace all user attributes."""
    if not names:
        if not isinstance(value, Mapping):
            raise refused("the attributes of a node must be a map", received=repr(value)[:200])
        for name in set(_user_attributes(context, node)) - set(value):
            remove_attribute(context, node, [name], path)
        for name, inner in value.items():
            write_attribute(context, node, [name], inner, path)
        return
    name, rest = names[0], names[1:]
    if rest:
        before = attribute(context, node, name)
        if before is NOTHING:
            raise no_attribute(path, name)
        value = set_inside(before, rest, value, recursive=recursive)
        if value is MISSING:
            raise no_attribute(path, "/".join(names))
    check_name(name)
    if node_type(node).set_attribute(context, node, name, value):
        context.cypress.touch(context.now, node, ATTRIBUTES)
        return
    if is_builtin(node_type(node), name):
        raise refused(f'Builtin attribute "{name}" cannot be set')
    context.cypress.keep_attribute(context.now, node, name, valid_attribute(name, value))


def remove_attribute(context: Context, node: Node, names: Sequence[str], path: str, *, force: bool = False) -> None:
    """Remove an attribute of a node, or a value inside of it; with no names, all user attributes."""
    if not names:
        for name in _user_attributes(context, node):
            context.cypress.drop_attribute(context.now, node, name)
        return
    if not has_attribute(context, node, names):
        if force:
            return
        raise no_attribute(path, "/".join(names))
    name, rest = names[0], names[1:]
    if rest:
        write_attribute(context, node, [name], remove_inside(attribute(context, node, name), rest), path)
    elif context.cypress.kept_attribute(node, name) is not None:
        context.cypress.drop_attribute(context.now, node, name)
    elif not node_type(node).remove_attribute(context, node, name):
        raise refused(f'Builtin attribute "{name}" cannot be removed')
