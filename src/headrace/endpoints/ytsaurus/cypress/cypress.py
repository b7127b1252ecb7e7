"""Cypress: finding nodes by paths, through links, as a transaction sees them; making and moving single nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.endpoints.ytsaurus.cypress.attributes import check_name, is_builtin
from headrace.endpoints.ytsaurus.cypress.expiration import checked
from headrace.endpoints.ytsaurus.cypress.node_types import Node, NodeType
from headrace.endpoints.ytsaurus.errors import already_exists, no_child, refused, unresolved
from headrace.endpoints.ytsaurus.ids import new_id
from headrace.endpoints.ytsaurus.names import kept, restored
from headrace.endpoints.ytsaurus.storage.part_lists import Version
from headrace.endpoints.ytsaurus.storage.tree import TRUNK, Facet, Tree
from headrace.endpoints.ytsaurus.transactions.locks import EXCLUSIVE, SHARED, Locks
from headrace.endpoints.ytsaurus.transactions.transactions import Transactions
from headrace.wire.yson import documents
from headrace.wire.ytsaurus.errors import Code, YtError
from headrace.wire.ytsaurus.paths import YPath, escape, parse_path

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.commands import Context

ROOT = "1-1-1012f-1"
ROOT_PATH = "/"
MAX_LINKS = 32
MAX_NAME = 4096
LINK = "link"


@dataclass(frozen=True)
class Found:
    """How far a path leads.

    Attributes:
        node: the last node that is there.
        rest: the names behind it: of something inside its content, or of what is not there.
    """

    node: Node
    rest: tuple[str, ...]


class Cypress:
    """The tree of nodes. All methods run inside a transaction of the store if they change something."""

    def __init__(self, tree: Tree, locks: Locks, transactions: Transactions) -> None:
        self.tree = tree
        self.locks = locks
        self.transactions = transactions
        self.protected: set[str] = {ROOT}
        """Ids of the nodes that stay where they are."""
        self.on_use: Callable[[str], None] = lambda node_id: None
        """Is told the id of every node that a path led to."""

    # -- finding ------------------------------------------------------------------------------------

    def find(self, path: YPath | str, transaction: str | None = None, *, follow: bool = True) -> Node:
        """Return the node of a path.

        Args:
            path: attributes that it leads to are not looked at.
            transaction: the master transaction that looks.
            follow: where the path ends at a link, what that leads to, unless the path itself says otherwise.

        Raises:
            YtError: 500, nothing is there; 11000, no such transaction.
        """
        parsed = parse_path(path) if isinstance(path, str) else path
        return self.need(self.transactions.chain(transaction), parsed, follow=follow)

    def need(self, chain: tuple[str, ...], path: YPath, *, follow: bool = True) -> Node:
        """Return the node of a path, as `find` does."""
        found = self.look(chain, path, follow=follow)
        if found.rest:
            raise self.not_found(path, found)
        return found.node

    def not_found(self, path: YPath, found: Found) -> Exception:
        """Return the error that a path leads no further."""
        if found.node.kind.has_children:
            return no_child(path.text, found.node.path, found.rest[0])
        return unresolved(path.text, f'Node {found.node.path} of type "{found.node.type}" cannot have children')

    def look(self, chain: tuple[str, ...], path: YPath, *, follow: bool = True) -> Found:
        """Follow a path as far as it goes; see `find`.

        Raises:
            YtError: 500, not even its root is there, or its links go round in circles.
        """
        found = self._walk(chain, path, follow and not path.link, MAX_LINKS)
        self.on_use(found.node.id)
        return found

    def _walk(self, chain: tuple[str, ...], path: YPath, follow: bool, links: int) -> Found:
        current = self._root(chain, path)
        for number, name in enumerate(path.nodes):
            current = self._behind_link(chain, current, path, links)
            child = self.child(current, name) if current.kind.has_children else None
            if child is None:
                return Found(current, path.nodes[number:])
            current = child
        return Found(self._behind_link(chain, current, path, links) if follow else current, ())

    def _root(self, chain: tuple[str, ...], path: YPath) -> Node:
        node = self.by_id(chain, ROOT if path.root == "/" else path.root[1:])
        if node is None:
            raise unresolved(path.text, f"No such object {path.root[1:]}")
        return node

    def _behind_link(self, chain: tuple[str, ...], node: Node, path: YPath, links: int) -> Node:
        if node.type != LINK:
            return node
        if not links:
            raise unresolved(path.text, "Too many links on the way")
        target = parse_path(self.content(node) or b"")
        found = self._walk(chain, target, True, links - 1)
        if found.rest:
            raise unresolved(path.text, f"Link {node.path} leads to {target.text}, which is not there")
        return found.node

    def by_id(self, chain: tuple[str, ...], node_id: str) -> Node | None:
        """Return a node by its id, None if there is none."""
        made = self.tree.get(chain, node_id, Facet.TYPE)
        return None if made is None else Node(node_id, made.split()[0], self._path_of(chain, node_id), chain)

    def child(self, node: Node, name: str) -> Node | None:
        """Return a child of a node by its name, None if there is none."""
        child = self.tree.get(node.chain, node.id, Facet.CHILD, kept(name))
        return None if child is None else self._child(node, name, child)

    def children(self, node: Node) -> dict[str, Node]:
        """Return name → child of all children of a node, in the order of the names."""
        found = self.tree.items(node.chain, node.id, Facet.CHILD)
        named = {restored(name): child for name, child in found.items()}
        return {name: self._child(node, name, child) for name, child in named.items()}

    def child_names(self, node: Node) -> list[str]:
        """Return the names of all children of a node, in order."""
        return list(map(restored, self.tree.items(node.chain, node.id, Facet.CHILD)))

    def count(self, node: Node) -> int:
        """Return how many children a node has."""
        return len(self.tree.items(node.chain, node.id, Facet.CHILD))

    def _child(self, node: Node, name: str, child: str) -> Node:
        made = self.tree.get(node.chain, child, Facet.TYPE)
        return Node(child, made.split()[0], f"{node.path}/{escape(name)}", node.chain)

    def parent(self, node: Node) -> Node | None:
        """Return the node above, None of the root."""
        place = self.tree.get(node.chain, node.id, Facet.PLACE)
        return None if place is None else self.by_id(node.chain, place.partition(" ")[0])

    def name(self, node: Node) -> str:
        """Return the name of a node in its parent, empty for the root."""
        place = self.tree.get(node.chain, node.id, Facet.PLACE)
        return "" if place is None else restored(str(place.partition(" ")[2]))

    def below(self, node: Node) -> list[Node]:
        """Return all nodes below a node, parents before children."""
        found = []
        waiting = [node]
        while waiting:
            children = list(self.children(waiting.pop()).values())
            found += children
            waiting += [child for child in children if child.kind.has_children]
        return found

    def _path_of(self, chain: tuple[str, ...], node_id: str) -> str:
        names = []
        while (place := self.tree.get(chain, node_id, Facet.PLACE)) is not None:
            node_id, _, name = place.partition(" ")
            names.append(escape(restored(name)))
        return "/".join([ROOT_PATH, *reversed(names)])

    # -- what a node holds ----------------------------------------------------------------------------

    def created(self, node: Node) -> int:
        """Return when a node was made, µs since 1970."""
        return int(self.tree.get(node.chain, node.id, Facet.TYPE).split()[1])

    def changed(self, node: Node) -> int:
        """Return when a node was last changed, µs since 1970; never twice the same for one node."""
        return int(self.tree.get(node.chain, node.id, Facet.CHANGED) or self.created(node))

    def content(self, node: Node) -> bytes | None:
        """Return the bytes that a node's type keeps as its content."""
        content = self.tree.get(node.chain, node.id, Facet.CONTENT)
        return None if content is None else bytes(content)

    def set_content(self, context: Context, node: Node, content: bytes) -> None:
        """Replace the bytes that a node's type keeps as its content, with an exclusive lock."""
        self.locks.need(node.chain, node.id, node.path)
        self.tree.put(node.chain[0], node.id, Facet.CONTENT, "", content)
        self.touch(context, node)

    def kept_attributes(self, node: Node) -> dict[str, Any]:
        """Return the attributes that are kept of a node: those of users, and what its type has let be kept."""
        found = self.tree.items(node.chain, node.id, Facet.ATTRIBUTE)
        return {name: documents.loads(value) for name, value in found.items()}

    def kept_attribute(self, node: Node, name: str) -> Any:
        """Return the binary YSON of an attribute that is kept, None if it is not."""
        return self.tree.get(node.chain, node.id, Facet.ATTRIBUTE, kept(name))

    def keep_attribute(self, context: Context, node: Node, name: str, value: Any) -> None:
        """Keep an attribute of a node, with a lock on just that."""
        self.locks.need(node.chain, node.id, node.path, SHARED, f"attribute:{name}")
        self._put_attribute(node, name, value)
        self.touch(context, node)

    def _put_attribute(self, node: Node, name: str, value: Any) -> None:
        written = documents.dumps(checked(name, value), text=False)
        self.tree.put(node.chain[0], node.id, Facet.ATTRIBUTE, name, written)

    def drop_attribute(self, context: Context, node: Node, name: str) -> None:
        """Remove an attribute that is kept of a node, with a lock on just that."""
        self.locks.need(node.chain, node.id, node.path, SHARED, f"attribute:{name}")
        self.tree.put(node.chain[0], node.id, Facet.ATTRIBUTE, name, None)
        self.touch(context, node)

    def touch(self, context: Context, node: Node) -> None:
        """Note that a node was changed."""
        self.tree.put(node.chain[0], node.id, Facet.CHANGED, "", max(context.now, self.changed(node) + 1))

    # -- single nodes ---------------------------------------------------------------------------------

    def make(
        self,
        context: Context,
        parent: Node,
        name: str | None,
        kind: NodeType,
        attributes: dict[str, Any],
        alias: str = "",
    ) -> Node:
        """Make a node at a place that is free; without a name, its id is its name."""
        node = self._insert(context, parent, name, kind)
        remaining = kind.create(context, node, attributes, alias or kind.name)
        for key, value in remaining.items():
            check_name(key)
            if not is_builtin(kind, key):
                self._put_attribute(node, key, value)
            elif not kind.set_attribute(context, node, key, value):
                raise refused(f'Builtin attribute "{key}" cannot be set')
        kind.after_create(context, node)
        return node

    def make_copy(self, context: Context, parent: Node, name: str, source: Node, *, as_old: bool = False) -> Node:
        """Make a node that is like another one, at a place that is free; without its children.

        Args:
            as_old: it tells that it was made when the other one was.
        """
        node = self._insert(context, parent, name, source.kind)
        if as_old:
            self.tree.put(node.chain[0], node.id, Facet.TYPE, "", f"{source.type} {self.created(source)}")
        for facet in (Facet.ATTRIBUTE, Facet.CONTENT):
            for key, value in self.tree.items(source.chain, source.id, facet).items():
                self.tree.put(node.chain[0], node.id, facet, key, value)
        version = self.tree.version(source.chain, source.id)
        if version is not None:
            self.tree.set_version(node.chain, node.id, Version(added=version.whole))
        source.kind.copy(context, node, source)
        return node

    def place(self, context: Context, node: Node, parent: Node, name: str) -> Node:
        """Give a node another place, which must be free; all below it goes with it."""
        old = node.path
        self.detach(context, node)
        self._attach(context, parent, name, node.id)
        moved = Node(node.id, node.type, f"{parent.path}/{escape(name)}", node.chain)
        moved.kind.move(context, moved, old)
        for other in self.below(moved):
            other.kind.move(context, other, old + other.path[len(moved.path) :])
        return moved

    def remove(self, context: Context, node: Node) -> None:
        """Remove a node with all that is below it, with exclusive locks."""
        nodes = [node, *self.below(node)]
        self.check_free(nodes)
        for each in nodes:
            self.locks.need(each.chain, each.id, each.path, EXCLUSIVE)
        self.detach(context, node)
        for each in reversed(nodes):
            self._forget(context, each)

    def check_free(self, nodes: Iterable[Node]) -> None:
        """Raise the error for a node that clients expect to be there, and that so can be neither removed nor moved."""
        for node in nodes:
            if node.id in self.protected:
                raise YtError(Code.AUTHORIZATION, f"Access denied: {node.path} is a part of the cluster")

    def detach(self, context: Context, node: Node) -> None:
        """Take a node from its place."""
        parent = self.parent(node)
        assert parent is not None
        name = self.name(node)
        self.locks.need(parent.chain, parent.id, parent.path, SHARED, f"child:{kept(name)}")
        self.tree.put(parent.chain[0], parent.id, Facet.CHILD, kept(name), None)
        self.touch(context, parent)

    def _forget(self, context: Context, node: Node) -> None:
        if self.tree.get(node.chain[1:], node.id, Facet.TYPE) is None:
            # Nobody else has it: it is outside of transactions, or was made in this one.
            node.kind.remove(context, node)
            self.tree.forget(node.chain[0], node.id)
        else:
            self.tree.put(node.chain[0], node.id, Facet.TYPE, "", None)

    def _insert(self, context: Context, parent: Node, name: str | None, kind: NodeType) -> Node:
        node_id = new_id(kind.object_type)
        name = node_id if name is None else name
        self.tree.put(parent.chain[0], node_id, Facet.TYPE, "", f"{kind.name} {context.now}")
        self._attach(context, parent, name, node_id)
        node = Node(node_id, kind.name, f"{parent.path}/{escape(name)}", parent.chain)
        self.locks.need(node.chain, node.id, node.path, EXCLUSIVE)
        return node

    def _attach(self, context: Context, parent: Node, name: str, node_id: str) -> None:
        if not isinstance(name, str) or not name or len(name) > MAX_NAME:
            valid = f"1 to {MAX_NAME} characters"
            raise refused("not a name of a node", received=repr(name)[:100], valid=valid)
        if self.tree.get(parent.chain, parent.id, Facet.CHILD, kept(name)) is not None:
            raise already_exists(f"{parent.path}/{escape(name)}")
        self.locks.need(parent.chain, parent.id, parent.path, SHARED, f"child:{kept(name)}")
        own = parent.chain[0]
        self.tree.put(own, parent.id, Facet.CHILD, kept(name), node_id)
        self.tree.put(own, node_id, Facet.PLACE, "", f"{parent.id} {kept(name)}")
        self.touch(context, parent)

    def make_root(self, now: int) -> None:
        """Make the root node, unless it is there."""
        if self.tree.get((TRUNK,), ROOT, Facet.TYPE) is None:
            self.tree.put(TRUNK, ROOT, Facet.TYPE, "", f"map_node {now}")

    def gone(self, context: Context, chain: tuple[str, ...], node_id: str) -> None:
        """Tell the type of a node that it is gone for good in a moment; the chain still sees it."""
        node = self.by_id(chain, node_id)
        assert node is not None
        node.kind.remove(context, node)
