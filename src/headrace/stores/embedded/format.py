"""The format of a store's database: its SQLite tables, the upgrades of older formats, the checksums of pages."""

from __future__ import annotations

import contextlib
from pathlib import Path

import apsw

from headrace.support.retries import Retries
from headrace.support.sqlite.opening import CHECKSUM_BYTES, checksum_vfs

FORMAT_VERSION = 8
# From this format on, each page has a checksum.
CHECKSUM_FORMAT = 7

DDL = """
CREATE TABLE info (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE clock (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL, ts INTEGER NOT NULL);
INSERT INTO clock VALUES (1, 0, 0);
CREATE TABLE object (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
    options TEXT NOT NULL, schema_version INTEGER NOT NULL);
CREATE TABLE object_schema (object INTEGER NOT NULL, version INTEGER NOT NULL, schema BLOB NOT NULL,
    keys TEXT NOT NULL, PRIMARY KEY (object, version)) WITHOUT ROWID;
CREATE TABLE partition (id INTEGER PRIMARY KEY AUTOINCREMENT, object INTEGER NOT NULL, low TEXT, high TEXT,
    parents TEXT NOT NULL, open INTEGER NOT NULL, rows INTEGER NOT NULL DEFAULT 0, first INTEGER NOT NULL DEFAULT 0,
    next INTEGER NOT NULL DEFAULT 0, small INTEGER NOT NULL DEFAULT 0, log_bytes INTEGER NOT NULL DEFAULT 0,
    trimmed INTEGER NOT NULL DEFAULT 0);
CREATE INDEX partition_object ON partition (object, open);
CREATE TABLE chunk (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, level INTEGER NOT NULL, schema INTEGER NOT NULL,
    version INTEGER NOT NULL, ts INTEGER NOT NULL, commits BLOB, data BLOB NOT NULL);
CREATE TABLE snapshot (id INTEGER PRIMARY KEY AUTOINCREMENT, object INTEGER NOT NULL, tunnel TEXT NOT NULL,
    version INTEGER NOT NULL, ts INTEGER NOT NULL);
CREATE INDEX snapshot_object ON snapshot (object);
CREATE TABLE tunnel (id TEXT PRIMARY KEY, object INTEGER NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL,
    created REAL NOT NULL, reader TEXT, UNIQUE (object, name)) WITHOUT ROWID;
CREATE TABLE channel (tunnel TEXT NOT NULL, seq INTEGER NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL,
    partition INTEGER, low TEXT, high TEXT, parents TEXT NOT NULL, start TEXT NOT NULL, checkpoint TEXT NOT NULL,
    finished INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (tunnel, seq), UNIQUE (tunnel, id)) WITHOUT ROWID;
CREATE TABLE batch_plan (tunnel TEXT NOT NULL, batch TEXT NOT NULL, root TEXT NOT NULL, depth INTEGER NOT NULL,
    previous TEXT NOT NULL, plan TEXT NOT NULL, PRIMARY KEY (tunnel, batch)) WITHOUT ROWID;
CREATE INDEX batch_plan_chain ON batch_plan (tunnel, root, depth);
CREATE TABLE batch_end (tunnel TEXT NOT NULL, batch TEXT NOT NULL, channel TEXT NOT NULL, position TEXT NOT NULL,
    PRIMARY KEY (tunnel, batch, channel)) WITHOUT ROWID;
CREATE TABLE stage (id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, sink TEXT NOT NULL,
    batch INTEGER NOT NULL, created REAL NOT NULL, n INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX stage_batch ON stage (job, sink, batch);
CREATE TABLE marker (job TEXT NOT NULL, sink TEXT NOT NULL, batch INTEGER NOT NULL, content TEXT NOT NULL,
    published REAL NOT NULL,
    PRIMARY KEY (job, sink)) WITHOUT ROWID;
"""
# The statements that upgrade a store to the next format.
UPGRADES = {
    1: """
ALTER TABLE partition ADD COLUMN number INTEGER;
ALTER TABLE partition ADD COLUMN weight INTEGER NOT NULL DEFAULT 0;
ALTER TABLE chunk ADD COLUMN blob INTEGER;
ALTER TABLE stage ADD COLUMN queue INTEGER;
ALTER TABLE stage ADD COLUMN number INTEGER;
ALTER TABLE stage ADD COLUMN blob INTEGER;
CREATE UNIQUE INDEX partition_number ON partition (object, number);
CREATE TABLE blob (id INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB NOT NULL);
CREATE TABLE registration (queue INTEGER NOT NULL, consumer INTEGER NOT NULL, vital INTEGER NOT NULL,
    PRIMARY KEY (queue, consumer)) WITHOUT ROWID;
CREATE INDEX registration_consumer ON registration (consumer);
CREATE TABLE consumer_offset (queue INTEGER NOT NULL, consumer INTEGER NOT NULL, number INTEGER NOT NULL,
    next INTEGER NOT NULL, consumed REAL NOT NULL, kept INTEGER NOT NULL,
    PRIMARY KEY (queue, consumer, number)) WITHOUT ROWID;
CREATE TABLE producer_session (queue INTEGER NOT NULL, producer INTEGER NOT NULL, session TEXT NOT NULL,
    epoch INTEGER NOT NULL, sequence INTEGER NOT NULL, meta TEXT NOT NULL,
    PRIMARY KEY (queue, producer, session)) WITHOUT ROWID;
INSERT OR IGNORE INTO info VALUES ('id', lower(hex(randomblob(16))));
""",
    2: """
ALTER TABLE channel ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0;
ALTER TABLE channel ADD COLUMN lease TEXT NOT NULL DEFAULT 'WAIT';
ALTER TABLE channel ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE channel ADD COLUMN client TEXT;
ALTER TABLE channel ADD COLUMN since REAL NOT NULL DEFAULT 0;
ALTER TABLE channel ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;
ALTER TABLE consumer_offset ADD COLUMN job TEXT;
CREATE TABLE tunnel_client (id TEXT PRIMARY KEY, tunnel TEXT NOT NULL, tag TEXT NOT NULL, timeout REAL NOT NULL,
    connected REAL NOT NULL, seen REAL) WITHOUT ROWID;
CREATE INDEX tunnel_client_tunnel ON tunnel_client (tunnel);
""",
    3: """
CREATE TABLE file_node (id INTEGER PRIMARY KEY AUTOINCREMENT, parent INTEGER, name TEXT NOT NULL,
    directory INTEGER NOT NULL, size INTEGER NOT NULL, modified REAL NOT NULL, moved_from TEXT, UNIQUE (parent, name));
INSERT INTO file_node VALUES (1, 0, '', 1, 0, 0, NULL);
CREATE TABLE file_part (id INTEGER PRIMARY KEY, data BLOB NOT NULL);
""",
    # The same tables. Logs may have `ChangeOp.DELETE_WITH_ROW`, which earlier releases cannot read.
    4: "",
    # Tables without a snapshot may have no SQLite table of undo rows, which earlier releases need.
    5: "",
    # The same tables, with a checksum on each page (`rewrite_with_checksums`).
    6: "",
    # Tunnels of several tables: ``tunnel.object`` is 0, and base channels name the table of their rows.
    7: """
CREATE TABLE tunnel_table (tunnel TEXT NOT NULL, seq INTEGER NOT NULL, object INTEGER NOT NULL,
    PRIMARY KEY (tunnel, seq)) WITHOUT ROWID;
CREATE INDEX tunnel_table_object ON tunnel_table (object);
ALTER TABLE channel ADD COLUMN object INTEGER;
ALTER TABLE object ADD COLUMN trimmed_version INTEGER NOT NULL DEFAULT 0;
""",
}


