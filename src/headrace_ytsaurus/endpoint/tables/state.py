"""The saved state of a table: its kind, its schema, its tablets and their states.

The rows of a dynamic table are in an object of the embedded store with the node's path as its name: a sorted table in a
table, an ordered one in a queue, a queue consumer in a consumer, a queue producer in a producer. Static tables have no
such object. Their schema is the content of the node, so each master transaction has its own version.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import apsw

from headrace.stores.embedded.for_servers import ObjectKind
from headrace.support.cached import cached_property
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.cypress.node import Node
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.ids import ObjectType, new_id
from headrace_ytsaurus.endpoint.parameters import flag_of
from headrace_ytsaurus.endpoint.storage.tree import Facet, seen
from headrace_ytsaurus.endpoint.tables.layout import SortedLayout
from headrace_ytsaurus.endpoint.values import attributes_of
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.paths import YPath
from headrace_ytsaurus.wire.types import YtColumn, columns_of, schema_of

DDL = """
CREATE TABLE IF NOT EXISTS yt_table (node TEXT PRIMARY KEY, kind TEXT NOT NULL, schema TEXT NOT NULL,
    tablets TEXT NOT NULL, options TEXT NOT NULL) WITHOUT ROWID;
"""
TABLE_TYPE = "table"
MOUNTED, UNMOUNTED, FROZEN = "mounted", "unmounted", "frozen"
ROW_LIMIT = 100_000
"""The maximum number of rows of one tablet that a transaction can change."""


class TableKind(enum.StrEnum):
    """The kinds of tables."""

    SORTED = "table"
    QUEUE = "queue"
    CONSUMER = "consumer"
    PRODUCER = "producer"
    STATIC = "static"
    REGISTRATIONS = "registrations"
    """The table of all registrations of consumers, which is computed when it is read."""


_OBJECT_KINDS: Mapping[TableKind, ObjectKind] = {
    TableKind.SORTED: "table",
    TableKind.QUEUE: "queue",
    TableKind.CONSUMER: "consumer",
    TableKind.PRODUCER: "producer",
}


@dataclass(frozen=True)
class Tablet:
    """A tablet: its id, its state and, in a sorted table, its first key."""

    id: str
    state: str = UNMOUNTED
    pivot: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Schema:
    """The schema of a table.

    Attributes:
        columns: all columns, in order.
        strict: rows have no other columns.
        unique_keys: keys are unique, as in every sorted dynamic table.
        binary_strings: columns of type ``string`` contain any bytes. Otherwise they are texts: in tables that the
            endpoint itself reads.
        sorted_by: the sort order of a table without columns in its schema.
    """

    columns: tuple[YtColumn, ...]
    strict: bool = True
    unique_keys: bool = False
    binary_strings: bool = False
    sorted_by: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[YtColumn, ...]:
        """The key columns."""
        return tuple(column for column in self.columns if column.sort_order is not None)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the columns that rows are sorted by."""
        return tuple(column.name for column in self.keys) or self.sorted_by

    @property
    def with_unique_keys(self) -> Schema:
        """The schema for a dynamic table, where keys are unique."""
        return dataclasses.replace(self, unique_keys=bool(self.keys))

    @property
    def of_bytes(self) -> Schema:
        """The schema with strings as bytes."""
        columns = tuple(column.of_bytes for column in self.columns)
        return dataclasses.replace(self, columns=columns, binary_strings=True)

    @cached_property
    def layout(self) -> SortedLayout:
        """The layout of rows with this schema in a table of the embedded store."""
        return SortedLayout(self.columns)

    def to_json(self) -> str:
        """Return the schema in its saved form."""
        values = {name: getattr(self, name) for name in ("strict", "unique_keys", "binary_strings")}
        values["sorted_by"] = list(self.sorted_by)
        return json.dumps({**values, "columns": schema_of(self.columns)}, default=_plain)

    @classmethod
    def parse(cls, value: Any) -> Schema:
        """Parse a client's schema: a list of columns, which may have attributes. Its strings are texts.

        Raises:
            SchemaError: the schema is invalid.
            YtError: an attribute is not a boolean.
        """
        attributes = attributes_of(value)
        columns = columns_of(value)
        keys = any(column.sort_order is not None for column in columns)
        strict, unique = (
            flag_of(attributes.get(name, default), f'attribute "{name}" of a schema')
            for name, default in (("strict", True), ("unique_keys", False))
        )
        return cls(columns, strict, unique and keys)


