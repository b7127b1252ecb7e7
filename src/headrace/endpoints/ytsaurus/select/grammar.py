"""The query language of ``select_rows``: a text becomes a `Query`, a tree that holds nothing this endpoint cannot do.

The language is SQL with names in brackets, literals such as ``5u`` and ``%true``, ``#`` for null, placeholders in
braces, and aliases in GROUP BY. A lexer turns what is special into what every SQL parser reads: names are quoted,
literals become parameters, functions get a prefix, so that no name or function is a word of SQL by chance.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from headrace.wire.ytsaurus.errors import Code, YtError

MAX_QUERY_LENGTH = 1 << 20
_MAX_DEPTH = 100
FUNCTION_PREFIX = "yt_"
RANGE = "in_range"
"""What stands in a list of values for a lower and an upper bound, its arguments."""
_LARGEST_UNSIGNED = (1 << 64) - 1
_MOST_DIGITS = 1000
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
        aliases: what the names stand for that are given with AS.
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
    aliases: Mapping[str, Node] = field(default_factory=dict)


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
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


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
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise wrong(f"Error while parsing query: half of a surrogate pair at position {error.start}") from None
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
        texts: the expressions that are selected, as they are written.
    """

    def __init__(self, text: str, placeholders: Mapping[str, Any]) -> None:
        self._text = text
        self._placeholders = placeholders
        self.literals: dict[str, Any] = {}
        self.aliases: dict[int, str] = {}
        self.texts: list[str] = []

    def rewritten(self) -> str:
        found = list(self._tokens())
        tokens = [(kind, value) for kind, value, _ in found]
        ranges = _ranges(tokens)
        self.texts = self._selected(found)
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
            if index in ranges:
                pieces.append(ranges[index])
                continue
            called = index + 1 < len(tokens) and tokens[index + 1] == ("sign", "(")
            pieces.append(self._piece(kind, value, called=called))
            if word == "by" and index and words[index - 1] == "group":
                grouping = True
        return " ".join(pieces)

    def _selected(self, tokens: Sequence[tuple[str, str, int]]) -> list[str]:
        """Return the expressions that are selected."""
        texts, depth, begin, end = [], 0, None, 0
        for kind, value, at in tokens:
            depth += {"(": 1, ")": -1}.get(value, 0) if kind == "sign" else 0
            word = value.lower() if kind == "word" else ""
            if depth == 0 and (word in ("select", "from") or value == ","):
                if begin is not None:
                    texts.append(" ".join(self._text[begin:end].split()))
                begin = None
                if word == "from":
                    break
                continue
            begin = at if begin is None else begin
            end = at + len(value)
        return texts

    def _tokens(self) -> Iterator[tuple[str, str, int]]:
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
                yield kind, value, at
            at = found.end()

    def _piece(self, kind: str, value: str, *, called: bool) -> str:
        match kind:
            case "name":
                return _quoted(_plain_name(kind, value))
            case "text":
                return self._parameter(_text(_unescaped(value[1:-1])))
            case "unsigned":
                return self._parameter(Unsigned(_whole(value[:-1])))
            case "number":
                return self._parameter(_whole(value) if value.isdigit() else float(value))
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


def _ranges(tokens: Sequence[tuple[str, str]]) -> dict[int, str]:
    """Return what stands in place of some tokens, so that BETWEEN with a list of ranges becomes IN with one."""
    replaced: dict[int, str] = {}
    words = [value.lower() if kind == "word" else value if kind == "sign" else "" for kind, value in tokens]
    for index, word in enumerate(words):
        if word != "between" or words[index + 1 : index + 2] != ["("]:
            continue
        depth, signs = 0, {}
        for place in range(index + 1, len(words)):
            depth += {"(": 1, ")": -1}.get(words[place], 0)
            if depth == 0:
                signs[place] = "))"
                break
            if depth == 1 and words[place] in ("and", ","):
                signs[place] = "," if words[place] == "and" else f"), {RANGE} ("
        if "," in signs.values() and "))" in signs.values():
            replaced |= {index: "in", index + 1: f"({RANGE} (", **signs}
    return replaced


def _plain_name(kind: str, value: str) -> str:
    if kind == "name" and value[0] in "[`":
        name = value[1:-1] if value[0] == "[" else _text(_unescaped(value[1:-1]))
        if isinstance(name, bytes):
            raise wrong("Error while parsing query: a name is not UTF-8")
        return name
    return value


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _unescaped(text: str) -> bytes:
    """Return the bytes that a string literal stands for, of which escapes write one each."""

    def character(found: re.Match[bytes]) -> bytes:
        if found[3] is not None:
            return _ESCAPED.get(found[3], found[3])
        return bytes([int(found[1], 16) if found[1] else int(found[2], 8) & 0xFF])

    return _ESCAPE.sub(character, text.encode())


