"""The tree of a query: expressions as `Node`, and the clauses of a `Query`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace_ytsaurus.wire.errors import Code, YtError

_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Node:
    """An expression. Two nodes are equal if they mean the same, wherever and however they are written.

    Attributes:
        kind: ``name``, ``literal``, ``tuple``, ``call``, ``as``, ``case``, ``all`` for the asterisk of a
            call, or an operator such as ``+``.
        children: the operands or arguments. A ``case`` has pairs of a condition and a value, then the default.
        value: the name of a column, function or alias; the `Value` of a literal.
        qualified: whether a name has the table's alias in front, so that it is never the alias of an expression.
        source: the text of the query, and the begin and end of the expression within it.
    """

    kind: str
    children: tuple[Node, ...] = ()
    value: Any = None
    qualified: bool = field(default=False, compare=False)
    source: tuple[str, int, int] = field(default=("", 0, 0), compare=False, repr=False)

    @property
    def text(self) -> str:
        """The expression as written in the query, with single spaces, for messages."""
        query, begin, end = self.source
        return " ".join(query[begin : min(end, begin + _SHOWN_CHARACTERS)].split())

    @property
    def elements(self) -> tuple[Node, ...]:
        """The elements of a tuple; any other expression is a tuple of one."""
        return self.children if self.kind == "tuple" else (self,)

    def walk(self) -> Iterator[Node]:
        """Return the node and everything below it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children)


class Item(NamedTuple):
    """An expression and the name of its column."""

    node: Node
    name: str


@dataclass(frozen=True)
class Query:
    """A parsed query.

    Attributes:
        path: the table.
        items: the selected expressions; None for ``*``.
        where, having: conditions, or None.
        group: the expressions to group by, None without GROUP BY.
        order: the expressions to sort by, each with whether the order is descending.
        aliases: alias → expression, for AS in every clause.
    """

    path: str
    items: tuple[Item, ...] | None
    where: Node | None = None
    group: tuple[Item, ...] | None = None
    having: Node | None = None
    order: tuple[tuple[Node, bool], ...] = ()
    offset: int = 0
    limit: int | None = None
    aliases: Mapping[str, Node] = field(default_factory=dict)

    @property
    def nodes(self) -> list[Node]:
        """The expressions of all clauses."""
        items = [item.node for item in (*(self.items or ()), *(self.group or ()))]
        return [*items, *(node for node in (self.where, self.having) if node), *(node for node, _ in self.order)]

    def is_alias(self, node: Node) -> bool:
        """Return whether a node is the name of an alias."""
        return node.kind == "name" and node.value in self.aliases and not node.qualified

    def is_column(self, node: Node) -> bool:
        """Return whether a node is the name of a column of the table."""
        return node.kind == "name" and not self.is_alias(node)


def query_error(message: str, **attributes: Any) -> YtError:
    """Return the error for a query that cannot be run."""
    return YtError(Code.GENERIC, message, attributes=attributes)
