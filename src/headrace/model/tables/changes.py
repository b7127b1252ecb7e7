"""Changes of rows: the entries of a table's log, and the row changes of a sink. No I/O."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import OptionError, UnsupportedError
from headrace.model.tables.schema import TableSchema


class ChangeOp(enum.IntEnum):
    """The effect of one change on its row."""

    BASE = 0
    """No change: base data, a row that existed when the tunnel was created."""
    INSERT = 1
    """A put of a new row."""
    REPLACE = 2
    """A put that replaced an existing row."""
    UPDATE = 3
    """An update of an existing row; `Changes.written` has the set cells."""
    UPSERT = 4
    """An update that inserted a new row."""
    DELETE = 5
    """A delete of a row; the entry has the key only. After a PREIMAGE, as logs of older releases have it, also the old
    row."""
    PREIMAGE = 6
    """The row before the replacement or update that follows; only in tables with pre-images."""
    DELETE_WITH_ROW = 7
    """A delete of a row; the entry has the whole old row. Only in tables with pre-images."""
    TRUNCATE = 8
    """A delete of all rows at once, the first change of its batch. The entry has no row: its key is null. Only in
    tunnels that were asked for it, see `headrace.ports.Tunnel.with_truncations`; of several tables as one, the entry
    has the names of its table."""


DELETES = (ChangeOp.DELETE, ChangeOp.DELETE_WITH_ROW)
"""The operations that delete a row."""
_NEEDS_OLD_ROW = (ChangeOp.REPLACE, ChangeOp.UPDATE, ChangeOp.DELETE)


@dataclass(frozen=True)
class Changes:
    """Consecutive changes of one channel, in commit order; all arrays have ``rows.num_rows`` entries.

    Attributes:
        rows: the table's columns. A DELETE has its key, a DELETE_WITH_ROW the whole old row. Every other change has the
            whole new row, if the store has it (`Capabilities.whole_rows`).
        ops: int8 `ChangeOp` codes, not null.
        versions: int64 commit versions, increasing, and equal within one commit; not null.
        timestamps: timestamp[us, UTC] of the commits; not null.
        written: the attribute cells that an UPDATE or UPSERT has set: attribute name → boolean array. A missing name,
            a null entry, or None for the whole mapping means that the cells were set.
        transactions: int64 ids of the transactions, if the store has them; None if it has none, or for base data.
    """

    rows: pa.RecordBatch
    ops: pa.Int8Array
    versions: pa.Int64Array
    timestamps: pa.TimestampArray
    written: Mapping[str, pa.BooleanArray] | None = None
    transactions: pa.Int64Array | None = None

    @classmethod
    def of_base(cls, rows: pa.RecordBatch, version: int, ts: int) -> Changes:
        """Return rows as base data of one version and timestamp (µs)."""
        count = rows.num_rows
        return cls(
            rows,
            ops=pa.array(np.full(count, ChangeOp.BASE, dtype=np.int8)),
            versions=pa.array(np.full(count, version, dtype=np.int64)),
            timestamps=pa.array(np.full(count, ts, dtype=np.int64)).view(pa.timestamp("us", tz="UTC")),
        )

    @classmethod
    def none(cls, schema: TableSchema) -> Changes:
        """Return no changes of a table."""
        return cls.of_base(pa.RecordBatch.from_pylist([], schema.changes), 0, 0)

    @classmethod
    def joined(cls, parts: Sequence[Changes]) -> Changes:
        """Return consecutive changes, at least one part of them, as one value; several parts without ``written``."""
        if len(parts) == 1:
            return parts[0]
        ids = [part.transactions for part in parts if part.transactions is not None]
        return cls(
            pa.concat_batches([part.rows for part in parts]),
            pa.concat_arrays([part.ops for part in parts]),
            pa.concat_arrays([part.versions for part in parts]),
            pa.concat_arrays([part.timestamps for part in parts]),
            transactions=pa.concat_arrays(ids) if len(ids) == len(parts) else None,
        )

    @property
    def num_rows(self) -> int:
        return int(self.rows.num_rows)

    def slice(self, offset: int, length: int | None = None) -> Changes:
        """Return a part of the changes without copying."""
        return self._each(lambda values: values.slice(offset, length))

    def filter(self, mask: pa.BooleanArray) -> Changes:
        """Return the changes where the mask is true."""
        return self._each(lambda values: values.filter(mask))

    def take(self, order: pa.Int64Array) -> Changes:
        """Return the changes at some indexes, in this order."""
        return self._each(lambda values: values.take(order))

    def _each(self, part: Callable[[Any], Any]) -> Changes:
        """Return the changes with the same part of the rows and of each array."""
        return Changes(
            part(self.rows),
            part(self.ops),
            part(self.versions),
            part(self.timestamps),
            None if self.written is None else {name: part(cells) for name, cells in self.written.items()},
            None if self.transactions is None else part(self.transactions),
        )

    def whole_pairs(self, rows: int) -> int:
        """Return the number of rows nearest to ``rows`` that does not separate a pre-image from its change.

        If ``rows`` is 1, the result may be 2, also if there is only one row.
        """
        if self.ops[rows - 1].as_py() != ChangeOp.PREIMAGE:
            return rows
        return rows - 1 if rows > 1 else rows + 1

    @property
    def begin_with_truncation(self) -> bool:
        return self.num_rows > 0 and self.ops[0].as_py() == ChangeOp.TRUNCATE

    @property
    def truncations_of_first(self) -> int:
        """The number of truncations in the transaction of the first entry."""
        first = pc.equal(self.versions, self.versions[0])
        return int(pc.sum(pc.and_(first, pc.equal(self.ops, int(ChangeOp.TRUNCATE))), min_count=0).as_py())

    def without_preimages(self) -> Changes:
        """Return the changes without PREIMAGE entries."""
        keep = pc.not_equal(self.ops, pa.scalar(int(ChangeOp.PREIMAGE), pa.int8()))
        return self if pc.all(keep, min_count=0).as_py() else self.filter(keep)

    def with_single_deletes(self) -> Changes:
        """Return the changes with one DELETE_WITH_ROW for each PREIMAGE that a DELETE follows.

        Logs of older releases have such pairs. The changes must not separate a pair; pages of `Tunnel.read` do not.
        """
        ops = self.ops.to_numpy()
        images = np.flatnonzero((ops[:-1] == ChangeOp.PREIMAGE) & (ops[1:] == ChangeOp.DELETE))
        if len(images) == 0:
            return self
        single, keep = ops.copy(), np.ones(len(ops), dtype=np.bool_)
        single[images + 1] = ChangeOp.DELETE_WITH_ROW
        keep[images] = False
        return replace(self, ops=pa.array(single)).filter(pa.array(keep))

    @property
    def without_old_row(self) -> npt.NDArray[np.intp]:
        """The indexes of the replacements, updates and deletes that lack their old row."""
        ops = self.ops.to_numpy()
        lacks = np.isin(ops, _NEEDS_OLD_ROW)
        lacks[1:] &= ops[:-1] != ChangeOp.PREIMAGE
        return np.flatnonzero(lacks)

    def check_old_rows(self, table: str) -> None:
        """Check that each update and delete has its old row.

        The changes must not separate a pre-image from its change; pages of `Tunnel.read` do not.

        Args:
            table: the name of the table, for the error.

        Raises:
            UnsupportedError: a replacement, update or delete lacks its old row.
        """
        lacks = self.without_old_row
        if not len(lacks):
            return
        first = int(lacks[0])
        word = "a delete" if self.ops[first].as_py() == ChangeOp.DELETE else "an update"
        raise UnsupportedError(
            f"{word} in the log of table {table!r} lacks the old row, which readAs=table needs",
            received=f"{len(lacks)} such changes in a page, the first in commit version {self.versions[first].as_py()}",
            remedy=old_rows_remedy(table),
        )


def old_rows_remedy(table: str) -> str:
    """Return what gives a reader the old row of each later update and delete of a table."""
    return (
        f"run `headrace table set {shlex.quote(table)} pre_images=true`, and read a new tunnel of kind BaseAndStream: "
        "it has only later changes"
    )


class RowChange(enum.StrEnum):
    """The effect of a sink's rows on a table."""

    PUT = "put"
    """Replace the row."""
    UPDATE = "update"
    """Set the cells that are not null; keep the other cells."""
    DELETE = "delete"
    """Remove the row with this key; other columns are ignored."""
    REPLACE_ALL = "replace_all"
    """Replace the content of the table with these rows. Only complete mode and overwrites use it."""

    @classmethod
    def parse(cls, text: object) -> RowChange:
        """Return the row change with a name, ignoring case."""
        for kind in (cls.PUT, cls.UPDATE, cls.DELETE):
            if isinstance(text, str) and kind == text.lower():
                return kind
        raise OptionError("unknown kind of row change", received=repr(text)[:200], valid="put, update, delete")
