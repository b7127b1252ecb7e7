"""Tunnels in the database: creating, finding and dropping them.

A tunnel with a stream has a replication slot and a publication, both named ``headrace_<id>`` if headrace has created
them. Its base data is divided into chunks by key ranges. A small table is read when the tunnel is created. The chunks
of a large table are read one by one, each in a short transaction, see `headrace.stores.postgres.tunnels.base_data`.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from psycopg import sql

from headrace.errors import AlreadyExistsError, HeadraceError, NotFoundError, UnsupportedError
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import Key, KeyValue
from headrace.model.tunnels.validation import check_new
from headrace.model.tunnels.values import ChannelKind, Start, StartKind, TunnelKind
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tunnels import followable, publications, selections, slot_limits, slots, tunnel_options
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements, TunnelDatabase
from headrace.stores.postgres.tunnels.positions import BASE_START, lsn_text
from headrace.stores.postgres.tunnels.publications import PublishedTable
from headrace.stores.postgres.tunnels.seen_definitions import SeenDefinitions
from headrace.stores.postgres.tunnels.selections import Selection
from headrace.stores.postgres.tunnels.tunnel_options import SlotLimit, TunnelOptions
from headrace.stores.shared.key_json import from_json, to_json

STREAM = "stream"
"""The id of the stream channel."""
ROWS_PER_CHUNK = 200_000
BYTES_PER_CHUNK = 64 << 20
MAX_CHUNKS = 1000
SMALL_TABLE_ROWS = 50_000
"""The base data of tables up to this size is read when the tunnel is created."""


class StoredTunnel(NamedTuple):
    """A row of ``headrace.tunnel``. A tunnel of several tables has relation 0, and their patterns as ``table``."""

    id: str
    relation: int
    table: str
    name: str
    kind: TunnelKind
    created: float
    slot: str | None
    system: str
    publication: str | None
    own_slot: bool
    own_publication: bool
    selection: Selection | None = None

    @property
    def borrowed(self) -> tuple[str, ...]:
        """The slot and the publication, if headrace has not created them."""
        slot = () if self.own_slot else (f"replication slot {self.slot}, for which the server keeps its log",)
        return slot if self.own_publication else (*slot, f"publication {self.publication}")


class NewTable(NamedTuple):
    """A table of a new tunnel; ``splits`` returns at most a number of key ranges that cover it."""

    layout: TableLayout
    splits: Callable[[int], list[KeyRange]]


class _NewChannel(NamedTuple):
    id: str
    kind: ChannelKind
    parents: list[str]
    relation: int
    keys: KeyRange
    start: str


def create(
    database: TunnelDatabase,
    tables: Sequence[NewTable],
    patterns: str | None,
    name: str,
    kind: TunnelKind,
    start: Start,
    base_channels: int | None,
    options: TunnelOptions,
) -> tuple[StoredTunnel, bool]:
    """Create a tunnel. Return it, and whether its base data should be read at once.

    The slot exists before any row of base data is read, so the stream has every change that base data lacks.

    Args:
        patterns: the patterns of the names of several tables; None for a tunnel of one table.
        base_channels: the number of channels for the base data of each table; by its size if None.
    """
    check_new(name, kind, start, base_channels)
    if start.kind is not StartKind.LATEST:
        raise UnsupportedError(
            "PostgreSQL keeps no changes from before the creation of a tunnel",
            received=f"start={start.kind}",
            valid="latest",
            remedy="create a tunnel of kind BaseAndStream, which begins with the rows of the table",
        )
    database.create_tables()
    tunnel_id = uuid.uuid4().hex
    has_base, has_stream = kind is not TunnelKind.STREAM, kind is not TunnelKind.BASE_DATA
    own = f"headrace_{tunnel_id}" if has_stream else None
    slot, publication = options.slot or own, options.publication or own
    ((system,),) = database.query("SELECT system_identifier::text FROM pg_control_system()")
    layouts = [table.layout for table in tables]
    selection = None
    if patterns is None:
        selection, layouts[0] = selections.resolve(database, layouts[0], options, kind)
    relations = [layout.oid for layout in layouts]
    database.run(lambda statements: followable.check(statements, relations, as_columns=patterns is None))
    of_one = (layouts[0].oid, layouts[0].name.text) if patterns is None else None
    relation, table_name = of_one or (0, str(patterns))
    stored = StoredTunnel(
        tunnel_id,
        relation,
        table_name,
        name,
        kind,
        time.time(),
        slot,
        system,
        publication,
        options.slot is None,
        options.publication is None,
        selection,
    )
    # The row first: whatever a killed process leaves behind belongs to a tunnel that can be dropped.
    database.run(lambda statements: _insert(statements, stored, [] if of_one else layouts, options.limit))
    try:
        # Before the first read of the tables and their log.
        part = None if selection is None else selection.definition
        SeenDefinitions(database, tunnel_id, relations, part=part).record(options.slot)
        lsn = 0
        if slot is not None and publication is not None:
            lsn = _open_slot(database, stored, slot, publication, layouts, options)
            if has_base and options.slot is not None:
                # Base data has all changes before.
                lsn = max(lsn, slots.visible_commits(database))
        # After the slot: rows that this count does not see are in the stream.
        sizes = [size_of(database, layout) for layout in layouts] if has_base else []
        ranges = [
            (table.layout.oid, keys)
            for table, size in zip(tables, sizes, strict=False)
            if size.rows
            for keys in table.splits(base_channels or min(size.chunks, MAX_CHUNKS))
        ]
        database.run(lambda statements: _insert_channels(statements, stored, ranges, lsn))
    except BaseException:
        # The first error is more important.
        with suppress(HeadraceError):
            drop(database, stored)
        raise
    whole = Size(sum(size.rows for size in sizes), sum(size.bytes for size in sizes))
    return stored, whole.rows <= SMALL_TABLE_ROWS and whole.bytes <= BYTES_PER_CHUNK


def known(database: TunnelDatabase, table: str | None = None) -> list[StoredTunnel]:
    """Return the tunnels of the database, or those that follow a table, also together with others."""
    if not database.exist():
        return []
    rows = database.query(
        "SELECT id, relation, table_name, name, kind, created, slot, system, publication, own_slot, own_publication,"
        " content FROM headrace.tunnel LEFT JOIN headrace.selection ON tunnel = id"
        " WHERE %(table)s::text IS NULL OR table_name = %(table)s"
        " OR EXISTS (SELECT FROM headrace.tunnel_table t WHERE t.tunnel = id AND t.table_name = %(table)s)"
        " ORDER BY created, id",
        {"table": table},
    )
    return [
        StoredTunnel(*row)._replace(
            kind=TunnelKind(row[4]), selection=None if row[-1] is None else Selection.parse(row[-1])
        )
        for row in rows
    ]


def drop(database: TunnelDatabase, tunnel: StoredTunnel) -> None:
    """Remove a tunnel with its channels, batches and clients, and with the slot and publication that it has created."""
    if tunnel.slot is not None and tunnel.own_slot:
        slots.drop_slot(database, tunnel.slot)
    if tunnel.publication is not None and tunnel.own_publication:
        slots.drop_publication(database, tunnel.publication)
    database.run(lambda statements: statements.execute("DELETE FROM headrace.tunnel WHERE id = %s", (tunnel.id,)))


def _open_slot(
    database: TunnelDatabase,
    tunnel: StoredTunnel,
    slot: str,
    publication: str,
    tables: Sequence[TableLayout],
    options: TunnelOptions,
) -> int:
    """Create the slot and the publication of a tunnel, or check existing ones; return the LSN of the first change."""
    if options.failover:
        tunnel_options.check_failover(database)
    selection = tunnel.selection or Selection()
    if tunnel.own_publication:
        listed = selection.columns is not None
        slots.create_publication(database, publication, tables, options.where, listed=listed)
    else:
        for table in tables:
            slots.has_generated(database, table)
    published = [PublishedTable.of(table, filtered=selection.filtered) for table in tables]
    state = publications.usable(database, publication, published)
    database.run(lambda statements: publications.save_state(statements, tunnel.id, state))
    # After the publication: the slot then has no change that the publication leaves out.
    return (
        slots.create_slot(database, slot, failover=options.failover)
        if tunnel.own_slot
        else tunnel_options.use_slot(database, slot, tunnel.id)
    )


def key_to_json(key: Key | None) -> str | None:
    """Return a key, or the beginning of one, as JSON text."""
    if key is None:
        return None
    return json.dumps([{"b": value.hex()} if isinstance(value, bytes) else to_json(value) for value in key])


def key_from_json(text: str | None) -> Key | None:
    """Read a key back; the inverse of `key_to_json`."""
    if text is None:
        return None
    return tuple(_from_json(value) for value in json.loads(text))


def _from_json(value: Any) -> KeyValue:
    match value:
        case {"b": text}:
            return bytes.fromhex(text)
    return from_json(value)


class Size(NamedTuple):
    """The number of rows of a small table, or an estimate, and the bytes of the table on disk."""

    rows: int
    bytes: int

    @property
    def chunks(self) -> int:
        return max(1, -(-self.rows // ROWS_PER_CHUNK), -(-self.bytes // BYTES_PER_CHUNK))


def size_of(database: TunnelDatabase, table: TableLayout) -> Size:
    """Return the size of a table now."""

    def read(statements: PostgresStatements) -> Size:
        query = sql.SQL("SELECT count(*) FROM (SELECT FROM {} LIMIT {}) few").format(
            table.name.sql, SMALL_TABLE_ROWS + 1
        )
        few = statements.connection.execute(query).fetchone()
        # Of a partitioned table, the sums of its partitions.
        sizes = statements.first(
            "SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint, coalesce(sum(pg_table_size(c.oid)), 0)::bigint"
            " FROM pg_class c WHERE c.oid = %(oid)s"
            " OR c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf)",
            {"oid": table.oid},
        )
        assert few is not None
        assert sizes is not None
        rows = int(few[0])
        return Size(rows if rows <= SMALL_TABLE_ROWS else max(rows, int(sizes[0])), int(sizes[1]))

    return database.run(read)


def _insert(
    statements: PostgresStatements, tunnel: StoredTunnel, tables: Sequence[TableLayout], limit: SlotLimit | None
) -> None:
    added = statements.execute(
        "INSERT INTO headrace.tunnel"
        " (id, relation, table_name, name, kind, created, slot, system, publication, own_slot, own_publication)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (relation, name) DO NOTHING",
        (*tunnel[:4], tunnel.kind.value, *tunnel[5:-1]),
    )
    if not added.rowcount and not statements.first("SELECT FROM headrace.tunnel WHERE id = %s", (tunnel.id,)):
        owner = f"table {tunnel.table!r} has" if tunnel.relation else "several tables have"
        raise AlreadyExistsError(f"{owner} a tunnel of this name", received=repr(tunnel.name))
    selections.save(statements, tunnel.id, tunnel.selection)
    slot_limits.save(statements, tunnel.id, limit)
    for table in tables:
        statements.execute(
            "INSERT INTO headrace.tunnel_table (tunnel, relation, table_name) VALUES (%s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            (tunnel.id, table.oid, table.name.text),
        )


def _insert_channels(
    statements: PostgresStatements, tunnel: StoredTunnel, ranges: Sequence[tuple[int, KeyRange]], lsn: int
) -> None:
    if tunnel.slot is not None:
        statements.execute(
            "UPDATE headrace.tunnel SET base_end = %(lsn)s::pg_lsn, advanced = %(lsn)s::pg_lsn, lost = %(lsn)s::pg_lsn"
            " WHERE id = %(id)s",
            {"lsn": lsn_text(lsn), "id": tunnel.id},
        )
    channels = _base_channels(ranges, 0)
    if tunnel.slot is not None:
        parents = [channel.id for channel in channels]
        channels.append(_NewChannel(STREAM, ChannelKind.STREAM, parents, 0, KeyRange(), lsn_text(lsn)))
    _insert_rows(statements, tunnel.id, channels, 0)


def add_base_channels(statements: PostgresStatements, tunnel: str, ranges: Sequence[tuple[int, KeyRange]]) -> None:
    """Add channels for the base data of key ranges of tables, by their oids. The caller has locked the tunnel."""
    there = statements.first(
        "SELECT count(*), count(*) FILTER (WHERE relation <> 0) FROM headrace.channel WHERE tunnel = %s", (tunnel,)
    )
    assert there is not None
    _insert_rows(statements, tunnel, _base_channels(ranges, there[1]), there[0])


def _base_channels(ranges: Sequence[tuple[int, KeyRange]], first: int) -> list[_NewChannel]:
    return [
        _NewChannel(f"base-{number}", ChannelKind.BASE_DATA, [], relation, keys, BASE_START.token)
        for number, (relation, keys) in enumerate(ranges, first)
    ]


def _insert_rows(statements: PostgresStatements, tunnel: str, channels: Sequence[_NewChannel], first: int) -> None:
    for seq, channel in enumerate(channels, first):
        statements.execute(
            "INSERT INTO headrace.channel (tunnel, seq, id, kind, parents, relation, low, high, start, committed)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            (
                tunnel,
                seq,
                channel.id,
                channel.kind.value,
                channel.parents,
                channel.relation,
                key_to_json(channel.keys.low),
                key_to_json(channel.keys.high),
                channel.start,
                channel.start,
            ),
        )


def dropped(tunnel: StoredTunnel) -> NotFoundError:
    """Return the error for a handle on a dropped tunnel."""
    received = f"{tunnel.name!r} ({tunnel.id})"
    return NotFoundError("the tunnel was dropped", received=received, remedy="create a new tunnel")