def _text(data: bytes) -> str | bytes:
    """Return bytes as text, if that is what they are."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


# -- from the tree of SQL to a query ----------------------------------------------------------------------

_OWN = "own"
_PARTS = {"expressions", "from_", "where", "group", "having", "order", "offset", "limit", "kind"}


def _query(tree: exp.Select, lexer: _Lexer) -> Query:
    for part, value in tree.args.items():
        if value and part not in _PARTS:
            raise wrong(f"The query has a part that is not supported here: {part.upper()}")
    source = tree.args.get("from_")
    table = source.this if source is not None else None
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier) or table.args.get("joins"):
        raise wrong("Error while parsing query: FROM needs one table, such as [//tmp/t]")
    _drop_alias(tree, table.alias)
    group = tree.args.get("group")
    grouped = None
    if group is not None:
        for part, value in group.args.items():
            if value and part != "expressions":
                raise wrong(f"GROUP BY with {part.upper()} is not supported here")
        grouped = tuple(
            Item(node, lexer.aliases.get(index, _name_of(node, f"${index}")))
            for index, node in enumerate(group.expressions)
        )
    where, having = tree.args.get("where"), tree.args.get("having")
    order = tree.args.get("order")
    limited = tree.args.get("limit") is not None
    for part in ("order", "offset"):
        if tree.args.get(part) is not None and not limited:
            raise wrong(f"{'ORDER BY' if part == 'order' else 'OFFSET'} used without LIMIT")
    if having is not None and limited and order is None:
        raise wrong("HAVING with LIMIT is not allowed")
    sorted_by = [] if order is None else order.expressions
    items = None if [type(each) for each in tree.expressions] == [exp.Star] else _items(tree.expressions, lexer.texts)
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
        aliases=_aliases(tree, items, grouped),
    )


def _items(nodes: list[Node], texts: Sequence[str]) -> tuple[Item, ...]:
    items = []
    for index, node in enumerate(nodes):
        if isinstance(node, exp.Star):
            raise wrong("Error while parsing query: * stands alone")
        named = isinstance(node, exp.Alias)
        name = texts[index] if len(texts) == len(nodes) else f"${index}"
        items.append(Item(node.this, node.alias) if named else Item(node, _name_of(node, name)))
    if repeated := [name for name, count in Counter(item.name for item in items).items() if count > 1]:
        raise wrong(f"Alias {min(repeated)!r} has been already used")
    return tuple(items)


def _whole(digits: str) -> int:
    """Return a number; Python itself refuses to read thousands of digits, with an error of its own."""
    number = _LARGEST_UNSIGNED + 1 if len(digits) > _MOST_DIGITS else int(digits)
    if number > _LARGEST_UNSIGNED:
        shown = digits if len(digits) <= _MOST_DIGITS else digits[:_MOST_DIGITS] + "…"
        raise wrong(f"Error while parsing query: {shown} is larger than any uint64")
    return number


def _name_of(node: Node, otherwise: str) -> str:
    return node.name if isinstance(node, exp.Column) else otherwise


def _count(node: Node | None, lexer: _Lexer) -> int | None:
    if node is None:
        return None
    value = lexer.literals.get(node.expression.name) if isinstance(node.expression, exp.Placeholder) else None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise wrong("LIMIT and OFFSET need a whole number that is not negative")
    # More rows than this there are not anywhere, and Arrow counts in 64 bits.
    return min(int(value), _MOST_ROWS)


def _drop_alias(tree: exp.Select, alias: str) -> None:
    """Make ``t.column``, where t is the table's alias, a column of the table; see `is_own`."""
    for column in tree.find_all(exp.Column):
        if column.table:
            if column.table != alias or column.args.get("db") is not None:
                raise wrong(f"Undefined reference {column.sql()[:200]}")
            column.set("table", None)
            column.meta[_OWN] = True


def is_own(column: Node) -> bool:
    """Tell whether a column was named together with its table, so that no alias is meant."""
    return _OWN in column.meta


def _aliases(tree: exp.Select, items: tuple[Item, ...] | None, group: tuple[Item, ...] | None) -> dict[str, Node]:
    inside = (Item(alias.this, alias.alias) for alias in tree.find_all(exp.Alias))
    both = (*inside, *(items or ()), *(group or ()))
    return {name: node for node, name in both if not (isinstance(node, exp.Column) and node.name == name)}


def _first_line(error: Exception) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)) or type(error).__name__
    return text.splitlines()[0]
