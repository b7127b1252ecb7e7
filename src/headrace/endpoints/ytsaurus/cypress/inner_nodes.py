"""What is inside of lists and documents, as far as it is treated like nodes: attributes on it, new items of lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.endpoints.ytsaurus.cypress.attributes import check_name
from headrace.endpoints.ytsaurus.cypress.basic_types import LIST_NODE, ValueNode
from headrace.endpoints.ytsaurus.cypress.cypress import Found
from headrace.endpoints.ytsaurus.cypress.node_types import NODE_TYPES
from headrace.endpoints.ytsaurus.errors import no_attribute, refused
from headrace.endpoints.ytsaurus.values import (
    MISSING,
    attributes_of,
    look_inside,
    remove_inside,
    set_inside,
    type_of,
    with_attributes,
    without_attributes,
)
from headrace.wire.ytsaurus.paths import YPath, escape

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.commands import Context

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
    """A value inside of a list or a document that a path leads to.

    Args:
        context: of the request.
        path: the whole path, for messages.
        found: how far the path leads.

    Raises:
        YtError: 500, nothing is there.
    """

    def __init__(self, context: Context, path: YPath, found: Found) -> None:
        kind = found.node.kind
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
        """Return all attributes: those on the value, and what follows from it."""
        own: dict[str, Any] = {
            "type": type_of(self._value),
            "path": "/".join([self._found.node.path, *map(escape, self._found.rest)]),
            "key": self._found.rest[-1],
        }
        if isinstance(self._value, list | Mapping):
            own["count"] = len(self._value)
        if self._kind is LIST_NODE:
            # The items of a list have places, and no keys.
            del own["key"]
        return {**attributes_of(self._value), **own}

    def read(self, names: Sequence[str]) -> Any:
        """Return an attribute, or what is inside of its value; with no name, all attributes."""
        found = look_inside(self.attributes(), names)
        if found is MISSING:
            raise no_attribute(self._path.text, "/".join(names))
        return found

    def has(self, names: Sequence[str]) -> bool:
        """Tell whether there is an attribute, or something inside of its value."""
        return look_inside(self.attributes(), names) is not MISSING

    def write(self, names: Sequence[str], value: Any, *, recursive: bool = False) -> None:
        """Set an attribute, or something inside of its value."""
        if not names:
            raise refused("all attributes of a value inside of another one cannot be set at once", received=self._path)
        self._check(names)
        changed = set_inside(attributes_of(self._value), names, value, recursive=recursive)
        if changed is MISSING:
            raise no_attribute(self._path.text, "/".join(names))
        self._replace(changed)

    def remove(self, names: Sequence[str], *, force: bool = False) -> None:
        """Remove an attribute, or something inside of its value; with no name, all that users have set."""
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
    """Return the value inside of a node to whose attributes a path leads; None if they are those of a node."""
    if path.attribute is None or path.root != "/":
        return None
    found = context.cypress.look(chain, path.node)
    inside = found.rest and isinstance(found.node.kind, ValueNode)
    return InnerNode(context, path, found) if inside else None


def make_inside(
    context: Context, chain: tuple[str, ...], path: YPath, name: str, attributes: Mapping[str, Any]
) -> str | None:
    """Put a new item into a list, if a path leads to a place of one; return the id of the list, else None.

    Raises:
        YtError: the item is of a type that no list has, or the place is none.
    """
    found = context.cypress.look(chain, path.node, follow=False)
    kind = found.node.kind
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