def upgrade(connection: apsw.Connection, version: int) -> None:
    """Create the tables of an empty database (version 0), or upgrade those of an older format.

    From formats before `CHECKSUM_FORMAT`, `rewrite_with_checksums` does the last steps, which need the database for
    itself.
    """
    target = FORMAT_VERSION if version == 0 or version >= CHECKSUM_FORMAT else CHECKSUM_FORMAT - 1
    steps = [UPGRADES[step] for step in range(max(version, 1), target)]
    for step in steps if version else [DDL, *steps]:
        for statement in step.split(";\n"):
            if statement.strip():
                connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {target}")


def schema_of_new_store() -> dict[str, set[str]]:
    """Return the columns of the SQLite tables that each store has, by table."""
    with contextlib.closing(apsw.Connection(":memory:")) as connection:
        upgrade(connection, 0)
        tables = list(
            connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        )
        return {
            name: {column for (column,) in connection.execute("SELECT name FROM pragma_table_info(?)", (name,))}
            for (name,) in tables
        }


def rewrite_with_checksums(file: Path, patience_seconds: float) -> None:
    """Give the pages of a database of an older format checksums, and upgrade its tables to the newest format.

    A killed process leaves it as it was, or rewritten.

    It needs up to three times the space of the database meanwhile.

    Raises:
        apsw.BusyError: other processes had the database open for all of ``patience_seconds``.
    """
    with contextlib.closing(apsw.Connection(str(file), vfs=checksum_vfs())) as connection:
        retries = Retries(patience_seconds, first_pause=0.01, longest_pause=0.2)
        while True:
            try:
                # A process that closes the database locks it for a moment, so this read can fail, too.
                if int(connection.pragma("user_version")) != CHECKSUM_FORMAT - 1:
                    return
                # A killed upgrade leaves pages with checksums and pages without.
                connection.pragma("checksum_verification", "off")
                connection.pragma("synchronous", "full")
                connection.pragma("locking_mode", "exclusive")
                connection.pragma("journal_mode", "delete")
                break
            except apsw.BusyError as error:
                if not retries.wait(f"{file.name}: {error}"):
                    raise
        connection.pragma("cache_size", -65536)
        connection.reserve_bytes(reserve=CHECKSUM_BYTES)
        connection.execute("VACUUM")
        # Pages get checksums from the write of the first page on, which is not always the first write.
        connection.pragma("checksum_verification", "off")
        connection.execute("VACUUM")
        # Also alone: a connection that opens now learns from the file, and not from its log, that pages have checksums.
        with connection:
            upgrade(connection, CHECKSUM_FORMAT)
        # Still alone: a reader that comes between would keep the database from changing its mode.
        connection.pragma("journal_mode", "wal")
