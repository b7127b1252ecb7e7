"""One pass over a key range of two tables, and the second pass over the rows that differ."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.inspect.comparing.canonical import canonical
from headrace.inspect.comparing.columns import ComparedColumns
from headrace.inspect.comparing.digests import checksum, row_digests
from headrace.inspect.comparing.key_ranges import closed_range, for_table
from headrace.inspect.comparing.merging import Differences, differences
from headrace.inspect.comparing.results import RangeChecksum, RowDifference
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import Key
from headrace.ports import Table


@dataclass(frozen=True)
class Suspects:
    """Keys that differ in the first pass.

    Attributes:
        keys: a range that contains them.
        digests: their digests, sorted. 8 bytes for each key, so that any number of keys fits into memory.
    """

    keys: KeyRange
    digests: np.ndarray


@dataclass
class Found:
    """The result of a pass over one key range.

    Attributes:
        a: rows and checksum of the first table.
        b: rows and checksum of the second table.
        rows: the first differing rows, in key order.
        suspects: all keys that differ.
    """

    a: RangeChecksum
    b: RangeChecksum
    only_in_a: int = 0
    only_in_b: int = 0
    changed: int = 0
    rows: list[RowDifference] = field(default_factory=list)
    suspects: list[Suspects] = field(default_factory=list)


class Cancelled(Exception):
    """Another thread of the comparison has failed."""


@dataclass(frozen=True)
class Comparison:
    """Two tables, and how they are compared.

    Attributes:
        limit: the number of differing rows to return for each key range; None for all.
        checksums: whether to compute checksums.
        cancelled: stops the passes of all threads.
    """

    a: Table
    b: Table
    columns: ComparedColumns
    limit: int | None
    checksums: bool
    cancelled: threading.Event = field(default_factory=threading.Event)

    def compare(self, keys: KeyRange, suspects: np.ndarray | None = None) -> Found:
        """Compare a key range; with ``suspects``, count and return only keys with these digests."""
        names = (*self.columns.key, *self.columns.attributes)
        left = CountedRows(self.a, names, keys, self.cancelled, checksums=self.checksums and suspects is None)
        right = CountedRows(self.b, names, keys, self.cancelled, checksums=self.checksums and suspects is None)
        found = Found(RangeChecksum(keys, 0, 0), RangeChecksum(keys, 0, 0))
        for part in differences(left, right, self.columns.key, self.columns.attributes):
            self._add(found, part if suspects is None else self._among(part, suspects))
        found.a, found.b = left.counted, right.counted
        return found

    def compare_again(self, suspects: Suspects) -> Found:
        """Read the rows of suspects again; count and return those that still differ."""
        return self.compare(suspects.keys, suspects.digests)

    def _add(self, found: Found, part: Differences) -> None:
        found.only_in_a += part.only_a.num_rows
        found.only_in_b += part.only_b.num_rows
        found.changed += part.changed_a.num_rows
        groups = [rows for rows in (part.only_a, part.only_b, part.changed_a) if rows.num_rows]
        if not groups:
            return
        bounds = [self._key_at(rows, index) for rows in groups for index in (0, rows.num_rows - 1)]
        first, last = min(bounds, key=_as_bytes), max(bounds, key=_as_bytes)
        digests = np.concatenate([self._digests(rows) for rows in groups])
        found.suspects.append(Suspects(closed_range(first, last), np.sort(digests)))
        left = None if self.limit is None else self.limit - len(found.rows)
        if left is None or left > 0:
            found.rows += self._described(part, left)

    def _among(self, part: Differences, suspects: np.ndarray) -> Differences:
        """Return the differences of keys with these digests."""
        only_a, only_b, changed = (
            np.isin(self._digests(rows), suspects) for rows in (part.only_a, part.only_b, part.changed_a)
        )
        return Differences(
            only_a=part.only_a.filter(pa.array(only_a)),
            only_b=part.only_b.filter(pa.array(only_b)),
            changed_a=part.changed_a.filter(pa.array(changed)),
            changed_b=part.changed_b.filter(pa.array(changed)),
            changed_columns={name: flags[changed] for name, flags in part.changed_columns.items()},
        )

    def _digests(self, rows: pa.RecordBatch) -> np.ndarray:
        if not rows.num_rows:
            return np.zeros(0, np.uint64)
        return row_digests([canonical(rows.column(name)) for name in self.columns.key], self.columns.key)

    def _key_at(self, rows: pa.RecordBatch, index: int) -> Key:
        return tuple(rows.column(name)[index].as_py() for name in self.columns.key)

    def _described(self, part: Differences, limit: int | None) -> list[RowDifference]:
        """Return the first differing rows in key order."""
        only_a, only_b, changed_a, changed_b = (
            rows.slice(0, limit).to_pylist() for rows in (part.only_a, part.only_b, part.changed_a, part.changed_b)
        )
        described = [RowDifference("only in a", self._key(row), (), row, None) for row in only_a]
        described += [RowDifference("only in b", self._key(row), (), None, row) for row in only_b]
        for index, (one, other) in enumerate(zip(changed_a, changed_b, strict=True)):
            names = tuple(name for name, flags in part.changed_columns.items() if flags[index])
            described.append(RowDifference("changed", self._key(one), names, one, other))
        described.sort(key=lambda row: _as_bytes(tuple(row.key.values())))
        return described[:limit]

    def _key(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in self.columns.key}


class CountedRows:
    """The rows of a table in a key range, which are counted when they are read."""

    def __init__(
        self, table: Table, names: tuple[str, ...], keys: KeyRange, cancelled: threading.Event, *, checksums: bool
    ) -> None:
        self._table, self._names, self._keys = table, names, keys
        self._cancelled, self._checksums = cancelled, checksums
        self.counted = RangeChecksum(keys, 0, 0)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._table.scan(self._names, keys=for_table(self._keys, self._table.schema)):
            if self._cancelled.is_set():
                raise Cancelled
            total = self.counted.checksum
            if self._checksums and batch.num_rows:
                values = [canonical(batch.column(name)) for name in self._names]
                total = (total + checksum(row_digests(values, self._names))) % 2**64
            self.counted = RangeChecksum(self._keys, self.counted.rows + batch.num_rows, total)
            yield batch


def _as_bytes(key: Key) -> Key:
    """Return a key for comparisons. One table may have texts, the other one bytes; texts have the order of bytes."""
    return tuple(value.encode() if isinstance(value, str) else value for value in key)


def first_rows(found: list[Found], limit: int | None) -> tuple[RowDifference, ...]:
    """Return the first differing rows of consecutive ranges."""
    return tuple(itertools.islice((row for each in found for row in each.rows), limit))
