"""Values inside of lists and documents that are used like nodes: their attributes, and new items of lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.cypress.attributes import check_name
from headrace_ytsaurus.endpoint.cypress.basic_types import LIST_NODE, ValueNode
from headrace_ytsaurus.endpoint.cypress.node import ResolvedPath
from headrace_ytsaurus.endpoint.cypress.node_types import NODE_TYPES, node_type
from headrace_ytsaurus.endpoint.errors import no_attribute, refused
from headrace_ytsaurus.endpoint.values import (
    MISSING,
    attributes_of,
    look_inside,
    remove_inside,
    set_inside,
    type_of,
    with_attributes,
    without_attributes,
)
from headrace_ytsaurus.wire.paths import YPath, escape

_BUILTIN = ("type", "path", "key", "count")
_EMPTY: Mapping[str, Any] = {
    "map_node": {},
    "list_node": [],
    "string_node": "",
    "int64_node": 0,
    "double_node": 0.0,
    "boolean_node": False,
}


class InnerNode:
    """A value inside of a list or a document.

    Args:
        context: the context of the request.
        path: the whole path, for messages.
        found: the existing part of the path.

    Raises:
        YtError: 500, there is no such value.
    """

    def __init__(self, context: Context, path: YPath, found: ResolvedPath) -> None:
        kind = node_type(found.node)
        if not isinstance(kind, ValueNode):
            raise context.cypress.not_found(path, found)
        self._context = context
        self._path = path
        self._kind = kind
        self._found = found
        self._value = look_inside(kind.value(context, found.node), found.rest)
        if self._value is MISSING:
            raise context.cypress.not_found(path, found)

    def attributes(self) -> dict[str, Any]:
        """Return all attributes, the value's own and the computed ones."""
        own: dict[str, Any] = {
            "type": type_of(self._value),
            "path": "/".join([self._found.node.path, *map(escape, self._found.rest)]),
            "key": self._found.rest[-1],
        }
        if isinstance(self._value, list | Mapping):
            own["count"] = len(self._value)
        if self._kind is LIST_NODE:
            # Items of a list have no key.
            del own["key"]
        return {**attributes_of(self._value), **own}

    def read(self, names: Sequence[str]) -> Any:
        """Return an attribute, or a value inside of it; with no names, all attributes."""
        found = look_inside(self.attributes(), names)
        if found is MISSING:
            raise no_attribute(self._path.text, "/".join(names))
        return found

    def has(self, names: Sequence[str]) -> bool:
        """Return whether there is an attribute, or a value inside of it."""
        return look_inside(self.attributes(), names) is not MISSING

    def write(self, names: Sequence[str], value: Any, *, recursive: bool = False) -> None:
        """Set an attribute, or a value inside of it."""
        if not names:
            raise refused("all attributes of a value inside of another one cannot be set at once", received=self._path)
        self._check(names)
        changed = set_inside(attributes_of(self._value), names, value, recursive=recursive)
        if changed is MISSING:
            raise no_attribute(self._path.text, "/".join(names))
        self._replace(changed)

    def remove(self, names: Sequence[str], *, force: bool = False) -> None:
        """Remove an attribute, or a value inside of it; with no names, all user attributes."""
        if not names:
            self._replace({})
            return
        self._check(names)
        changed = remove_inside(attributes_of(self._value), names)
        if changed is not MISSING:
            self._replace(changed)
        elif not force:
            raise no_attribute(self._path.text, "/".join(names))

    def _check(self, names: Sequence[str]) -> None:
        check_name(names[0])
        if names[0] in _BUILTIN:
            raise refused(f'Builtin attribute "{names[0]}" cannot be set or removed')

    def _replace(self, attributes: Mapping[str, Any]) -> None:
        node = self._found.node
        value = with_attributes(without_attributes(self._value), attributes)
        self._kind.set_value(
            self._context, node, set_inside(self._kind.value(self._context, node), self._found.rest, value)
        )


def inner_node(context: Context, chain: tuple[str, ...], path: YPath) -> InnerNode | None:
    """Return the value inside of a node whose attribute a path names; None if it is an attribute of a node."""
    if path.attribute is None or path.root != "/":
        return None
    found = context.cypress.look(chain, path)
    inside = found.rest and isinstance(node_type(found.node), ValueNode)
    return InnerNode(context, path, found) if inside else None


def make_inside(
    context: Context, chain: tuple[str, ...], path: YPath, name: str, attributes: Mapping[str, Any]
) -> str | None:
    """Insert a new item if the path is a position in a list; return the id of the list, or None for another path.

    Raises:
        YtError: items of lists cannot have this type, or the list has no such position.
    """
    found = context.cypress.look(chain, path.node, follow=False)
    kind = node_type(found.node)
    if not found.rest or kind is not LIST_NODE:
        return None
    if name not in _EMPTY:
        raise refused("An item of a list is a value", received=name, valid=sorted(_EMPTY))
    assert isinstance(kind, ValueNode)
    item = with_attributes(_EMPTY[name], attributes)
    changed = set_inside(kind.value(context, found.node), found.rest, item)
    if changed is MISSING or name not in NODE_TYPES:
        raise context.cypress.not_found(path, found)
    kind.set_value(context, found.node, changed)
    return found.node.id
