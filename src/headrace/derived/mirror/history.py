"""`RowVersions`: a mirror that keeps all versions of each row (slowly changing dimension of type 2).

A version begins with a change and ends with the next change of its key. Its key is the source's key and
`valid_from_version`, the commit version of its change: a key column cannot be a time, and changes of one commit time
are versions of their own. Of several changes of a key in one commit, the last one counts.

To close a version, its commit version must be known. A table beside the target has it for each current row. A batch
writes the target before that table, and ignores changes before the version that is there. So a store without
transactions can repeat a batch: either the table does not have the batch, and all rows are written again; or it has,
and all rows before the current version were written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.batches.sinks.targets import TableTarget
from headrace.derived.mirror.forms import LatestRows, MirrorForm, MirrorTable, with_deletes
from headrace.errors import SchemaError
from headrace.model.tables.change_columns import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import MAX_KEY_COLUMNS, Column, TableSchema
from headrace.model.types import type_name
from headrace.ports import BadRows, Capabilities, Store

VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
VALID_FROM_VERSION = "valid_from_version"
HISTORY_COLUMNS = (VALID_FROM_VERSION, VALID_FROM, VALID_TO, IS_CURRENT)
"""The columns that a history has besides those of its source."""
CURRENT_SUFFIX = "__current"
TIMESTAMP, MICROSECONDS = pa.timestamp("us", tz="UTC"), pa.int64()


@dataclass(frozen=True)
class VersionRows:
    """The rows that a batch changes.

    Attributes:
        versions: new versions: the source's columns and `HISTORY_COLUMNS`.
        closings: the end of versions of earlier batches: key, `valid_from_version`, `valid_to` and `is_current`.
        undone: versions of earlier batches whose row was deleted in the commit that began them: key and
            `valid_from_version`.
        current: the current version of each changed key: key and `valid_from_version`.
        without_current: the keys whose current version ended: key only.
    """

    versions: pa.Table
    closings: pa.Table
    undone: pa.Table
    current: pa.Table
    without_current: pa.Table


@dataclass(frozen=True)
class RowVersions(MirrorForm):
    """All versions of the rows.

    Attributes:
        time_type: the type of `valid_from` and `valid_to`: `TIMESTAMP`, or `MICROSECONDS` since 1970 in a store without
            timestamps.

    Raises:
        SchemaError: the source has four key columns, or a column with a name of `HISTORY_COLUMNS`.
    """

    kind = "history"
    change_columns = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)

    time_type: pa.DataType = TIMESTAMP

    def __post_init__(self) -> None:
        key = self.source.primary_key
        if len(key) >= MAX_KEY_COLUMNS:
            raise SchemaError(
                "a history needs one key column more than its source",
                received=f"key {', '.join(key)}",
                valid=f"a source with at most {MAX_KEY_COLUMNS - 1} key columns",
                remedy="mirror the table without history",
            )
        clash = [name for name in HISTORY_COLUMNS if name in self.source]
        if clash:
            raise SchemaError(
                "the source has a column with the name of a column of its history",
                received=", ".join(clash),
                remedy="rename the column in the source, or mirror the table without history",
            )

    @property
    def tables(self) -> tuple[MirrorTable, ...]:
        key = self.source.primary_key
        version = Column(VALID_FROM_VERSION, pa.int64(), nullable=False)
        times = Column(VALID_FROM, self.time_type), Column(VALID_TO, self.time_type)
        added = (version, *times, Column(IS_CURRENT, pa.bool_()))
        versions = TableSchema((*self.source.columns, *added), (*key, VALID_FROM_VERSION))
        current = TableSchema((*(self.source.column(name) for name in key), version), key)
        return MirrorTable(self.target, versions), MirrorTable(f"{self.target}{CURRENT_SUFFIX}", current)

    @property
    def targets(self) -> tuple[TableTarget, ...]:
        versions, current = self.tables
        return (
            self.target_table(versions, RowChange.PUT),
            self.target_table(versions, RowChange.UPDATE),
            self.target_table(versions, RowChange.DELETE),
            self.target_table(current, RowChange.PUT, is_state=True),
            self.target_table(current, RowChange.DELETE, is_state=True),
        )

    def route(self, store: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield versions, closings and undone versions, and then the changes of the table of current versions."""
        current = self.tables[1]
        changes = with_deletes(self.rows(parts), lambda: self.keys_of(store, current))
        collected = [rows for rows in changes if rows.num_rows]
        if not collected:
            return
        rows = pa.Table.from_batches(collected)
        key = list(self.source.primary_key)
        keys = rows.select(key).rename_columns([self.former(current.name, name) for name in key])
        known = store.table(current.name, current.schema.arrow).get_many(keys, [VALID_FROM_VERSION])
        found = version_rows(rows, known.column(VALID_FROM_VERSION), self.source, self.time_type)
        ended = (found.versions, found.closings, found.undone)
        for target, changed in enumerate((*ended, found.current, found.without_current)):
            for batch in changed.to_batches():
                yield target, batch


