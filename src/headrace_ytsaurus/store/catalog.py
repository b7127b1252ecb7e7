"""Names, paths and kinds of the store's objects in Cypress.

A name that begins with ``//`` is a path of Cypress; any other name is a node in the store's directory. headrace's own
data (staged rows, markers, positions) is in `Names.state`, below that directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, UnsupportedError
from headrace.model.own_names import of_users
from headrace_ytsaurus.store.connection import YtConnection
from headrace_ytsaurus.wire.paths import PARTS, WHOLE, PathError, escape, parse_path
from headrace_ytsaurus.wire.types import YtColumn, columns_of

TABLE, QUEUE, CONSUMER, PRODUCER = "table", "queue", "consumer", "producer"
_KIND_ATTRIBUTES = ("type", "dynamic", "sorted", "treat_as_queue_consumer", "treat_as_queue_producer")
TIMESTAMP_TYPE = "headrace_timestamp"
"""The attribute with the declared type of a queue's `$timestamp`; the service has one type for it."""
ATTRIBUTES = (*_KIND_ATTRIBUTES, "id", "schema", "tablet_count", "auto_trim_config", TIMESTAMP_TYPE)
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Names:
    """The store's directory and the paths of names."""

    directory: str

    @property
    def state(self) -> str:
        """The directory of headrace's own data."""
        return f"{self.directory}/.headrace"

    def path(self, name: str) -> str:
        """Return the path of a name.

        Raises:
            OptionError: the name is invalid.
        """
        try:
            valid = isinstance(name, str) and bool(name) and name.encode() is not None
        except UnicodeEncodeError:
            valid = False
        if not valid:
            raise OptionError("a name must be a text that is not empty", received=ascii(name))
        if not name.startswith("//"):
            return f"{self.directory}/{escape(name)}"
        try:
            found = parse_path(name)
        except PathError as error:
            raise OptionError("this name is not a path of Cypress", received=repr(name), valid=error.valid) from None
        if not PARTS.isdisjoint(found.attributes):
            raise OptionError("this path chooses columns or rows", received=repr(name), valid=WHOLE)
        return found.node.text

    def name(self, path: str) -> str:
        """Return the name of a path: the node's name in the store's directory, the path elsewhere."""
        found = parse_path(path).node
        above, own = found.text.rpartition("/")[0], found.name
        return own if above == self.directory and escape(own) == found.text[len(above) + 1 :] else found.text

    def is_state(self, path: str) -> bool:
        """Return whether a path is in headrace's own directory."""
        return path.startswith(f"{self.state}/")


@dataclass(frozen=True)
class Node:
    """A dynamic table: its kind and its columns.

    Attributes:
        binary_strings: whether its columns of type ``string`` are binary in headrace.
    """

    path: str
    kind: str
    attributes: Mapping[str, Any] = field(repr=False)
    binary_strings: bool = False

    @property
    def id(self) -> str:
        return str(self.attributes["id"])

    @property
    def columns(self) -> tuple[YtColumn, ...]:
        columns = columns_of(self.attributes["schema"])
        return tuple(column.of_bytes for column in columns) if self.binary_strings else columns

    @property
    def tablets(self) -> int:
        return int(self.attributes["tablet_count"])


def find(connection: YtConnection, names: Names, name: str, kind: str) -> Node:
    """Return the object of a kind.

    Raises:
        NotFoundError: no object has this name, or it is of another kind.
    """
    path = names.path(name)
    found = connection.attributes(path, ATTRIBUTES)
    there = None if found is None else kind_of(found)
    if found is None or there != kind:
        raise NotFoundError(
            f"no such {kind}",
            received=repr(name) if there is None else f"{name!r}, which is a {there}",
            valid=None if name.startswith("//") else of_users(of_kind(connection, names, kind)),
        )
    return Node(path, kind, found, connection.address.binary_strings)


def find_other(connection: YtConnection, names: Names, name: str, kind: str) -> None:
    """Raise `AlreadyExistsError` if something of another kind has the name."""
    found = connection.attributes(names.path(name), ATTRIBUTES)
    there = None if found is None else kind_of(found)
    if there not in (None, kind):
        raise AlreadyExistsError(f"{name!r} is already the name of a {there}", remedy="choose another name")


def kind_of(attributes: Mapping[str, Any]) -> str:
    """Return the kind of a node: one of the kinds of this module, or its Cypress type."""
    node_type = str(attributes.get("type"))
    if node_type != "table":
        return node_type
    if not attributes.get("dynamic"):
        return "static table"
    if attributes.get("treat_as_queue_consumer"):
        return CONSUMER
    if attributes.get("treat_as_queue_producer"):
        return PRODUCER
    return TABLE if attributes.get("sorted") else QUEUE


def of_kind(connection: YtConnection, names: Names, kind: str) -> list[str]:
    """Return the names of the objects of a kind in the store's directory, sorted."""
    children = connection.children(names.directory, _KIND_ATTRIBUTES)
    return sorted(name for name, attributes in children if kind_of(attributes) == kind)


def check_path_in_queries(path: str) -> str:
    """Return a path in the form of the query language.

    Raises:
        UnsupportedError: the query language does not allow a character of the path.
    """
    if "]" in path or "\n" in path:
        raise UnsupportedError("queries of YTsaurus cannot name this path", received=repr(path), valid="no ] in it")
    return f"[{path}]"


def node_name(text: str) -> str:
    """Return a valid node name for any text."""
    short = text if len(text) <= _LONGEST_NAME else f"{text[:40]}-{hashlib.sha256(text.encode()).hexdigest()}"
    return escape(short.replace("/", "%2F")) if short else "-"
