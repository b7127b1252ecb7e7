"""The tables of a tunnel that follows several, of which some have joined it while it was read; see `joining`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.model.tunnels.values import FINISHED
from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.tables import stored_tables
from headrace.stores.postgres.tunnels import table_patterns
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements, TunnelDatabase
from headrace.wire.pgoutput.messages import Decoded


class Member(NamedTuple):
    """A table of a tunnel of several tables.

    Attributes:
        name: its name when it became one.
        since: for a table that has joined the tunnel, the LSN from which its changes are in the stream.
        waits: whether the stream waits for its base data.
    """

    name: str
    since: int | None
    waits: bool


def members(statements: PostgresStatements, tunnel: str) -> dict[int, Member]:
    """Return the tables of a tunnel by their oids, also those that were dropped."""
    rows = statements.execute(
        "SELECT t.relation::bigint, t.table_name, j.since - '0/0', j.since IS NOT NULL AND EXISTS ("
        "SELECT FROM headrace.channel c WHERE c.tunnel = t.tunnel AND c.relation = t.relation AND c.committed <> %s)"
        " FROM headrace.tunnel_table t LEFT JOIN headrace.joined_table j"
        " ON j.tunnel = t.tunnel AND j.relation = t.relation WHERE t.tunnel = %s ORDER BY t.relation",
        (FINISHED.token, tunnel),
    )
    return {
        relation: Member(name, None if since is None else int(since), waits) for relation, name, since, waits in rows
    }


def in_stream(decoded: Decoded, tables: Mapping[int, Member]) -> tuple[Decoded, int | None]:
    """Return changes without those from before their table has joined the tunnel.

    The second result is the LSN of the first transaction for which the stream waits; None if there is none.
    """
    since = {relation: each.since for relation, each in tables.items() if each.since is not None}
    if not since:
        return decoded, None
    images = [each.filter(each.lsns >= since.get(each.relation.oid, 0)) for each in decoded.images]
    images = [each for each in images if len(each)]
    truncations = [each for each in decoded.truncations if each.transaction.lsn >= since.get(each.relation.oid, 0)]
    leaves = [each for each in decoded.leaves if each.transaction.lsn >= since.get(each.root, 0)]
    firsts = [(each.relation.oid, int(each.lsns[0])) for each in images]
    firsts += [(each.relation.oid, each.transaction.lsn) for each in truncations]
    waiting = [lsn for relation, lsn in firsts if relation in tables and tables[relation].waits]
    return Decoded(images, truncations, leaves), min(waiting, default=None)


def covers(database: TunnelDatabase, tunnel: str, patterns: str, name: str, identity: str) -> bool:
    """Return whether a tunnel follows a table, or takes it in once it can; see `headrace.ports.Table.covers`."""

    def read(statements: PostgresStatements) -> bool:
        connection, named = statements.connection, TableName.parse(name)
        if identity:
            relation = int(identity)
            if stored_tables.overlap(connection, list(members(statements, tunnel)), relation):
                return True
            named = stored_tables.root(connection, relation) or named
        return table_patterns.covers(table_patterns.parse(patterns), named, database.schema)

    return database.ask(read)


def others(database: TunnelDatabase, tunnel: str, patterns: str) -> list[TableName]:
    """Return the tables that a tunnel does not follow, though their names match its patterns."""

    def read(statements: PostgresStatements) -> list[TableName]:
        if not members(statements, tunnel):
            # It was dropped.
            return []
        parsed = table_patterns.parse(patterns)
        matching = table_patterns.matching(statements.connection, parsed, database.schema, missing_ok=True)
        followed = statements.execute(
            "SELECT n.nspname::text, c.relname::text FROM headrace.tunnel_table t JOIN pg_class c ON c.oid = t.relation"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE t.tunnel = %s",
            (tunnel,),
        )
        names = {TableName(*row) for row in followed}
        return [name for name in matching if name not in names]

    return database.run(read)
