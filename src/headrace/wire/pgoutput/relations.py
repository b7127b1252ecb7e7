"""Relations: the descriptions of tables among the messages, and the fields of single messages."""

from __future__ import annotations

from typing import NamedTuple

from headrace.wire.pgoutput.errors import PgOutputError


class RelationColumn(NamedTuple):
    """A column of a relation: its type and type modifier in the catalog, and whether it identifies rows."""

    name: str
    type: int
    modifier: int
    key: bool


class Relation(NamedTuple):
    """A table as a Relation message describes it. ``identity`` is ``d``, ``n``, ``f`` or ``i``, as in pg_class."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


class Content:
    """Reads the fields of one message."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def unsigned(self, size: int) -> int:
        self.at += size
        if self.at > len(self.data):
            raise PgOutputError("a message ends early")
        return int.from_bytes(self.data[self.at - size : self.at], "big")

    def integer(self, size: int) -> int:
        self.at += size
        if self.at > len(self.data):
            raise PgOutputError("a message ends early")
        return int.from_bytes(self.data[self.at - size : self.at], "big", signed=True)

    def text(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise PgOutputError("a message ends early")
        try:
            found = self.data[self.at : end].decode()
        except UnicodeDecodeError:
            raise PgOutputError("a name is not text in UTF-8") from None
        self.at = end + 1
        return found


def parse_relation(data: bytes) -> Relation:
    """Return the relation that a message describes; ``data`` begins after the kind of the message."""
    content = Content(data)
    oid, schema, name = content.unsigned(4), content.text(), content.text()
    identity = chr(content.unsigned(1))
    columns = []
    for _ in range(content.unsigned(2)):
        flags, column = content.unsigned(1), content.text()
        columns.append(RelationColumn(column, content.unsigned(4), content.integer(4), bool(flags & 1)))
    if content.at != len(data):
        raise PgOutputError("a message has bytes after its end", received="a Relation message")
    # An empty schema means pg_catalog.
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))
