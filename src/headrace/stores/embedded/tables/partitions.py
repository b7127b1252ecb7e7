"""Partitions of a table: listing, splitting and merging them, and cutting a table into ranges of equal size.

A partition is a key range and a change log. The rows of all partitions are in one SQLite table. So a split or merge
moves no rows: it closes partitions and opens new ones, with the closed ones as parents.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import apsw

from headrace.errors import NotFoundError, OptionError
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import Key
from headrace.ports import Partition
from headrace.stores.embedded.tables.keys import key_from_json, key_to_json
from headrace.stores.embedded.tables.physical import PhysicalTable
from headrace.stores.embedded.tunnels import stored_tunnels


class OpenPartition(NamedTuple):
    """An open partition: its id, key range and number of rows."""

    id: int
    keys: KeyRange
    rows: int


def create_first(connection: apsw.Connection, object_id: int) -> None:
    """Create the first partition of a new table, for all keys."""
    _insert(connection, object_id, (), KeyRange(), 0)


def open_partitions(connection: apsw.Connection, object_id: int) -> list[OpenPartition]:
    """Return the open partitions in key order; together they cover all keys."""
    return sorted(_opened(connection, object_id, "true"), key=lambda each: each.keys.low or ())


def _opened(connection: apsw.Connection, object_id: int, condition: str, *values: object) -> list[OpenPartition]:
    """Return the open partitions that meet a condition in SQL."""
    found = connection.execute(
        f"SELECT id, low, high, rows FROM partition WHERE object = ? AND open = 1 AND {condition}",
        (object_id, *values),
    )
    return [
        OpenPartition(partition, KeyRange(key_from_json(low), key_from_json(high)), rows)
        for partition, low, high, rows in found
    ]


def all_partitions(connection: apsw.Connection, object_id: int) -> tuple[Partition, ...]:
    """Return all partitions, also closed ones whose log is kept, in the order of their creation."""
    found = connection.execute(
        "SELECT id, low, high, parents, open, rows, first, next, log_bytes FROM partition WHERE object = ? ORDER BY id",
        (object_id,),
    )
    return tuple(
        Partition(
            id=partition,
            keys=KeyRange(key_from_json(low), key_from_json(high)),
            parents=tuple(json.loads(parents)),
            open=bool(is_open),
            rows=rows,
            first=first,
            next=next_row,
            log_bytes=log_bytes,
        )
        for partition, low, high, parents, is_open, rows, first, next_row, log_bytes in found
    )


def split(connection: apsw.Connection, table: PhysicalTable, partition: int | None, at: Key | None) -> tuple[int, int]:
    """Split a partition, see `headrace.ports.Table.split`; ``at`` is a key or the beginning of one."""
    if partition is None:
        chosen = max(open_partitions(connection, table.object_id), key=lambda each: each.rows)
    else:
        chosen = _find(connection, table.object_id, partition)
    if at is None:
        if chosen.rows < 2:
            raise OptionError(
                "a partition of fewer than two rows has no middle",
                received=f"partition {chosen.id} with {chosen.rows} rows",
                remedy="name the key to split at",
            )
        at = table.key_at(connection, chosen.keys, chosen.rows // 2)
        assert at is not None
    low, high = chosen.keys.low, chosen.keys.high
    if (low is not None and at <= low) or (high is not None and at >= high):
        raise OptionError(
            "a split needs a key inside the partition, above its lower bound",
            received=at,
            valid=f"partition {chosen.id} from {_shown(low)} to {_shown(high)}",
        )
    left, right = KeyRange(low, at), KeyRange(at, high)
    rows = table.count(connection, left)
    first, second = _replace(connection, table.object_id, [chosen], [(left, rows), (right, chosen.rows - rows)])
    return first, second


def merge(connection: apsw.Connection, object_id: int, left: int, right: int) -> int:
    """Merge two adjacent open partitions; return the new id."""
    first, second = _find(connection, object_id, left), _find(connection, object_id, right)
    if first.keys.high is None or first.keys.high != second.keys.low:
        opened = open_partitions(connection, object_id)
        raise OptionError(
            "only adjacent partitions can be merged: the second begins where the first ends",
            received=f"partitions {left} and {right}",
            valid=[f"{a.id} and {b.id}" for a, b in pairwise(opened)],
        )
    whole = KeyRange(first.keys.low, second.keys.high)
    (merged,) = _replace(connection, object_id, [first, second], [(whole, first.rows + second.rows)])
    return merged


def splits(connection: apsw.Connection, table: PhysicalTable, count: int) -> list[KeyRange]:
    """Return at most ``count`` ranges of about equal numbers of rows that cover all keys.

    A range is a part of one partition, or consists of whole partitions.
    """
    if count < 1:
        raise OptionError("the number of ranges must be at least 1", received=count)
    opened = open_partitions(connection, table.object_id)
    total = sum(each.rows for each in opened)
    if len(opened) >= count:
        return _grouped(opened, total, count)
    ranges: list[KeyRange] = []
    spare = count - len(opened)
    for partition in opened:
        pieces = 1 + (spare * partition.rows // total if total else 0)
        step = -(-partition.rows // pieces)
        low = partition.keys.low
        for _ in range(pieces - 1):
            key = table.key_at(connection, KeyRange(low, partition.keys.high), step)
            if key is None:
                break
            ranges.append(KeyRange(low, key))
            low = key
        ranges.append(KeyRange(low, partition.keys.high))
    return ranges


def _grouped(opened: Sequence[OpenPartition], total: int, count: int) -> list[KeyRange]:
    before = 0
    groups = []
    for partition in opened:
        # Empty partitions after the last row belong to the last range.
        groups.append(min(before * count // total, count - 1) if total else 0)
        before += partition.rows
    ranges = []
    for _, members in groupby(zip(groups, opened, strict=True), key=lambda pair: pair[0]):
        together = [partition for _, partition in members]
        ranges.append(KeyRange(together[0].keys.low, together[-1].keys.high))
    return ranges


def _find(connection: apsw.Connection, object_id: int, partition: int) -> OpenPartition:
    for each in _opened(connection, object_id, "id = ?", partition):
        return each
    known = connection.execute("SELECT 1 FROM partition WHERE object = ? AND id = ?", (object_id, partition)).fetchone()
    raise NotFoundError(
        "the table has no such partition" if known is None else "the partition was split or merged before",
        received=partition,
        valid=[each.id for each in open_partitions(connection, object_id)],
    )


def _replace(
    connection: apsw.Connection,
    object_id: int,
    parents: Sequence[OpenPartition],
    children: Sequence[tuple[KeyRange, int]],
) -> list[int]:
    parent_ids = [parent.id for parent in parents]
    connection.executemany("UPDATE partition SET open = 0, rows = 0 WHERE id = ?", [(each,) for each in parent_ids])
    ids = [_insert(connection, object_id, parent_ids, keys, rows) for keys, rows in children]
    stored_tunnels.partitions_replaced(connection, object_id, parent_ids, ids)
    return ids


def _insert(connection: apsw.Connection, object_id: int, parents: Sequence[int], keys: KeyRange, rows: int) -> int:
    connection.execute(
        "INSERT INTO partition (object, low, high, parents, open, rows) VALUES (?, ?, ?, ?, 1, ?)",
        (object_id, key_to_json(keys.low), key_to_json(keys.high), json.dumps(list(parents)), rows),
    )
    return connection.last_insert_rowid()


def _shown(bound: Key | None) -> str:
    return "the end" if bound is None else repr(bound)
