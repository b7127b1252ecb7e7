"""Checks of publications: a slot sends only the changes that its publication has.

A change that the publication did not have at its time is missing in what the slot sends; PostgreSQL 18 also skips the
changes of a missing publication without an error. So a publication is checked before each read of the slot. It is also
compared with its first state, because a table may have been removed and added again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from headrace.errors import DataLossError, NotFoundError, UnsupportedError
from headrace.stores.postgres.failures import COPIES
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements, TunnelDatabase

_OPERATIONS = ("insert", "update", "delete", "truncate")
# Each change of a publication is a new row of the catalog, with the identifier of its transaction.
_PUBLICATION = """
SELECT ARRAY[pubinsert, pubupdate, pubdelete, pubtruncate], concat_ws(' ', oid, xmin)
FROM pg_publication WHERE pubname = %(name)s
"""
# Before PostgreSQL 18, the list of columns also has generated ones, which the log does not have.
_TABLES = """
SELECT c.oid::bigint, to_jsonb(t) -> 'attnames', to_jsonb(t) ->> 'rowfilter', ARRAY(
    SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> '' AND NOT a.attisdropped
), concat_ws(' ', (
    SELECT string_agg(concat_ws(' ', r.oid, r.xmin), ', ' ORDER BY r.oid)
    FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
    WHERE p.pubname = %(name)s AND (r.prrelid = c.oid OR r.prrelid IN (SELECT pg_partition_ancestors(c.oid)))
)"""
# From PostgreSQL 15 on, a publication can have all tables of a schema.
_SCHEMAS = """, (
    SELECT string_agg(concat_ws(' ', s.oid, s.xmin), ', ' ORDER BY s.oid)
    FROM pg_publication_namespace s JOIN pg_publication p ON p.oid = s.pnpubid
    WHERE p.pubname = %(name)s AND s.pnnspid = c.relnamespace
)"""
_OF_TABLES = """)
FROM pg_publication_tables t
JOIN pg_namespace n ON n.nspname = t.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = %(name)s AND c.oid = ANY(%(relations)s)
"""
_WITH_SCHEMAS = 150_000
_WITH_GENERATED = 180_000


class PublishedTable(NamedTuple):
    """A table that a publication should have.

    Attributes:
        relation: its oid.
        name: its name for messages.
        columns: its columns.
        filtered: whether the publication has a filter for its rows, which the tunnel obeys.
    """

    relation: int
    name: str
    columns: Collection[str]
    filtered: bool = False

    @classmethod
    def of(cls, table: TableLayout, *, filtered: bool = False) -> PublishedTable:
        return cls(table.oid, table.name.text, table.schema.names, filtered)


class Fault(NamedTuple):
    """Why a publication is unusable; ``missing``: there is no such publication."""

    problem: str
    remedy: str
    missing: bool = False

    def error(self, publication: str) -> UnsupportedError:
        """Return the error for tables that are not followed yet."""
        return UnsupportedError(self.problem, received=f"publication {publication}", remedy=self.remedy)


State = Mapping[str, str]
"""Texts that every change of a publication replaces: by the oid of a table, and ``""`` for the publication itself."""


def inspect(
    statements: PostgresStatements, name: str, tables: Sequence[PublishedTable], what: str = "the publication"
) -> tuple[State, Fault | None]:
    """Return the state of a publication, and its first fault.

    Args:
        what: the publication in messages.
    """
    publication = statements.first(_PUBLICATION, {"name": name})
    if publication is None:
        return {}, Fault(f"{what} does not exist", "create a new tunnel", missing=True)
    published, state = publication
    missing = [operation for operation, included in zip(_OPERATIONS, published, strict=True) if not included]
    if missing:
        return {}, Fault(
            f"{what} leaves out operations: {', '.join(missing)}",
            "ALTER PUBLICATION … SET (publish = 'insert, update, delete, truncate')",
        )
    version = statements.connection.info.server_version
    rows = statements.execute(
        _TABLES + (_SCHEMAS if version >= _WITH_SCHEMAS else "") + _OF_TABLES,
        {"name": name, "relations": [table.relation for table in tables]},
    ).fetchall()
    by_relation = {relation: of_table for relation, *of_table in rows}
    states = {"": str(state)}
    existing = "SELECT oid::bigint FROM pg_class WHERE oid = ANY(%s)"
    dropped = {table.relation for table in tables} - by_relation.keys()
    if dropped:
        dropped -= {relation for (relation,) in statements.execute(existing, (list(dropped),)).fetchall()}
    for table in tables:
        if table.relation in dropped:
            # A publication has no dropped tables. Whoever reads the tables of the tunnel notices that one is gone.
            continue
        if table.relation not in by_relation:
            return states, Fault(
                f"{what} does not have table {table.name!r}",
                "ALTER PUBLICATION … ADD TABLE …; of a partitioned table, also SET (publish_via_partition_root = true)",
            )
        columns, condition, generated, entry = by_relation[table.relation]
        if condition is not None and not table.filtered:
            return states, Fault(
                f"{what} has a filter for the rows of table {table.name!r}",
                "ALTER PUBLICATION … SET TABLE … without WHERE; filter the rows in the query",
            )
        sent = set(table.columns if columns is None else columns) - set(generated if version < _WITH_GENERATED else ())
        if left_out := sorted(set(table.columns) - sent):
            return states, Fault(
                f"{what} leaves out columns of table {table.name!r}: {', '.join(left_out)}",
                "ALTER PUBLICATION … SET TABLE … without a list of columns; of generated columns, also "
                "SET (publish_generated_columns = stored), from PostgreSQL 18 on; drop virtual ones, which no log has",
            )
        states[str(table.relation)] = str(entry)
    return states, None


def usable(database: TunnelDatabase, name: str, tables: Sequence[PublishedTable]) -> State:
    """Return the state of a publication for a new tunnel.

    Raises:
        NotFoundError: it does not exist.
        UnsupportedError: it does not have all changes of the tables.
    """
    state, fault = database.run(lambda statements: inspect(statements, name, tables))
    if fault is None:
        return state
    if fault.missing:
        names = database.query("SELECT pubname::text FROM pg_publication ORDER BY pubname")
        raise NotFoundError("no such publication", received=repr(name), valid=[publication for (publication,) in names])
    raise fault.error(name)


class Publication:
    """The publication of a tunnel, by its name.

    Args:
        tunnel: the id of the tunnel.
        title: its name, for messages.
    """

    def __init__(self, database: TunnelDatabase, tunnel: str, title: str, name: str) -> None:
        self._database = database
        self._tunnel = tunnel
        self._title = title
        self.name = name

    def check(self, tables: Sequence[PublishedTable], lost: str) -> None:
        """Check that the publication has and had all changes of the tables, up to the present end of the log.

        Args:
            lost: a text for the changes that may be lost otherwise.

        Raises:
            DataLossError: it does not exist, leaves out changes, or was changed.
        """
        fault = self._database.ask(lambda statements: self._fault(statements, tables))
        if fault is not None:
            raise DataLossError(fault.problem, received=f"publication {self.name}; {lost}", remedy=fault.remedy)

    def accept(self, tables: Sequence[PublishedTable]) -> bool:
        """Accept that the publication was changed, if it has all changes from now on; return whether it was changed."""

        def save(statements: PostgresStatements) -> bool:
            state, fault = inspect(statements, self.name, tables)
            if fault is not None or not self._differs(statements, state):
                return False
            save_state(statements, self._tunnel, state)
            return True

        return self._database.run(save)

    def _fault(self, statements: PostgresStatements, tables: Sequence[PublishedTable]) -> Fault | None:
        what = f"the publication of tunnel {self._title!r}"
        state, fault = inspect(statements, self.name, tables, what)
        if fault is None and self._differs(statements, state):
            return Fault(
                f"{what} was changed, and may have left out changes in between",
                "create a new tunnel, or continue with failOnDataLoss=false" + COPIES,
            )
        return fault

    def _differs(self, statements: PostgresStatements, state: State) -> bool:
        before = _saved_state(statements, self._tunnel)
        return any(before.get(each) != text for each, text in state.items())


def save_state(statements: PostgresStatements, tunnel: str, state: State) -> None:
    """Record the state of a tunnel's publication."""
    statements.execute("UPDATE headrace.tunnel SET publication_state = %s WHERE id = %s", (json.dumps(state), tunnel))


def add_state(statements: PostgresStatements, tunnel: str, state: State) -> None:
    """Record the state of a tunnel's publication for another table."""
    save_state(statements, tunnel, {**_saved_state(statements, tunnel), **state})


def _saved_state(statements: PostgresStatements, tunnel: str) -> State:
    row = statements.first("SELECT publication_state FROM headrace.tunnel WHERE id = %s", (tunnel,))
    state: State = {} if row is None else json.loads(row[0])
    return state
