"""YPath: how YTsaurus names nodes of Cypress, their attributes, and parts of tables.

``//home/users/@account`` is an attribute, ``//home/queue/@tablets/0/state`` a value inside of one, ``#1-2-3-4/@type``
the same of an object known by its id, ``primary://home/queue`` or ``<cluster=primary>//home/queue`` a path on another
cluster, ``//home/link&`` the link itself instead of what it leads to. Paths may carry attributes of their own, which
tell a command how to use the node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.errors import OptionError
from headrace.wire.yson.documents import short_reason

MAX_LENGTH: Final = 1 << 16
"""Characters of a path's text."""

_TOKEN: Final = re.compile(r"[/@&*]|(?:[^/@&*\\\[{]|\\[\\/@&*\[{]|\\x[0-9a-fA-F]{2})+")
_ESCAPED: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_SPECIAL: Final = re.compile(r"[\\/@&*\[{]")
_BYTE: Final = re.compile("[\udc80-\udcff]")
_CLUSTER: Final = re.compile(r"([\w-]+):(?=//|#|/$)", re.ASCII)
_OBJECT_ID: Final = re.compile(r"#[0-9a-fA-F]+(?:-[0-9a-fA-F]+){3}")
_INDEX: Final = re.compile(r"-?[0-9]{1,18}")
PARTS = frozenset({"columns", "ranges"})
"""The attributes of a path that choose a part of a table."""
WHOLE = "the path of a whole table or queue; columns are chosen with select, rows with where"
"""What a path has to be where parts of a table cannot be chosen."""


class PathError(OptionError):
    """A text that is no YPath."""


@dataclass(frozen=True)
class YPath:
    """A path, taken apart.

    Attributes:
        root: ``/`` for Cypress, or ``#`` and an object's id.
        nodes: names of the nodes on the way from the root; in a list, a number is the place of an item
            (see `index_in_list`). Bytes of a name that are no UTF-8 are surrogates, as in Python's names of files.
        attribute: None for the node itself; the way to an attribute's value: ``()`` for all attributes,
            ``("tablets", "0", "state")`` for a value inside of one.
        link: the last node is meant itself, even if it is a link.
        children: all children of the node are meant, or all items inside of the attribute (``/*``).
        attributes: what the path carries; ``columns`` and ``ranges`` for parts of a table.
    """

    root: str = "/"
    nodes: tuple[str, ...] = ()
    attribute: tuple[str, ...] | None = None
    link: bool = False
    children: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def cluster(self) -> str | None:
        """The cluster that the path says it is on."""
        cluster = self.attributes.get("cluster")
        return None if cluster is None else str(cluster)

    @property
    def node(self) -> YPath:
        """The node that the attribute belongs to; the path itself if it leads to a node. Without attributes."""
        return YPath(self.root, self.nodes, None, self.link)

    @property
    def parent(self) -> YPath:
        """The node above.

        Raises:
            PathError: the path is a root, or leads to an attribute.
        """
        if not self.nodes or self.attribute is not None:
            raise PathError("this path has no parent", received=self.text)
        return YPath(self.root, self.nodes[:-1])

    @property
    def name(self) -> str:
        """The node's name in its parent; empty for a root."""
        return self.nodes[-1] if self.nodes else ""

    @property
    def text(self) -> str:
        """The path without what it carries, every name escaped where needed."""
        parts = [self.root, *(f"/{escape(name)}" for name in self.nodes), "&" if self.link else ""]
        if self.attribute is not None:
            parts.append("/@" + "/".join(map(escape, self.attribute)))
        return "".join(parts) + ("/*" if self.children else "")

    def __str__(self) -> str:
        return self.text

    def child(self, *names: str) -> YPath:
        """Return the path of a node below."""
        return YPath(self.root, (*self.nodes, *names))

    def with_attributes(self, attributes: Mapping[str, Any]) -> YPath:
        """Return the path that carries these, besides what it carries already."""
        return replace(self, attributes={**self.attributes, **attributes})


def parse_path(path: str | bytes, attributes: Mapping[str, Any] | None = None) -> YPath:
    """Read a path.

    Args:
        path: the text; strings of ``yt.yson`` with attributes too, which are the path's.
        attributes: more of them. What the text says itself counts more.

    Raises:
        PathError: the text is no path.
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
    """Return a name as a path has it; bytes that are no UTF-8, which are surrogates in the name, by their numbers."""
    return _BYTE.sub(
        lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", _SPECIAL.sub(lambda found: "\\" + found[0], name)
    )


def index_in_list(name: str, length: int) -> int | None:
    """Return which item of a list a name stands for, counted from 0; None if it is no place in a list of that length.

    Negative numbers count from the end.
    """
    if not _INDEX.fullmatch(name):
        return None
    index = int(name) + (length if name.startswith("-") else 0)
    return index if 0 <= index < length else None


def _text(path: str | bytes) -> str:
    """Return a path as text of a bearable length."""
    if isinstance(path, bytes):
        path = path.decode(errors="surrogateescape")
    if not isinstance(path, str):
        raise PathError("a path must be a text", received=f"a {type(path).__name__}")
    if len(path) > MAX_LENGTH:
        raise PathError("a path that is too long", received=len(path), valid=f"at most {MAX_LENGTH} characters")
    return str(path)


def has_suffix(text: str) -> bool:
    """Tell whether columns or rows of a table are named behind the path."""
    return ("[" in text or "{" in text) and re.search(r"(?<!\\)(?:\\\\)*[\[{]", text) is not None


def _parse_plain(text: str) -> YPath:
    """Read a path without attributes before it and without columns and rows behind it."""
    tokens = _tokens(text)
    if not tokens:
        raise PathError("an empty path", valid="//a/path, or #an-object-id")
    if tokens[0] != "/" and not _OBJECT_ID.fullmatch(tokens[0]):
        raise PathError("a path that does not begin at a root", received=text, valid="//a/path, or #an-object-id")
    nodes: list[str] = []
    attribute: list[str] | None = None
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
            # All attributes at once are written both ways: /@* and /@/*.
            children = names == ["*"]
            named = bool(names) and names[0] not in ("/", "*")
            attribute = [_unescaped(names[0])] if named else []
            place += 3 if named or children else 2
        elif not what or what[0] in ("/", "@", "&"):
            raise _malformed(text, *what)
        else:
            if attribute is None and link:
                raise _malformed(text, "&")
            (nodes if attribute is None else attribute).append(_unescaped(what[0]))
            place += 2
    return YPath(
        "/" if tokens[0] == "/" else tokens[0],
        tuple(nodes),
        link=link,
        attribute=None if attribute is None else tuple(attribute),
        children=children,
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
    """Take attributes before a path and columns and rows behind it off, as YTsaurus' client does."""
    from yt.ypath import parse_ypath

    try:
        path = parse_ypath(text)
    except Exception as error:
        # The client's own error, those of YSON, and whatever else a broken text leads its parser to.
        raise PathError(f"a path that cannot be read: {short_reason(error)}", received=repr(text)) from None
    return str(path), dict(path.attributes)
