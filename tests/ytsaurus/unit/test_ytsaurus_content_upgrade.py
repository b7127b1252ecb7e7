"""Upgrades of stores from an earlier version of the endpoint keep the contents of files and static tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.endpoint.storage.file_contents import DIRECTORY
from headrace_ytsaurus.endpoint.storage.tree import Facet
from headrace_ytsaurus.wire.yson import documents
from tests.ytsaurus.unit.ytsaurus_cluster import bytes_of, call, commit, rows_of, start, value_of

OLD_TABLES = """
CREATE TABLE yt_garbage (part TEXT PRIMARY KEY, since INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE yt_static_rows (node TEXT NOT NULL, number INTEGER NOT NULL, n INTEGER NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (node, number)) WITHOUT ROWID;
CREATE INDEX yt_entry_part ON yt_entry (value) WHERE facet = 6;
DROP TABLE yt_part_list;
DROP TABLE yt_list_garbage;
DROP TABLE yt_static_piece
"""
SCHEMA = json.dumps(
    {"strict": True, "unique_keys": False, "columns": [{"name": "a", "type_v3": "int64", "required": False}]}
)


class OldStore:
    """A store of an earlier version."""

    def __init__(self, root: Path) -> None:
        self.cluster = Cluster(root)
        self.database = self.cluster.database
        self.files = self.cluster.store.files()

    def node(self, kind: str, path: str, tx: str | None = None) -> str:
        return str(call(self.cluster, "create", type=kind, path=path, transaction_id=tx).value["node_id"])

    def leave(self) -> None:
        with self.database.write() as connection:
            connection.execute("DELETE FROM yt_entry WHERE facet = ?", (Facet.PARTS,))
            # Earlier versions took no lock on nodes that a transaction had created.
            connection.execute("DELETE FROM yt_lock WHERE explicit = 0")
            for statement in OLD_TABLES.split(";\n"):
                connection.execute(statement)

    def file_parts(self, node: str, tx: str, *contents: bytes | None) -> None:
        for number, content in enumerate(contents):
            text = None
            if content is not None:
                name = f"part_{node}_{tx}_{number}"
                with self.files.create(f"{DIRECTORY}/{name}") as upload:
                    upload.write(content)
                    upload.commit()
                text = json.dumps([name, len(content)])
            self._entry(node, Facet.PART, f"{number:08d}", tx, text)

    def table(self, node: str, *pieces: list[Any]) -> None:
        connection = self.database.connection
        connection.execute("DELETE FROM yt_entry WHERE node = ? AND facet = ?", (node, Facet.CONTENT))
        connection.execute("INSERT INTO yt_table VALUES (?, 'static', ?, '[]', '{}')", (node, SCHEMA))
        for number, rows in enumerate(pieces):
            data = b"".join(documents.dumps({"a": row}, text=False) + b";" for row in rows)
            connection.execute("INSERT INTO yt_static_rows VALUES (?, ?, ?, ?)", (node, number, len(rows), data))

    def _entry(self, *values: Any) -> None:
        self.database.execute("INSERT OR REPLACE INTO yt_entry VALUES (?, ?, ?, ?, ?)", values)


def test_stores_of_earlier_versions_are_upgraded(tmp_path: Path) -> None:
    old = OldStore(tmp_path)
    tx, reader = start(old.cluster), start(old.cluster)
    empty, table = old.node("table", "//tmp/empty"), old.node("table", "//tmp/t")
    made = old.node("table", "//tmp/made", tx)
    file, changed, empty_file = (old.node("file", f"//tmp/{name}") for name in ("f", "changed", "empty_file"))
    for path in ("//tmp/t", "//tmp/f"):
        call(old.cluster, "lock", path=path, mode="snapshot", transaction_id=reader)
    call(old.cluster, "set", 1, path="//tmp/changed/@mark", transaction_id=tx)
    old.leave()
    old.table(empty)
    old.table(table, [1, 2], [3])
    old.table(made, [4])
    old.file_parts(file, "", b"new")
    old.file_parts(file, reader, b"former", b" one")
    old.file_parts(changed, "", b"a", b"b", b"c")
    old.file_parts(changed, tx, b"x", None)
    assert not old.database.query("SELECT * FROM yt_entry WHERE node = ? AND facet = 6", (empty_file,))
    old.cluster.close()

    cluster = Cluster(tmp_path)
    try:
        assert [row["a"] for row in rows_of(cluster, "//tmp/t")] == [1, 2, 3]
        assert rows_of(cluster, "//tmp/empty") == []
        assert [column["name"] for column in value_of(cluster, "//tmp/empty/@schema")] == ["a"]
        assert (bytes_of(cluster, "//tmp/f"), bytes_of(cluster, "//tmp/f", reader)) == (b"new", b"former one")
        assert (bytes_of(cluster, "//tmp/changed"), bytes_of(cluster, "//tmp/changed", tx)) == (b"abc", b"xc")
        assert bytes_of(cluster, "//tmp/empty_file") == b""
        for path in ("//tmp/t", "//tmp/empty", "//tmp/made"):
            call(cluster, "write_table", [{"a": 9}], path=f"<append=%true>{path}", transaction_id=tx)
        for path in ("//tmp/f", "//tmp/changed", "//tmp/empty_file"):
            call(cluster, "write_file", b"!", path=f"<append=%true>{path}", transaction_id=tx)
        commit(cluster, tx)
        cluster.contents.sweep(1 << 60)
        assert [row["a"] for row in rows_of(cluster, "//tmp/t", reader)] == [1, 2, 3]
        tables = {path: [row["a"] for row in rows_of(cluster, f"//tmp/{path}")] for path in ("t", "empty", "made")}
        assert tables == {"t": [1, 2, 3, 9], "empty": [9], "made": [4, 9]}
        files = {path: bytes_of(cluster, f"//tmp/{path}") for path in ("f", "changed", "empty_file")}
        assert files == {"f": b"new!", "changed": b"xc!", "empty_file": b"!"}
        names = {name for (name,) in cluster.database.query("SELECT name FROM sqlite_master")}
        assert not names & {"yt_garbage", "yt_static_rows", "yt_entry_part"}
        call(cluster, "abort_transaction", transaction_id=reader)
        cluster.contents.sweep(1 << 60)
        assert len(cluster.store.files().list(DIRECTORY)) == 6
    finally:
        cluster.close()
