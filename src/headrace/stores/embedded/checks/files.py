"""Checks of the store's files, such as checkpoints: a tree of names, and complete bytes."""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from headrace.stores.embedded.checks.problems import Problem, orphans
from headrace.stores.embedded.files import PART_BITS
from headrace.stores.shared.file_trees import PART_BYTES


def files(connection: apsw.Connection) -> Iterator[Problem]:
    """Check that each file is in a directory, has all its bytes, and that no other bytes exist."""
    root = connection.execute("SELECT id, directory FROM file_node WHERE parent = 0").fetchall()
    if root != [(1, 1)]:
        yield Problem("the files have no root directory, or several")
    reachable = (
        "WITH RECURSIVE reached (id, directory) AS (SELECT id, directory FROM file_node WHERE id = 1"
        " UNION SELECT n.id, n.directory FROM file_node n JOIN reached r ON n.parent = r.id AND r.directory)"
        " SELECT id FROM reached"
    )
    for number, name in connection.execute(
        f"SELECT id, name FROM file_node WHERE parent IS NOT NULL AND id NOT IN ({reachable})"
    ):
        yield Problem(f"the file or directory {name!r} ({number}) is in no directory")
    incomplete = connection.execute(
        "SELECT n.name, n.id, n.size, count(p.id), total(length(p.data)), ifnull(max(p.id), 0) FROM file_node n"
        f" LEFT JOIN file_part p ON p.id >= n.id << {PART_BITS} AND p.id < (n.id + 1) << {PART_BITS}"
        " WHERE n.parent IS NOT NULL AND NOT n.directory GROUP BY n.id HAVING total(length(p.data)) <> n.size"
        f" OR count(p.id) <> (n.size + {PART_BYTES - 1}) / {PART_BYTES}"
        f" OR (count(p.id) AND max(p.id) <> (n.id << {PART_BITS}) + count(p.id) - 1)"
    )
    for name, number, size, _, found, _ in incomplete:
        yield Problem(f"the file {name!r} ({number}) has {int(found)} of {size} bytes, or has them in a wrong order")
    yield from orphans(
        connection,
        "file_part",
        f"id >> {PART_BITS} NOT IN (SELECT id FROM file_node WHERE NOT directory)",
        "parts of files that do not exist",
    )
