"""Cypress: resolving paths, through links, as a transaction sees them; the entries of single nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace_ytsaurus.endpoint.cypress.node import MAP_NODE_TYPE, Node, ResolvedPath
from headrace_ytsaurus.endpoint.errors import already_exists, no_child, refused, unresolved
from headrace_ytsaurus.endpoint.ids import ObjectType, new_id
from headrace_ytsaurus.endpoint.names import kept, restored
from headrace_ytsaurus.endpoint.storage.tree import ATTRIBUTES, TRUNK, Facet, Tree
from headrace_ytsaurus.endpoint.transactions.locks import EXCLUSIVE, SHARED, Locks
from headrace_ytsaurus.endpoint.transactions.transactions import Transactions
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.paths import YPath, escape, parse_path
from headrace_ytsaurus.wire.yson import documents

ROOT = "1-1-1012f-1"
ROOT_PATH = "/"
MAX_LINKS = 32
MAX_NAME = 4096
LINK_TYPE = "link"


class Cypress:
    """The tree of nodes. Methods that change something must run in a write transaction of the store.

    These methods know nothing of node types; `headrace_ytsaurus.endpoint.cypress.operations` creates, moves and
    removes nodes together with the resources of their types.
    """

    def __init__(self, tree: Tree, locks: Locks, transactions: Transactions) -> None:
        self.tree = tree
        self.locks = locks
        self.transactions = transactions
        self.protected: set[str] = {ROOT}
        """Ids of the nodes that cannot be moved or removed."""
        self.on_use: Callable[[str], None] = lambda node_id: None
        """Called with the id of every node that a path resolves to."""

    # -- resolving paths ------------------------------------------------------------------------------

    def find(self, path: YPath | str, transaction: str | None = None, *, follow: bool = True) -> Node:
        """Return the node of a path.

        Args:
            path: an attribute at its end is ignored.
            transaction: the master transaction that reads.
            follow: if the last node is a link, return its target, unless the path ends in ``&``.

        Raises:
            YtError: 500, there is no such node; 11000, there is no such transaction.
        """
        parsed = parse_path(path) if isinstance(path, str) else path
        return self.need(self.transactions.chain(transaction), parsed, follow=follow)

    def need(self, chain: tuple[str, ...], path: YPath, *, follow: bool = True) -> Node:
        """Return the node of a path, as `find` does."""
        resolved = self.look(chain, path, follow=follow)
        if resolved.rest:
            raise self.not_found(path, resolved)
        return resolved.node

    def not_found(self, path: YPath, resolved: ResolvedPath) -> Exception:
        """Return the error for a path that resolves only in part."""
        if resolved.node.has_children:
            return no_child(path.text, resolved.node.path, resolved.rest[0])
        return unresolved(path.text, f'Node {resolved.node.path} of type "{resolved.node.type}" cannot have children')

    def look(self, chain: tuple[str, ...], path: YPath, *, follow: bool = True) -> ResolvedPath:
        """Resolve a path as far as its nodes exist; see `find`.

        Raises:
            YtError: 500, the path's root does not exist, a link is broken, or links form a circle.
        """
        resolved = self._walk(chain, path, follow and not path.link, MAX_LINKS)
        self.on_use(resolved.node.id)
        return resolved

    def _walk(self, chain: tuple[str, ...], path: YPath, follow: bool, links: int) -> ResolvedPath:
        current = self._root(chain, path)
        for number, name in enumerate(path.nodes):
            if number not in path.unfollowed:
                current = self._link_target(chain, current, path, links)
            child = self.child(current, name) if current.has_children else None
            if child is None:
                return ResolvedPath(current, path.nodes[number:])
            current = child
        return ResolvedPath(self._link_target(chain, current, path, links) if follow else current, ())

    def _root(self, chain: tuple[str, ...], path: YPath) -> Node:
        node = self.by_id(chain, ROOT if path.root == "/" else path.root[1:])
        if node is None:
            raise unresolved(path.text, f"No such object {path.root[1:]}")
        return node

    def _link_target(self, chain: tuple[str, ...], node: Node, path: YPath, links: int) -> Node:
        if node.type != LINK_TYPE:
            return node
        if not links:
            raise unresolved(path.text, "Too many links on the way")
        target = parse_path(self.content(node) or b"")
        resolved = self._walk(chain, target, True, links - 1)
        if resolved.rest:
            raise unresolved(path.text, f"Link {node.path} leads to {target.text}, which does not exist")
        return resolved.node

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
        items = self.tree.items(node.chain, node.id, Facet.CHILD)
        named = {restored(name): child for name, child in items.items()}
        return {name: self._child(node, name, child) for name, child in named.items()}

    def child_names(self, node: Node) -> list[str]:
        """Return the names of all children of a node, in order."""
        return list(map(restored, self.tree.items(node.chain, node.id, Facet.CHILD)))

    def count(self, node: Node) -> int:
        """Return the number of children of a node."""
        return len(self.tree.items(node.chain, node.id, Facet.CHILD))

    def _child(self, node: Node, name: str, child: str) -> Node:
        made = self.tree.get(node.chain, child, Facet.TYPE)
        return Node(child, made.split()[0], f"{node.path}/{escape(name)}", node.chain)

    def parent(self, node: Node) -> Node | None:
        """Return the parent of a node, None for the root."""
        place = self.tree.get(node.chain, node.id, Facet.PLACE)
        return None if place is None else self.by_id(node.chain, place.partition(" ")[0])

    def name(self, node: Node) -> str:
        """Return the name of a node in its parent, empty for the root."""
        place = self.tree.get(node.chain, node.id, Facet.PLACE)
        return "" if place is None else restored(str(place.partition(" ")[2]))

    def below(self, node: Node) -> list[Node]:
        """Return all descendants of a node, parents before children."""
        nodes = []
        waiting = [node]
        while waiting:
            children = list(self.children(waiting.pop()).values())
            nodes += children
            waiting += [child for child in children if child.has_children]
        return nodes

    def _path_of(self, chain: tuple[str, ...], node_id: str) -> str:
        names = []
        while (place := self.tree.get(chain, node_id, Facet.PLACE)) is not None:
            node_id, _, name = place.partition(" ")
            names.append(escape(restored(name)))
        return "/".join([ROOT_PATH, *reversed(names)])

    # -- entries of a node ----------------------------------------------------------------------------

    def created(self, node: Node) -> int:
        """Return the time at which a node was created, µs since 1970."""
        return int(self.tree.get(node.chain, node.id, Facet.TYPE).split()[1])

    def changed(self, node: Node) -> int:
        """Return the time of a node's last change, µs since 1970; no two changes of a node have the same time."""
        items = self.tree.items(node.chain, node.id, Facet.CHANGED)
        return int(max(items.values())) if items else self.created(node)

    def content_changed(self, node: Node) -> int:
        """Return the time of the last change of a node's content or children."""
        return int(self.tree.get(node.chain, node.id, Facet.CHANGED) or self.created(node))

    def attributes_changed(self, node: Node) -> int:
        """Return the time of the last change of a node's attributes."""
        return int(self.tree.get(node.chain, node.id, Facet.CHANGED, ATTRIBUTES) or self.created(node))

    def content(self, node: Node) -> bytes | None:
        """Return the bytes that the node's type has saved as its content."""
        content = self.tree.get(node.chain, node.id, Facet.CONTENT)
        return None if content is None else bytes(content)

    def set_content(self, now: int, node: Node, content: bytes) -> None:
        """Replace the content of a node, with an exclusive lock."""
        self.locks.need(node.chain, node.id, node.path)
        self.tree.put(node.chain[0], node.id, Facet.CONTENT, "", content)
        self.touch(now, node)

    def kept_attributes(self, node: Node) -> dict[str, Any]:
        """Return the saved attributes of a node: users' attributes, and attributes that its type does not keep."""
        items = self.tree.items(node.chain, node.id, Facet.ATTRIBUTE)
        return {name: documents.loads(value) for name, value in items.items()}

    def kept_attribute(self, node: Node, name: str) -> Any:
        """Return the binary YSON of a saved attribute, None if there is none."""
        return self.tree.get(node.chain, node.id, Facet.ATTRIBUTE, kept(name))

    def keep_attribute(self, now: int, node: Node, name: str, value: Any) -> None:
        """Save an attribute of a node, with a lock on this attribute."""
        self.locks.need(node.chain, node.id, node.path, SHARED, f"attribute:{name}")
        self.put_attribute(node, name, value)
        self.touch(now, node, ATTRIBUTES)

    def put_attribute(self, node: Node, name: str, value: Any) -> None:
        """Save an attribute of a node that is already locked."""
        self.tree.put(node.chain[0], node.id, Facet.ATTRIBUTE, name, documents.dumps(value, text=False))

    def drop_attribute(self, now: int, node: Node, name: str) -> None:
        """Remove a saved attribute of a node, with a lock on this attribute."""
        self.locks.need(node.chain, node.id, node.path, SHARED, f"attribute:{name}")
        self.tree.put(node.chain[0], node.id, Facet.ATTRIBUTE, name, None)
        self.touch(now, node, ATTRIBUTES)

    def touch(self, now: int, node: Node, what: str = "") -> None:
        """Set the time of a node's last change: of its content or children, or of its `ATTRIBUTES`."""
        self.tree.put(node.chain[0], node.id, Facet.CHANGED, what, max(now, self.changed(node) + 1))

    # -- the place of a node --------------------------------------------------------------------------

    def insert(self, now: int, parent: Node, name: str | None, type_name: str, object_type: ObjectType) -> Node:
        """Add a node without attributes under a free name; by default, its id is its name."""
        node_id = new_id(object_type)
        name = node_id if name is None else name
        self.tree.put(parent.chain[0], node_id, Facet.TYPE, "", f"{type_name} {now}")
        self.attach(now, parent, name, node_id)
        node = Node(node_id, type_name, f"{parent.path}/{escape(name)}", parent.chain)
        self.locks.need(node.chain, node.id, node.path, EXCLUSIVE)
        return node

    def attach(self, now: int, parent: Node, name: str, node_id: str) -> None:
        """Make a node a child of another one, under a free name."""
        if not isinstance(name, str) or not name or len(name) > MAX_NAME:
            valid = f"1 to {MAX_NAME} characters"
            raise refused("not a name of a node", received=repr(name)[:100], valid=valid)
        if self.tree.get(parent.chain, parent.id, Facet.CHILD, kept(name)) is not None:
            raise already_exists(f"{parent.path}/{escape(name)}")
        self.locks.need(parent.chain, parent.id, parent.path, SHARED, f"child:{kept(name)}")
        own = parent.chain[0]
        self.tree.put(own, parent.id, Facet.CHILD, kept(name), node_id)
        self.tree.put(own, node_id, Facet.PLACE, "", f"{parent.id} {kept(name)}")
        self.touch(now, parent)

    def detach(self, now: int, node: Node) -> None:
        """Remove a node from its parent."""
        parent = self.parent(node)
        assert parent is not None
        name = self.name(node)
        self.locks.need(parent.chain, parent.id, parent.path, SHARED, f"child:{kept(name)}")
        self.tree.put(parent.chain[0], parent.id, Facet.CHILD, kept(name), None)
        self.touch(now, parent)

    def check_not_protected(self, nodes: Iterable[Node]) -> None:
        """Raise an error if one of the nodes is a part of the cluster, which can be neither removed nor moved."""
        for node in nodes:
            if node.id in self.protected:
                raise YtError(Code.AUTHORIZATION, f"Access denied: {node.path} is a part of the cluster")

    def make_root(self, now: int) -> None:
        """Create the root node if it does not exist."""
        if self.tree.get((TRUNK,), ROOT, Facet.TYPE) is None:
            self.tree.put(TRUNK, ROOT, Facet.TYPE, "", f"{MAP_NODE_TYPE} {now}")
