"""The tokens of the query language."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from headrace_ytsaurus.endpoint.select.nodes import Node, query_error
from headrace_ytsaurus.endpoint.select.types import Unsigned, literal

_MAX_DEPTH = 100
_MAX_UNSIGNED = (1 << 64) - 1
# Python refuses to convert texts of more than 4300 digits, with an error of its own.
_MAX_DIGITS = 1000
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
        "and or not between in like ilike case when then else end is",
    )
    for word in clause.split()
)
_CONSTANTS = {
    **{"%true": True, "true": True, "%false": False, "false": False, "#": None, "null": None},
    **{"%nan": float("nan"), "%inf": float("inf")},
}
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


class Token(NamedTuple):
    """A piece of a query.

    Attributes:
        kind: ``name``, ``literal``, ``sign`` for signs and keywords, or ``end``.
        value: the name, the literal as a `Node`, or the sign or keyword in lower case.
        begin, end: the position in the query.
    """

    kind: str
    value: Any
    begin: int
    end: int


def tokens(text: str, placeholders: Mapping[str, Any]) -> Iterator[Token]:
    """Return the tokens of a query, and one of the kind ``end``.

    Args:
        placeholders: the values of the names in braces.

    Raises:
        YtError: an unknown character or placeholder, a number above uint64, more than 100 nested parentheses.
    """
    position = depth = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise query_error(f"Error while parsing query: unexpected {text[position]!r} at position {position}")
        kind, value, end = str(found.lastgroup), found.group(), found.end()
        depth += {"(": 1, ")": -1}.get(value, 0)
        if depth > _MAX_DEPTH:
            raise query_error(f"Error while parsing query: more than {_MAX_DEPTH} nested parentheses")
        if kind == "sign" or (kind == "word" and value.lower() in _KEYWORDS):
            yield Token("sign", value.lower(), position, end)
        elif kind == "name" or (kind == "word" and value.lower() not in _CONSTANTS):
            yield Token("name", _name(value), position, end)
        elif kind != "space":
            constant = _constant(kind, value, placeholders)
            yield Token("literal", _literal(constant, (text, position, end)), position, end)
        position = end
    yield Token("end", "", position, position)


def _constant(kind: str, value: str, placeholders: Mapping[str, Any]) -> Any:
    match kind:
        case "text":
            return _unescaped(value[1:-1])
        case "unsigned":
            return Unsigned(_whole_number(value[:-1]))
        case "number":
            return _whole_number(value) if value.isdigit() else float(value)
        case "placeholder":
            name = value[1:-1].strip()
            if name not in placeholders:
                raise query_error(f"Placeholder {name!r} has no value", valid=sorted(placeholders))
            return placeholders[name]
    return _CONSTANTS[value.lower()]


def _literal(value: Any, source: tuple[str, int, int]) -> Node:
    if isinstance(value, list | tuple):
        return Node("tuple", tuple(_literal(item, source) for item in value), source=source)
    return Node("literal", value=literal(value), source=source)


def _whole_number(digits: str) -> int:
    number = _MAX_UNSIGNED + 1 if len(digits) > _MAX_DIGITS else int(digits)
    if number > _MAX_UNSIGNED:
        shown = digits if len(digits) <= _MAX_DIGITS else digits[:_MAX_DIGITS] + "…"
        raise query_error(f"Error while parsing query: {shown} is larger than any uint64")
    return number


def _name(value: str) -> str:
    """Return a name without its brackets or backticks; only backticks have escapes."""
    if value[0] != "`":
        return value[1:-1] if value[0] == "[" else value
    try:
        return _unescaped(value[1:-1]).decode()
    except UnicodeDecodeError:
        raise query_error("Error while parsing query: a name is not UTF-8") from None


def _unescaped(text: str) -> bytes:
    """Return a text with its escapes replaced; some are for single bytes."""

    def character(found: re.Match[bytes]) -> bytes:
        if found[3] is not None:
            return _ESCAPED.get(found[3], found[3])
        return bytes([int(found[1], 16) if found[1] else int(found[2], 8) & 0xFF])

    return _ESCAPE.sub(character, text.encode())
