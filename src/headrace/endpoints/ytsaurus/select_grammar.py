"""The query language of ``select_rows``: a text becomes a `Query`, a tree that holds nothing this endpoint cannot do.

The language is SQL with names in brackets, literals such as ``5u`` and ``%true``, ``#`` for null, placeholders in
braces, and aliases in GROUP BY. A lexer turns what is special into what every SQL parser reads: names are quoted,
literals become parameters, functions get a prefix, so that no name or function is a word of SQL by chance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from headrace.wire.ytsaurus.errors import Code, YtError

MAX_QUERY_LENGTH = 1 << 20
_MAX_DEPTH = 100
FUNCTION_PREFIX = "yt_"
_LARGEST_UNSIGNED = (1 << 64) - 1
_MOST_ROWS = 1 << 62

Node: TypeAlias = exp.Expr


class Unsigned(int):
    """A literal such as ``5u``."""


class Item(NamedTuple):
    """An expression, and the name that it goes by."""

    node: Node
    name: str


@dataclass(frozen=True)
class Query:
    """A query that was read.

    Attributes:
        path: the table.
        items: what is selected; None for ``*``.
        where, having: conditions, if there are any.
        group: what rows are grouped by, None without GROUP BY.
        order: what rows are sorted by, and whether the largest comes first.
        literals: the value of each parameter in the tree.
    """

    path: str
    items: tuple[Item, ...] | None
    where: Node | None = None
    group: tuple[Item, ...] | None = None
    having: Node | None = None
    order: tuple[tuple[Node, bool], ...] = ()
    offset: int = 0
    limit: int | None = None
    literals: Mapping[str, Any] = field(default_factory=dict)


_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<name>\[[^\]]*\]|`(?:[^`\\]|\\.)*`|\$[A-Za-z_]\w*)
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<unsigned>\d+[uU]\b)
    |(?P<number>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+)
    |(?P<placeholder>\{\s*[A-Za-z_]\w*\s*\})
    |(?P<constant>%true\b|%false\b|%nan\b|%inf\b|\#)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign><<|>>|<=|>=|<>|!=|\|\||[-+*/%&|~^=<>(),.])""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset(
    word
    for clause in (
        "select from where having offset limit join using group by with totals order asc desc left as on",
        "and or not null between in like ilike case when then else end false true is distinct over union",
    )
    for word in clause.split()
)
_CONSTANTS = {"%true": True, "%false": False, "%nan": float("nan"), "%inf": float("inf"), "#": None}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def parse_query(text: str, placeholders: Mapping[str, Any] | None = None) -> Query:
    """Read a query.

    Args:
        text: the query, with or without the word SELECT.
        placeholders: the values of names in braces.

    Raises:
        YtError: the text is no query, or asks for what this endpoint does not do.
    """
    if len(text) > MAX_QUERY_LENGTH:
        raise wrong(f"The query is too long: {len(text)} characters, at most {MAX_QUERY_LENGTH}")
    lexer = _Lexer(text, placeholders or {})
    sql = lexer.rewritten()
    try:
        tree = parse_one(sql)
    except (SqlglotError, RecursionError) as error:
        raise wrong(f"Error while parsing query: {_first_line(error)}", query=text[:1000]) from None
    if not isinstance(tree, exp.Select):
        raise wrong("Error while parsing query: only SELECT is a query", query=text[:1000])
    return _query(tree, lexer)


def wrong(message: str, **attributes: Any) -> YtError:
    """Return the error that a query cannot be run."""
    return YtError(Code.GENERIC, message, attributes=attributes)


class _Lexer:
    """Rewrites a query; what it finds on the way stays with it.

    Attributes:
        literals: parameter → value.
        aliases: the names given to the expressions of GROUP BY, by position.
    """

    def __init__(self, text: str, placeholders: Mapping[str, Any]) -> None:
        self._text = text
        self._placeholders = placeholders
        self.literals: dict[str, Any] = {}
        self.aliases: dict[int, str] = {}

    def rewritten(self) -> str:
        tokens = list(self._tokens())
        words = [value.lower() if kind == "word" else "" for kind, value in tokens]
        pieces: list[str] = [] if words and words[0] == "select" else ["SELECT"]
        grouping, element, depth, skip = False, 0, 0, 0
        for index, (kind, value) in enumerate(tokens):
            if skip:
                skip -= 1
                continue
            depth += {"(": 1, ")": -1}.get(value, 0) if kind == "sign" else 0
            word = words[index]
            if depth == 0 and word in ("having", "order", "limit", "offset", "with"):
                grouping = False
            if grouping and depth == 0 and value == "," and kind == "sign":
                element += 1
            if grouping and depth == 0 and word == "as" and index + 1 < len(tokens):
                self.aliases[element] = _plain_name(*tokens[index + 1])
                skip = 1
                continue
            called = index + 1 < len(tokens) and tokens[index + 1] == ("sign", "(")
            pieces.append(self._piece(kind, value, called=called))
            if word == "by" and index and words[index - 1] == "group":
                grouping = True
        return " ".join(pieces)

    def _tokens(self) -> Iterator[tuple[str, str]]:
        at = 0
        depth = 0
        while at < len(self._text):
            found = _TOKEN.match(self._text, at)
            if found is None:
                raise wrong(f"Error while parsing query: unexpected {self._text[at]!r} at position {at}")
            kind, value = str(found.lastgroup), found.group()
            depth += {"(": 1, ")": -1}.get(value, 0)
            if depth > _MAX_DEPTH:
                raise wrong(f"Error while parsing query: more than {_MAX_DEPTH} parentheses inside each other")
            if kind != "space":
                yield kind, value
            at = found.end()

    def _piece(self, kind: str, value: str, *, called: bool) -> str:
        match kind:
            case "name":
                return _quoted(_plain_name(kind, value))
            case "text":
                return self._parameter(_unescaped(value[1:-1]))
            case "unsigned":
                number = int(value[:-1])
                if number > _LARGEST_UNSIGNED:
                    raise wrong(f"Error while parsing query: {value} is larger than any uint64")
                return self._parameter(Unsigned(number))
            case "number":
                return self._parameter(int(value) if value.isdigit() else float(value))
            case "placeholder":
                name = value[1:-1].strip()
                if name not in self._placeholders:
                    raise wrong(f"Placeholder {name!r} has no value", valid=sorted(self._placeholders))
                return self._parameter(self._placeholders[name])
            case "constant":
                return self._parameter(_CONSTANTS[value])
            case "word" if called and value.lower() not in _KEYWORDS:
                return FUNCTION_PREFIX + value
            case "word" if value.lower() not in _KEYWORDS:
                return _quoted(value)
            case "word" if value.lower() in ("true", "false", "null"):
                return self._parameter({"true": True, "false": False}.get(value.lower()))
        return value

    def _parameter(self, value: Any) -> str:
        if isinstance(value, list | tuple):
            return f"({', '.join(self._parameter(item) for item in value)})"
        name = f"l{len(self.literals)}"
        self.literals[name] = value
        return f":{name}"


def _plain_name(kind: str, value: str) -> str:
    if kind == "name" and value[0] in "[`":
        return value[1:-1] if value[0] == "[" else _unescaped(value[1:-1])
    return value


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text

    def character(found: re.Match[str]) -> str:
        if found[3] is not None:
            return _ESCAPED.get(found[3], found[3])
        # Escapes write bytes, which together are UTF-8.
        return chr(0xDC00 + int(found[1], 16) if found[1] else 0xDC00 + (int(found[2], 8) & 0xFF))

    replaced = _ESCAPE.sub(character, text)
    try:
        return b"".join(
            bytes([ord(each) - 0xDC00]) if 0xDC00 <= ord(each) <= 0xDCFF else each.encode() for each in replaced
        ).decode()
    except UnicodeError:
        raise wrong("Error while parsing query: a string literal is not UTF-8") from None


# -- from the tree of SQL to a query ----------------------------------------------------------------------

_PARTS = {"expressions", "from_", "where", "group", "having", "order", "offset", "limit", "kind"}


def _query(tree: exp.Select, lexer: _Lexer) -> Query:
    for part, value in tree.args.items():
        if value and part not in _PARTS:
            raise wrong(f"The query has a part that is not supported here: {part.upper()}")
    source = tree.args.get("from_")
    table = source.this if source is not None else None
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier) or table.args.get("joins"):
        raise wrong("Error while parsing query: FROM needs one table, such as [//tmp/t]")
    if table.alias:
        _drop_alias(tree, table.alias)
    group = tree.args.get("group")
    grouped = None
    if group is not None:
        for part, value in group.args.items():
            if value and part != "expressions":
                raise wrong(f"GROUP BY with {part.upper()} is not supported here")
        grouped = tuple(
            Item(node, lexer.aliases.get(index, _name_of(node, index))) for index, node in enumerate(group.expressions)
        )
    where, having = tree.args.get("where"), tree.args.get("having")
    order = tree.args.get("order")
    sorted_by = [] if order is None else order.expressions
    items = None if [type(each) for each in tree.expressions] == [exp.Star] else _items(tree.expressions)
    return Query(
        path=table.this.this,
        items=items,
        where=None if where is None else where.this,
        group=grouped,
        having=None if having is None else having.this,
        order=tuple((each.this, bool(each.args.get("desc"))) for each in sorted_by),
        offset=_count(tree.args.get("offset"), lexer) or 0,
        limit=_count(tree.args.get("limit"), lexer),
        literals=lexer.literals,
    )


def _items(nodes: list[Node]) -> tuple[Item, ...]:
    items = []
    for index, node in enumerate(nodes):
        if isinstance(node, exp.Star):
            raise wrong("Error while parsing query: * stands alone")
        named = isinstance(node, exp.Alias)
        items.append(Item(node.this, node.alias) if named else Item(node, _name_of(node, index)))
    names = [item.name for item in items]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise wrong(f"Alias {min(repeated)!r} has been already used")
    return tuple(items)


def _name_of(node: Node, index: int) -> str:
    return node.name if isinstance(node, exp.Column) else f"${index}"


def _count(node: Node | None, lexer: _Lexer) -> int | None:
    if node is None:
        return None
    value = lexer.literals.get(node.expression.name) if isinstance(node.expression, exp.Placeholder) else None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise wrong("LIMIT and OFFSET need a whole number that is not negative")
    # More rows than this there are not anywhere, and Arrow counts in 64 bits.
    return min(int(value), _MOST_ROWS)


def _drop_alias(tree: exp.Select, alias: str) -> None:
    """Make ``t.column`` a column, where t is the table's alias."""
    for column in tree.find_all(exp.Column):
        if column.table == alias:
            column.set("table", None)


def _first_line(error: Exception) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)) or type(error).__name__
    return text.splitlines()[0]