def version_rows(
    changes: pa.Table, known: pa.ChunkedArray, source: TableSchema, time_type: pa.DataType = TIMESTAMP
) -> VersionRows:
    """Return the versions that changes begin and end.

    Args:
        changes: the source's columns and the change columns, in commit order within each key, without pre-images.
        known: int64, for each change the current version of its key before the batch; null if there is none.
        source: the columns of the source.
        time_type: as `RowVersions.time_type`.
    """
    key = list(source.primary_key)
    number = key_numbers(changes, key)
    version = changes.column(COMMIT_VERSION).to_numpy()
    before = known.fill_null(-1).to_numpy()
    # By key; in commit order within a key.
    order = np.argsort(number, kind="stable")
    # A limit can cut a batch inside of a commit, so the rest of the last commit can follow.
    order = order[version[order] >= before[order]]
    number, version = number[order], version[order]
    ends_commit = np.ones(len(order), np.bool_)
    ends_commit[:-1] = (number[1:] != number[:-1]) | (version[1:] != version[:-1])
    order, number, version = order[ends_commit], number[ends_commit], version[ends_commit]
    before = before[order]
    continues = np.zeros(len(order), np.bool_)
    continues[:-1] = number[1:] == number[:-1]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = ~continues[:-1]

    rows = changes.take(pa.array(order))
    starts = rows.column(COMMIT_TIMESTAMP).cast(pa.int64()).to_numpy()
    ends = np.zeros_like(starts)
    ends[:-1] = starts[1:]
    deleted = pc.equal(rows.column(CHANGE_TYPE), "delete").to_numpy()
    versions = rows.select(source.names)
    versions = versions.append_column(VALID_FROM_VERSION, rows.column(COMMIT_VERSION))
    versions = versions.append_column(VALID_FROM, pa.array(starts).view(time_type))
    versions = versions.append_column(VALID_TO, pa.array(ends, mask=~continues).view(time_type))
    versions = versions.append_column(IS_CURRENT, pa.array(~continues))
    # A put in the commit that began the current version replaces that version; a delete in it removes the version.
    closes = begins & (before >= 0) & (version > before)
    closings = rows.select(key).append_column(VALID_FROM_VERSION, pa.array(before))
    closings = closings.append_column(VALID_TO, pa.array(starts).view(time_type))
    closings = closings.append_column(IS_CURRENT, pa.array(np.zeros(len(order), np.bool_)))
    return VersionRows(
        versions=versions.filter(pa.array(~deleted)),
        closings=closings.filter(pa.array(closes)),
        undone=closings.select([*key, VALID_FROM_VERSION]).filter(pa.array(begins & (version == before) & deleted)),
        current=versions.select([*key, VALID_FROM_VERSION]).filter(pa.array(~continues & ~deleted)),
        without_current=rows.select(key).filter(pa.array(~continues & deleted)),
    )


def form_of(
    source: TableSchema,
    target: str,
    capabilities: Capabilities,
    *,
    history: bool,
    bad_rows: BadRows | None = None,
) -> MirrorForm:
    """Return what a mirror keeps in a store with some capabilities.

    Args:
        bad_rows: where refused rows of a mirror without history go.
    """
    if history:
        return RowVersions(source, target, time_type_of(capabilities))
    return LatestRows(source, target, bad_rows=bad_rows)


def time_type_of(capabilities: Capabilities) -> pa.DataType:
    """Return the type of times in the histories of a store."""
    types = capabilities.column_types
    return TIMESTAMP if types is None or type_name(TIMESTAMP) in types else MICROSECONDS


Indexes: TypeAlias = npt.NDArray[np.int64]


def key_numbers(rows: pa.Table, key: Sequence[str]) -> Indexes:
    """Return a number below ``rows.num_rows`` for each row. Two rows have the same number if their keys are equal.

    Args:
        key: the names of the key columns, at least one; they have no nulls.
    """
    numbers, _ = _encoded(rows.column(key[0]))
    for name in key[1:]:
        further, size = _encoded(rows.column(name))
        # Below the square of the number of rows, so it fits into 64 bits.
        numbers, _ = _encoded(pa.chunked_array([pa.array(numbers * max(size, 1) + further)]))
    return numbers


def _encoded(column: pa.ChunkedArray) -> tuple[Indexes, int]:
    """Return the number of each value, and the number of different values."""
    chunks = pc.dictionary_encode(column).unify_dictionaries().chunks
    if not chunks:
        return np.zeros(0, np.int64), 0
    numbers = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in chunks]
    return np.concatenate(numbers).astype(np.int64), len(chunks[-1].dictionary)
