"""The grammar of the query language of ``select_rows``: a text becomes a `Query`.

Operators bind as in YTsaurus' own grammar (`parser.yy`), the loosest first: OR, AND, NOT, equality, order, membership
(IN, BETWEEN, LIKE, IS NULL), ``|``, ``^``, ``&``, shifts, addition, multiplication, signs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from headrace_ytsaurus.endpoint.select.lexer import tokens
from headrace_ytsaurus.endpoint.select.nodes import Item, Node, Query, query_error
from headrace_ytsaurus.endpoint.select.types import Value

MAX_QUERY_LENGTH = 1 << 20
# Arrow counts rows in 64 bits, and no table has more than this.
_MAX_ROWS = 1 << 62
# One line for each level, of which NOT in front of an expression (3) and signs (13) have no operators.
_LEVELS = [
    "or",
    "and",
    "",
    "= != <>",
    "< <= > >=",
    "in between like ilike is not",
    "|",
    "^",
    "&",
    "<< >>",
    "+ - ||",
    "* / %",
    "",
]
_BINDING = {sign: level for level, signs in enumerate(_LEVELS, 1) for sign in signs.split()}
_NOT, _MEMBERSHIP, _SIGN = 3, 6, len(_LEVELS)
_NULL = Node("literal", value=Value(pa.scalar(None), literal=True))
_Part = TypeVar("_Part")


def parse_query(text: str, placeholders: Mapping[str, Any] | None = None) -> Query:
    """Return the query of a text.

    Args:
        text: the query, with or without the word SELECT.
        placeholders: the values of the names in braces.

    Raises:
        YtError: a syntax error, or a part of the language that this endpoint does not support.
    """
    if len(text) > MAX_QUERY_LENGTH:
        raise query_error(f"The query is too long: {len(text)} characters, at most {MAX_QUERY_LENGTH}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise query_error(f"Error while parsing query: half of a surrogate pair at position {error.start}") from None
    try:
        return _Parser(text, placeholders or {}).query()
    except RecursionError:
        raise query_error("Error while parsing query: too many nested expressions", query=text[:1000]) from None


class _Parser:
    """Reads a query from its first token to the last."""

    def __init__(self, text: str, placeholders: Mapping[str, Any]) -> None:
        self._text = text
        self._tokens = list(tokens(text, placeholders))
        self._place = 0
        self._aliases: dict[str, Node] = {}
        self._tables: dict[str, str] = {}

    # -- tokens -----------------------------------------------------------------------------------------

    def _at(self, *signs: str) -> bool:
        """Return whether the next token is one of some signs or keywords."""
        token = self._tokens[self._place]
        return token.kind == "sign" and token.value in signs

    def _take(self, sign: str) -> bool:
        """Skip the next token if it is a sign or keyword; return whether it was."""
        found = self._at(sign)
        self._place += found
        return found

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._unexpected(f", expected {sign.upper()}")

    def _name(self) -> str:
        token = self._tokens[self._place]
        if token.kind != "name":
            raise self._unexpected(", expected a name")
        self._place += 1
        return str(token.value)

    def _unexpected(self, expected: str = "") -> Exception:
        _, _, begin, end = self._tokens[self._place]
        found = repr(self._text[begin:end][:100]) if end > begin else "end of the query"
        message = f"Error while parsing query: unexpected {found} at position {begin}{expected}"
        return query_error(message, query=self._text[:1000])

    def _node(self, begin: int, kind: str, *children: Node, value: Any = None, qualified: bool = False) -> Node:
        """Return a node of the text between a token and the next one to be read."""
        source = (self._text, self._tokens[begin].begin, self._tokens[self._place - 1].end)
        return Node(kind, children, value, qualified, source)

    def _list(self, part: Callable[[], _Part]) -> list[_Part]:
        found = [part()]
        while self._take(","):
            found.append(part())
        return found

    # -- clauses ----------------------------------------------------------------------------------------

    def query(self) -> Query:
        self._take("select")
        items = None if self._take("*") else tuple(self._list(self._item))
        names = Counter(item.name for item in items or ())
        if repeated := [name for name, count in names.items() if count > 1]:
            raise query_error(f"Alias {min(repeated)!r} has been already used")
        self._expect("from")
        path = self._name()
        self._take("as")
        table = self._name() if self._tokens[self._place].kind == "name" else None
        clauses = self._clauses()
        for unknown, reference in self._tables.items():
            if unknown != table:
                raise query_error(f"Undefined reference {reference[:200]!r}")
        if "limit" not in clauses:
            for clause, words in (("order", "ORDER BY"), ("offset", "OFFSET")):
                if clause in clauses:
                    raise query_error(f"{words} used without LIMIT")
        elif "having" in clauses and "order" not in clauses:
            raise query_error("HAVING with LIMIT is not allowed")
        return Query(path, items, aliases=self._aliases, **clauses)

    def _clauses(self) -> dict[str, Any]:
        """Return the clauses after FROM, by the names of the attributes of `Query`."""
        found: dict[str, Any] = {}
        while self._tokens[self._place].kind != "end":
            clause = str(self._tokens[self._place].value)
            if not self._at(*_CLAUSES) or clause in found:
                raise self._unexpected()
            self._place += 1
            found[clause] = _CLAUSES[clause](self)
        return found

    def _groups(self) -> tuple[Item, ...]:
        self._expect("by")
        items = tuple(self._list(self._item))
        if self._at("with"):
            raise query_error("GROUP BY with TOTALS is not supported here")
        return items

    def _order(self) -> tuple[tuple[Node, bool], ...]:
        def part() -> tuple[Node, bool]:
            node = self._expression()
            return node, not self._take("asc") and self._take("desc")

        self._expect("by")
        return tuple(self._list(part))

    def _count(self) -> int:
        node = self._expression()
        value = node.value.data.as_py() if node.kind == "literal" else None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise query_error("LIMIT and OFFSET need a whole number that is not negative")
        return min(value, _MAX_ROWS)

    def _unsupported(self) -> Any:
        raise query_error(
            f"The query has a part that is not supported here: {self._tokens[self._place - 1].value.upper()}"
        )

    def _item(self) -> Item:
        if self._at("*"):
            raise query_error("Error while parsing query: * cannot be selected together with other expressions")
        begin = self._place
        node = self._aliased()
        if node.kind == "as":
            return Item(node.children[0], node.value)
        if node.kind == "name":
            return Item(node, node.value)
        name = " ".join(self._text[self._tokens[begin].begin : self._tokens[self._place - 1].end].split())
        self._aliases[name] = node
        return Item(node, name)

    # -- expressions ------------------------------------------------------------------------------------

    def _aliased(self) -> Node:
        """Return an expression that may have an alias."""
        begin = self._place
        node = self._expression()
        if not self._take("as"):
            return node
        alias = self._name()
        if node.kind != "name" or node.value != alias:
            self._aliases[alias] = node
        return self._node(begin, "as", node, value=alias)

    def _expression(self, level: int = 0) -> Node:
        """Return an expression of operators that bind tighter than a level."""
        begin = self._place
        left = self._operand()
        while (token := self._tokens[self._place]).kind == "sign" and _BINDING.get(token.value, 0) > level:
            left = self._operation(begin, left, token.value)
        return left

    def _operation(self, begin: int, left: Node, sign: str) -> Node:
        """Return an operation, of which the left operand was read."""
        self._place += 1
        match sign:
            case "or" | "and":
                # One node of many operands: a long chain is not a deep tree.
                operands = [left, self._expression(_BINDING[sign])]
                while self._take(sign):
                    operands.append(self._expression(_BINDING[sign]))
                return self._node(begin, sign, *operands)
            case "not":
                if not self._at("in", "between", "like", "ilike"):
                    raise self._unexpected(", expected IN, BETWEEN or LIKE")
                inner = self._operation(begin, left, str(self._tokens[self._place].value))
                return self._node(begin, "not", inner)
            case "is":
                negated = self._take("not")
                if self._operand() != _NULL:
                    self._place -= 1
                    raise self._unexpected(", expected NULL")
                found = self._node(begin, "is null", left)
                return self._node(begin, "not", found) if negated else found
            case "in":
                return self._node(begin, "in", left, *self._values())
            case "between":
                return self._between(begin, left)
        return self._node(begin, "!=" if sign == "<>" else sign, left, self._expression(_BINDING[sign]))

    def _values(self) -> tuple[Node, ...]:
        """Return the values of IN: a list in parentheses, or the placeholder of a list."""
        if self._take("("):
            if self._at("select"):
                raise query_error("The query has a part that is not supported here: a query in IN")
            values = () if self._at(")") else tuple(self._list(self._expression))
            self._expect(")")
        else:
            values = self._operand().elements
        if not values:
            raise query_error("Error while parsing query: IN needs a value")
        return values

    def _between(self, begin: int, operand: Node) -> Node:
        if not self._at_ranges():
            return self._range(begin, operand)
        self._expect("(")
        ranges = self._list(lambda: self._range(begin, operand))
        self._expect(")")
        return self._node(begin, "or", *ranges)

    def _range(self, begin: int, operand: Node) -> Node:
        low = self._expression(_MEMBERSHIP)
        if not self._take("and"):
            raise query_error("Error while parsing query: a range of BETWEEN needs two bounds")
        return self._node(begin, "between", operand, low, self._expression(_MEMBERSHIP))

    def _at_ranges(self) -> bool:
        """Return whether the next tokens are a list of ranges: parentheses with an AND in them."""
        depth = 0
        for place in range(self._place, len(self._tokens)):
            kind, value, _, _ = self._tokens[place]
            depth += {"(": 1, ")": -1}.get(value, 0) if kind == "sign" else 0
            if depth == 0 or (depth == 1 and kind == "sign" and value == "and"):
                return depth == 1
        return False

    def _operand(self) -> Node:
        """Return an expression without operators behind it."""
        begin = self._place
        kind, value, _, _ = self._tokens[begin]
        self._place += 1
        if kind == "literal":
            literal: Node = value
            return literal
        if kind == "name":
            return self._call(begin, value) if self._take("(") else self._reference(begin, value)
        match value:
            case "(":
                nodes = self._list(self._aliased)
                self._expect(")")
                return nodes[0] if len(nodes) == 1 else self._node(begin, "tuple", *nodes)
            case "not":
                return self._node(begin, "not", self._expression(_NOT))
            case "-":
                return self._negative(begin, self._expression(_SIGN))
            case "+":
                return self._expression(_SIGN)
            case "~":
                return self._node(begin, "~", self._expression(_SIGN))
            case "case":
                return self._case(begin)
        self._place -= 1
        raise self._unexpected()

    def _call(self, begin: int, name: str) -> Node:
        if self._take("*"):
            arguments = [Node("all")]
        else:
            arguments = [] if self._at(")") else self._list(self._aliased)
        self._expect(")")
        return self._node(begin, "call", *arguments, value=name.lower())

    def _reference(self, begin: int, name: str) -> Node:
        names = [name]
        while self._take("."):
            names.append(self._name())
        if len(names) > 1:
            self._tables[".".join(names[:-1])] = ".".join(names)
        return self._node(begin, "name", value=names[-1], qualified=len(names) > 1)

    def _negative(self, begin: int, operand: Node) -> Node:
        """Return an expression with the opposite sign; for a literal without a type of its own, another literal."""
        value = operand.value.data.as_py() if operand.kind == "literal" and operand.value.literal else None
        if value is None or value < 0:
            return self._node(begin, "negative", operand)
        if value > 1 << 63:
            raise query_error("The literal does not fit int64", source=self._node(begin, "negative", operand).text)
        return self._node(begin, "literal", value=Value(pa.scalar(-value, pa.int64()), literal=True))

    def _case(self, begin: int) -> Node:
        operand = None if self._at("when") else self._expression()
        children: list[Node] = []
        while self._take("when"):
            at = self._place
            condition = self._expression()
            children.append(condition if operand is None else self._node(at, "=", operand, condition))
            self._expect("then")
            children.append(self._expression())
        if not children:
            raise self._unexpected(", expected WHEN")
        children.append(self._expression() if self._take("else") else _NULL)
        self._expect("end")
        return self._node(begin, "case", *children)


_CLAUSES: dict[str, Callable[[_Parser], Any]] = {
    "where": _Parser._expression,
    "group": _Parser._groups,
    "having": _Parser._expression,
    "order": _Parser._order,
    "offset": _Parser._count,
    "limit": _Parser._count,
    "join": _Parser._unsupported,
    "left": _Parser._unsupported,
}
