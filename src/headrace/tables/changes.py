"""Changes of rows: what a table's log gives, and what a sink does to a table. Pure values, no I/O here."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import OptionError


class ChangeOp(enum.IntEnum):
    """What one change did to its row."""

    BASE = 0
    """No change: the row was there when the tunnel was made, and is given as base data."""
    INSERT = 1
    """A put of a row that was not there."""
    REPLACE = 2
    """A put over a row that was there."""
    UPDATE = 3
    """Cells of a row that was there were set; `Changes.written` says which."""
    UPSERT = 4
    """Cells were set and there was no row, which made one."""
    DELETE = 5
    PREIMAGE = 6
    """The row as it was before the change that follows it; only on tables that keep pre-images."""


@dataclass(frozen=True)
class Changes:
    """A run of changes of one channel, in commit order; all arrays have ``rows.num_rows`` entries.

    Attributes:
        rows: the table's columns. A delete has its key, and the old attributes only where pre-images are
            kept; every other change has the whole row as it became, where the store can tell
            (`Capabilities.whole_rows`).
        ops: int8 `ChangeOp` codes, not null.
        versions: int64 commit versions, rising and equal within one commit; not null.
        timestamps: timestamp[us, UTC] of the commits; not null.
        written: for UPDATE and UPSERT, which attribute cells were set: attribute name → boolean array.
            An absent name, a null entry, or None for the whole mapping means written.
    """

    rows: pa.RecordBatch
    ops: pa.Int8Array
    versions: pa.Int64Array
    timestamps: pa.TimestampArray
    written: Mapping[str, pa.BooleanArray] | None = None

    @property
    def num_rows(self) -> int:
        return int(self.rows.num_rows)

    def slice(self, offset: int, length: int | None = None) -> Changes:
        """Return a part of the run without copying."""
        return Changes(
            self.rows.slice(offset, length),
            self.ops.slice(offset, length),
            self.versions.slice(offset, length),
            self.timestamps.slice(offset, length),
            None if self.written is None else {k: v.slice(offset, length) for k, v in self.written.items()},
        )

    def filter(self, mask: pa.BooleanArray) -> Changes:
        """Return the changes where the mask is true."""
        return Changes(
            self.rows.filter(mask),
            self.ops.filter(mask),
            self.versions.filter(mask),
            self.timestamps.filter(mask),
            None if self.written is None else {k: v.filter(mask) for k, v in self.written.items()},
        )

    def whole_pairs(self, rows: int) -> int:
        """Return where to cut the run near ``rows``: a pre-image stays with the change that follows it."""
        if self.ops[rows - 1].as_py() != ChangeOp.PREIMAGE:
            return rows
        return rows - 1 if rows > 1 else rows + 1

    def without_preimages(self) -> Changes:
        """Return the run without its PREIMAGE entries."""
        keep = pc.not_equal(self.ops, pa.scalar(int(ChangeOp.PREIMAGE), pa.int8()))
        return self if pc.all(keep, min_count=0).as_py() else self.filter(keep)


class RowChange(enum.StrEnum):
    """How a sink applies rows to a table."""

    PUT = "put"
    """Replace the row."""
    UPDATE = "update"
    """Set the cells that are not null, keep the others."""
    DELETE = "delete"
    """Remove the row; only the key is looked at."""
    REPLACE_ALL = "replace_all"
    """Make the table hold exactly these rows. Complete mode does that; users cannot name it."""

    @classmethod
    def parse(cls, text: object) -> RowChange:
        for kind in (cls.PUT, cls.UPDATE, cls.DELETE):
            if isinstance(text, str) and kind == text.lower():
                return kind
        raise OptionError("unknown kind of row change", received=repr(text)[:200], valid="put, update, delete")