@dataclass(frozen=True)
class Table:
    """The current state of a table.

    Attributes:
        node: its node; the path is the name of the object with its rows.
        options: other settings: ``auto_trim_config`` of a queue.
    """

    node: Node
    kind: TableKind
    schema: Schema
    tablets: tuple[Tablet, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the object with the rows."""
        return self.node.path

    @property
    def object_kind(self) -> ObjectKind | None:
        """The kind of the object with the rows; None if there is none."""
        return _OBJECT_KINDS.get(self.kind)

    @property
    def dynamic(self) -> bool:
        return self.kind is not TableKind.STATIC

    @property
    def sorted(self) -> bool:
        return self.kind is not TableKind.QUEUE and bool(self.schema.keys)

    @property
    def state(self) -> str:
        """The common state of all tablets, or ``mixed``."""
        if not self.dynamic:
            return "none"
        states = {tablet.state for tablet in self.tablets}
        return states.pop() if len(states) == 1 else "mixed"

    def require_dynamic(self) -> None:
        """Raise an error unless the table is dynamic."""
        if not self.dynamic:
            raise refused(f"Table {self.name} is not dynamic")

    def require_mounted(self, index: int | None = None, *, reading: bool = False) -> None:
        """Raise an error unless a tablet, or all of them, can be written, or with ``reading`` read."""
        self.require_dynamic()
        for number, tablet in enumerate(self.tablets):
            can = tablet.state == MOUNTED or (reading and tablet.state == FROZEN)
            if not can and index in (None, number):
                raise YtError(
                    Code.TABLET_NOT_MOUNTED,
                    f"Cannot {'read from' if reading else 'write into'} tablet {tablet.id} of table {self.name}:"
                    f" it is {tablet.state}",
                    remedy="unfreeze the table" if tablet.state == FROZEN else "mount the table",
                    attributes={"tablet_id": tablet.id, "path": self.name, "tablet_index": number},
                )

    def tablet(self, index: int) -> Tablet:
        """Return a tablet by its number, or raise an error."""
        if not 0 <= index < len(self.tablets):
            raise refused(
                f"Invalid tablet index for table {self.name}",
                received=f"{index}",
                valid=f"0 to {len(self.tablets) - 1}",
            )
        return self.tablets[index]


def new_tablets(count: int, state: str = UNMOUNTED, pivots: Sequence[tuple[Any, ...]] = ()) -> tuple[Tablet, ...]:
    """Return new tablets."""
    first_keys = [*pivots, *[()] * (count - len(pivots))]
    return tuple(Tablet(new_id(ObjectType.TABLET), state, pivot) for pivot in first_keys)


def save(connection: apsw.Connection, table: Table) -> None:
    """Save the state of a dynamic table, in the caller's write transaction."""
    tablets = json.dumps([dataclasses.astuple(tablet) for tablet in table.tablets], default=_plain)
    connection.execute(
        "INSERT OR REPLACE INTO yt_table VALUES (?, ?, ?, ?, ?)",
        (table.node.id, table.kind, table.schema.to_json(), tablets, json.dumps(table.options, default=_plain)),
    )


def find_table(cypress: Cypress, path: YPath, transaction: str | None = None) -> Table:
    """Return the table of a path, as a master transaction sees it.

    Raises:
        YtError: there is no node, or it is not a table.
    """
    node = cypress.find(path.node, transaction)
    with cypress.tree.database.read() as connection:
        return load(connection, node)


def load(connection: apsw.Connection, node: Node) -> Table:
    """Return the table of a node, as its master transaction sees it.

    Raises:
        YtError: the node is not a table.
    """
    if node.type == TABLE_TYPE:
        static = seen(lambda sql, bindings: list(connection.execute(sql, bindings)), node.chain, node.id, Facet.CONTENT)
        if static is not None:
            return Table(node, TableKind.STATIC, _schema(bytes(static).decode()), ())
    row = connection.execute(
        "SELECT kind, schema, tablets, options FROM yt_table WHERE node = ?", (node.id,)
    ).fetchone()
    if row is None:
        raise refused(f"{node.path} is not a table", received=node.type)
    kind, schema, tablets, options = row
    return Table(node, TableKind(kind), _schema(schema), _tablets(tablets), json.loads(options))


def forget(connection: apsw.Connection, node: Node) -> None:
    """Delete the state of a table, in the caller's write transaction."""
    connection.execute("DELETE FROM yt_table WHERE node = ?", (node.id,))


@functools.lru_cache(maxsize=256)
def _schema(text: str) -> Schema:
    saved = json.loads(text)
    sorted_by = tuple(saved.get("sorted_by", ()))
    schema = Schema(columns_of(saved["columns"]), saved["strict"], saved["unique_keys"], sorted_by=sorted_by)
    return schema.of_bytes if saved["binary_strings"] else schema


@functools.lru_cache(maxsize=256)
def _tablets(text: str) -> tuple[Tablet, ...]:
    return tuple(
        Tablet(tablet, state, tuple(_from_plain(value) for value in pivot)) for tablet, state, pivot in json.loads(text)
    )


def _plain(value: Any) -> Any:
    """Return bytes or a value of a YSON class as JSON."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if type(value).__name__ == "YsonEntity":
        return None
    if type(value).__name__ == "YsonBoolean":
        return bool(value)
    raise TypeError(type(value).__name__)


def _from_plain(value: Any) -> Any:
    return bytes.fromhex(value["bytes"]) if isinstance(value, dict) else value
