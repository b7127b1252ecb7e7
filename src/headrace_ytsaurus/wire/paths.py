"""YPath, the paths of YTsaurus: nodes of Cypress, their attributes, and parts of tables.

``//home/users/@account`` is an attribute, ``//home/queue/@tablets/0/state`` a value inside of one, ``#1-2-3-4/@type``
an attribute of the object with this id, ``primary://home/queue`` or ``<cluster=primary>//home/queue`` a path on another
cluster, and ``//home/link&`` a link itself instead of its target; the ``&`` can follow each name. In
``//home/queue/@schema/@strict``, the last part is an attribute of the value of another one. Paths can have attributes,
which are options of a command.

YTsaurus' client parses attributes before a path, and columns and rows after it. It does not split a path into nodes and
attributes; this module does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.errors import OptionError
from headrace_ytsaurus.wire.yson.documents import short_reason

MAX_LENGTH: Final = 1 << 16
"""The maximum number of characters of a path."""

_TOKEN: Final = re.compile(r"[/@&*]|(?:[^/@&*\\\[{]|\\[\\/@&*\[{]|\\x[0-9a-fA-F]{2})+")
_ESCAPED: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_SEPARATORS: Final = ("/", "@", "&", "*")
_SPECIAL: Final = re.compile(r"[\\/@&*\[{]")
_BYTE: Final = re.compile("[\udc80-\udcff]")
_CLUSTER: Final = re.compile(r"([\w-]+):(?=//|#|/$)", re.ASCII)
_OBJECT_ID: Final = re.compile(r"#[0-9a-fA-F]+(?:-[0-9a-fA-F]+){3}")
_INDEX: Final = re.compile(r"-?[0-9]{1,18}")
PARTS = frozenset({"columns", "ranges"})
"""The attributes of a path that select a part of a table."""
WHOLE = "the path of a whole table or queue; columns are chosen with select, rows with where"
"""The valid paths where parts of a table cannot be selected."""


class AttributeName(str):
    """A name in the path inside of an attribute that is itself the name of an attribute; empty for all attributes."""

    __slots__ = ()


class PathError(OptionError):
    """A text that is not a YPath."""


@dataclass(frozen=True)
class YPath:
    """A parsed path.

    Attributes:
        root: ``/`` for Cypress, or ``#`` and an object's id.
        nodes: names of the nodes from the root; in a list, a number is the index of an item (see `index_in_list`).
            Bytes of a name that are not UTF-8 are surrogates, as in Python's file names.
        attribute: None for the node itself; ``()`` for all attributes; otherwise the name and the path inside its
            value, for example ``("tablets", "0", "state")``. Attributes inside of it are `AttributeName` values.
        link: the path is that of a link itself, not of its target.
        unfollowed: for each name before the last one that has an ``&``, the number of names up to it.
        children: the path means all children of the node, or all items inside of the attribute (``/*``).
        attributes: attributes of the path; ``columns`` and ``ranges`` for parts of a table.
    """

    root: str = "/"
    nodes: tuple[str, ...] = ()
    attribute: tuple[str, ...] | None = None
    link: bool = False
    children: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    unfollowed: frozenset[int] = frozenset()

    @property
    def cluster(self) -> str | None:
        """The cluster of the path, None if it names none."""
        cluster = self.attributes.get("cluster")
        return None if cluster is None else str(cluster)

    @property
    def node(self) -> YPath:
        """The path of the node, without its attribute and without attributes of the path."""
        return YPath(self.root, self.nodes, None, self.link, unfollowed=self.unfollowed)

    @property
    def parent(self) -> YPath:
        """The path of the parent node.

        Raises:
            PathError: the path is a root, or the path of an attribute.
        """
        if not self.nodes or self.attribute is not None:
            raise PathError("this path has no parent", received=self.text)
        return YPath(self.root, self.nodes[:-1])

    @property
    def name(self) -> str:
        """The name of the node in its parent; empty for a root."""
        return self.nodes[-1] if self.nodes else ""

    @property
    def text(self) -> str:
        """The path without its attributes, with escaped names."""
        marks = self.unfollowed | ({len(self.nodes)} if self.link else set())
        parts = [self.root, "&" if 0 in marks else ""]
        for place, name in enumerate(self.nodes, start=1):
            parts.append(f"/{escape(name)}" + ("&" if place in marks else ""))
        if self.attribute is not None:
            names = (f"@{escape(name)}" if isinstance(name, AttributeName) else escape(name) for name in self.attribute)
            parts.append("/@" + "/".join(names))
        return "".join(parts) + ("/*" if self.children else "")

    def __str__(self) -> str:
        return self.text

    def child(self, *names: str) -> YPath:
        """Return the path of a descendant."""
        return YPath(self.root, (*self.nodes, *names))

    def with_attributes(self, attributes: Mapping[str, Any]) -> YPath:
        """Return the path with additional attributes."""
        return replace(self, attributes={**self.attributes, **attributes})


def parse_path(path: str | bytes, attributes: Mapping[str, Any] | None = None) -> YPath:
    """Parse a path.

    Args:
        path: the text; a string of ``yt.yson`` may have attributes, which become the path's.
        attributes: additional ones. Attributes in the text have precedence.

    Raises:
        PathError: the text is not a path.
    """
    text = _text(path)
    carried = {**(attributes or {}), **(getattr(path, "__dict__", {}).get("attributes") or {})}
    if text.lstrip().startswith("<") or has_suffix(text):
        text, written = _parse_rich(text)
        carried |= written
    text = text.strip(" ")
    if found := _CLUSTER.match(text):
        carried["cluster"] = found[1]
        text = text[found.end() :]
    return replace(_parse_plain(text), attributes=carried)


def escape(name: str) -> str:
    """Escape a name for a path. Surrogates, which are bytes that are not UTF-8, are written as hexadecimal numbers."""
    return _BYTE.sub(
        lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", _SPECIAL.sub(lambda found: "\\" + found[0], name)
    )


def index_in_list(name: str, length: int) -> int | None:
    """Return the index of an item from its name in a path; None if the name is not an index in a list of that length.

    Negative numbers count from the end.
    """
    if not _INDEX.fullmatch(name):
        return None
    index = int(name) + (length if name.startswith("-") else 0)
    return index if 0 <= index < length else None


def _text(path: str | bytes) -> str:
    """Return a path as a text, after checking its length."""
    if isinstance(path, bytes):
        path = path.decode(errors="surrogateescape")
    if not isinstance(path, str):
        raise PathError("a path must be a text", received=f"a {type(path).__name__}")
    if len(path) > MAX_LENGTH:
        raise PathError("a path that is too long", received=len(path), valid=f"at most {MAX_LENGTH} characters")
    try:
        # Surrogates that `escape` knows stand for bytes that are not UTF-8; others stand for nothing.
        path.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise PathError(
            "a path with half of a surrogate pair", received=f"character {error.start} of {path!r}"
        ) from None
    return str(path)


def has_suffix(text: str) -> bool:
    """Return whether a path is followed by columns or rows of a table."""
    return ("[" in text or "{" in text) and re.search(r"(?<!\\)(?:\\\\)*[\[{]", text) is not None


def _parse_plain(text: str) -> YPath:
    """Parse a path without attributes before it and without columns and rows after it."""
    tokens = _tokens(text)
    if not tokens:
        raise PathError("an empty path", valid="//a/path, or #an-object-id")
    if tokens[0] != "/" and not _OBJECT_ID.fullmatch(tokens[0]):
        raise PathError("a path that does not begin at a root", received=text, valid="//a/path, or #an-object-id")
    nodes: list[str] = []
    attribute: list[str] | None = None
    unfollowed: set[int] = set()
    link = children = False
    place = 1
    while place < len(tokens):
        what = tokens[place + 1 : place + 2]
        if tokens[place] == "&" and not link and attribute is None and not children:
            link, place = True, place + 1
        elif tokens[place] != "/" or children:
            raise _malformed(text, tokens[place])
        elif what == ["*"]:
            children, place = True, place + 2
        elif what == ["@"] and attribute is None:
            names = tokens[place + 2 : place + 3]
            if names and names[0] in ("@", "&"):
                raise _malformed(text, names[0])
            # /@* and /@/* both mean all attributes.
            children = names == ["*"]
            named = bool(names) and names[0] not in ("/", "*")
            attribute = [_unescaped(names[0])] if named else []
            place += 3 if named or children else 2
        elif what == ["@"] and attribute:
            names = tokens[place + 2 : place + 3]
            named = bool(names) and names[0] not in _SEPARATORS
            attribute.append(AttributeName(_unescaped(names[0]) if named else ""))
            place += 3 if named else 2
        elif not what or what[0] in ("/", "@", "&"):
            raise _malformed(text, *what)
        else:
            if attribute is None and link:
                unfollowed.add(len(nodes))
                link = False
            (nodes if attribute is None else attribute).append(_unescaped(what[0]))
            place += 2
    return YPath(
        "/" if tokens[0] == "/" else tokens[0],
        tuple(nodes),
        link=link,
        attribute=None if attribute is None else tuple(attribute),
        children=children,
        unfollowed=frozenset(unfollowed),
    )


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _malformed(text, text[at : at + 4])
        tokens.append(found[0])
        at = found.end()
    return tokens


def _unescaped(name: str) -> str:
    if "\\" not in name:
        return name
    raw = name.encode(errors="surrogateescape")
    found = _ESCAPED.sub(lambda part: bytes([int(part[1], 16)]) if part[1] else part[2], raw)
    return found.decode(errors="surrogateescape")


def _malformed(text: str, found: str = "the end") -> PathError:
    return PathError(
        "a path that cannot be read", received=f"{text!r}, at {found!r}", valid="//a/path/@attribute/inside"
    )


def _parse_rich(text: str) -> tuple[str, dict[str, Any]]:
    """Split attributes, columns and rows from a path, with YTsaurus' client."""
    from yt.ypath import parse_ypath

    try:
        path = parse_ypath(text)
    except Exception as error:
        # For a broken text, the client's parser raises errors of many types.
        raise PathError(f"a path that cannot be read: {short_reason(error)}", received=repr(text)) from None
    return str(path), dict(path.attributes)
