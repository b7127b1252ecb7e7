"""Images of a table, which the messages of a slot have, as changes. No I/O.

A new row is an INSERT or a REPLACE, and always whole. With REPLICA IDENTITY FULL, the old row precedes a REPLACE as a
PREIMAGE. A change of the key is the delete of one row and the insert of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UnsupportedError
from headrace.model.tables.changes import ChangeOp, Changes, old_rows_remedy
from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.masks import Masked
from headrace.stores.postgres.tunnels.snapshots import Snapshots
from headrace.stores.postgres.unrepresentable import ShownAsNull
from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.cells import Mask
from headrace.wire.pgoutput.errors import UnfitValueError, of_key
from headrace.wire.pgoutput.messages import ImageKind, Images, Truncation
from headrace.wire.pgoutput.text_values import from_texts

Ops: TypeAlias = npt.NDArray[np.int8]

_OPS = np.zeros(6, np.int8)
_OPS[ImageKind.INSERT], _OPS[ImageKind.UPDATE] = ChangeOp.INSERT, ChangeOp.REPLACE
_OPS[ImageKind.OLD_KEY], _OPS[ImageKind.OLD_ROW] = ChangeOp.DELETE, ChangeOp.PREIMAGE
_OPS[ImageKind.DELETED_KEY], _OPS[ImageKind.DELETED_ROW] = ChangeOp.DELETE, ChangeOp.DELETE_WITH_ROW


class OldValue(NamedTuple):
    """The text of a value of a type, for rows that are older than their column."""

    text: str
    oid: int


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table as it is now.

    Attributes:
        name: the name of the table.
        schema: its columns in headrace.
        base_types: the oids of types that are domains or enums → the oid of the type with the same format.
        shown_as_null: the columns whose unrepresentable values are null → what receives their number.
        missing: the values of columns in rows that are older than they; null if a column is not among them.
        masked: the masked columns.
        mask_key: the key of hashes.
    """

    name: str
    schema: TableSchema
    base_types: Mapping[int, int]
    shown_as_null: Mapping[str, ShownAsNull] = field(default_factory=dict)
    missing: Mapping[str, OldValue] = field(default_factory=dict)
    masked: Mapping[str, Masked] = field(default_factory=dict)
    mask_key: bytes = b""

    def hidden(self, name: str, values: Callable[[pa.DataType], pa.Array], rows: int) -> pa.Array:
        """Return the masked values of a column; ``values`` returns the values in a type, if the mask needs them."""
        mask, data_type = self.masked[name]
        return mask.applied(values(data_type), self.mask_key) if mask.reads else mask.repeated(name, rows, data_type)

    def older(self, name: str, rows: int) -> pa.Array:
        """Return the values of a column in rows that are older than it."""
        if name in self.masked:
            # A default that a mask would be made of is not recorded.
            return self.hidden(name, lambda data_type: pa.nulls(rows, data_type), rows)
        data_type, value = self.schema.changes.field(name).type, self.missing.get(name)
        if value is None:
            return pa.nulls(rows, data_type)
        texts = pa.array([value.text])
        old = _widened(lambda kind, oid: from_texts(texts, oid, kind, name), value.oid, data_type)
        return pa.repeat(old[0], rows)


@dataclass(frozen=True)
class TableImages:
    """Images of a table, and where they have its columns.

    Attributes:
        places: the names of columns of the table now → their places in the images; a newer column has none.
        problem: why the images are no rows of the table now; None if they are.
    """

    images: Images
    table: TableColumns
    places: Mapping[str, int]
    problem: str | None = None

    def filter(self, mask: Mask) -> TableImages:
        """Return the images where the mask is true."""
        return replace(self, images=self.images.filter(mask))

    def columns(self, names: Sequence[str]) -> list[pa.Array]:
        """Return columns of the images by their names in the table now."""
        columns = []
        for name in names:
            try:
                columns.append(self._column(name))
            except UnfitValueError as error:
                raise (of_key(error, name) if name in self.table.schema.primary_key else error) from None
        return columns

    def _column(self, name: str) -> pa.Array:
        images, table = self.images, self.table
        if name not in self.places:
            return table.older(name, len(images))
        place = self.places[name]
        oid = images.relation.columns[place].type
        base = table.base_types.get(oid, oid)
        decoded = partial(_widened, partial(images.column, place, report=table.shown_as_null.get(name)), base)
        if name in table.masked:
            return _without_keys(table.hidden(name, decoded, len(images)), images.kinds)
        return decoded(table.schema.changes.field(name).type)

    def check_unchanged(self) -> None:
        """Check that updates contain all their values.

        PostgreSQL does not log a value that it stores out of line (about 2 kB and more) if an update does not change
        it.

        Raises:
            UnsupportedError: a value is missing.
        """
        images, table = self.images, self.table
        for name, place in self.places.items():
            unchanged = images.unchanged(place)
            hidden = name in table.masked and not table.masked[name].mask.reads
            if unchanged is not None and name in table.schema and not hidden:
                first = int(np.flatnonzero(unchanged)[0])
                raise UnsupportedError(
                    f"an update of table {table.name!r} does not contain the unchanged large value of column {name!r}",
                    received=f"{int(unchanged.sum())} such rows, the first in commit version {int(images.lsns[first])}",
                    remedy=old_rows_remedy(table.name),
                )

    def with_operations(self, snapshots: Snapshots | None) -> tuple[TableImages, Ops]:
        """Return the images that are changes, and the operation of each; see `changes`."""
        images = self.images
        if snapshots is None and not _is_old(images.kinds).any():
            return self, _OPS[images.kinds]
        # Base data can contain one of the two rows of a change of the key, so operations are found before it is left
        # out.
        keys = self.columns(self.table.schema.primary_key)
        ops, keep = _ops(images, keys)
        if snapshots is not None and len(images):
            keep &= ~snapshots.see(images, keys)
        return (self, ops) if keep.all() else (self.filter(keep), ops[keep])

    def as_changes(self, schema: TableSchema, ops: Ops) -> Changes:
        """Return images that are changes, with the columns of their table.

        Raises:
            UnsupportedError: an update has no value for a cell, see `check_unchanged`.
        """
        self.check_unchanged()
        return self.with_rows(pa.RecordBatch.from_arrays(self.columns(schema.names), schema=schema.changes), ops)

    def with_rows(self, rows: pa.RecordBatch, ops: Ops) -> Changes:
        """Return the changes that have some rows."""
        images = self.images
        return Changes(
            rows,
            pa.array(ops),
            pa.array(images.lsns),
            pa.array(images.times).view(pa.timestamp("us", tz="UTC")),
            transactions=pa.array(images.xids),
        )


def truncation_entry(truncation: Truncation, row: pa.RecordBatch) -> Changes:
    """Return a TRUNCATE as an entry of the changes, which has a row."""
    lsn, time, xid = truncation.transaction
    times = pa.array([time], pa.int64()).view(pa.timestamp("us", tz="UTC"))
    ops = pa.array([ChangeOp.TRUNCATE], pa.int8())
    return Changes(row, ops, pa.array([lsn], pa.int64()), times, transactions=pa.array([xid], pa.int64()))


def nulls(schema: TableSchema) -> pa.RecordBatch:
    """Return a row whose columns are null."""
    return pa.RecordBatch.from_arrays([pa.nulls(1, each.type) for each in schema.changes], schema=schema.changes)


def changes(
    pieces: Sequence[TableImages],
    schema: TableSchema,
    as_changes: Callable[[TableImages, Ops], Changes],
    row_of: Callable[[Truncation], pa.RecordBatch],
    snapshots: Snapshots | None,
    truncations: Sequence[Truncation],
) -> Changes:
    """Return the changes of images in the order of the log.

    Args:
        schema: the columns of the changes.
        as_changes: returns images with their operations as changes with these columns.
        row_of: returns the row of a TRUNCATE.
        snapshots: those of base data, which already contains the changes that they see; None for none.
        truncations: those of the tables.

    Raises:
        UnsupportedError: an update has no value for a cell, see `TableImages.check_unchanged`.
    """
    parts, messages = [], []
    for piece in pieces:
        part, ops = piece.with_operations(snapshots)
        if len(ops):
            parts.append(as_changes(part, ops))
            messages.append(part.images.messages)
    parts += [truncation_entry(each, row_of(each)) for each in truncations]
    joined = Changes.joined(parts or [Changes.none(schema)])
    if len(parts) < 2 or not (truncations or len({each.images.relation.oid for each in pieces}) > 1):
        return joined
    # An old row and its new one have the same message.
    order = np.argsort(np.concatenate([*messages, *([each.message] for each in truncations)]), kind="stable")
    return joined.take(pa.array(order))


def _is_old(kinds: npt.NDArray[np.uint8]) -> Mask:
    return np.asarray((kinds == ImageKind.OLD_ROW) | (kinds == ImageKind.OLD_KEY))


def _without_keys(values: pa.Array, kinds: npt.NDArray[np.uint8]) -> pa.Array:
    """Return values of a column beside the key: images of a key have none."""
    keys = (kinds == ImageKind.OLD_KEY) | (kinds == ImageKind.DELETED_KEY)
    return pc.if_else(pa.array(keys), pa.scalar(None, values.type), values) if keys.any() else values


def _ops(images: Images, keys: Sequence[pa.Array]) -> tuple[Ops, Mask]:
    """Return the operation of each image, and which images are changes."""
    kinds = images.kinds
    ops, keep = _OPS[kinds], np.ones(len(kinds), np.bool_)
    old = np.flatnonzero(_is_old(kinds))
    if len(old) == 0:
        return ops, keep
    # The new row follows its old one.
    moved = np.zeros(len(old), np.bool_)
    for key in keys:
        before, after = key.take(pa.array(old)), key.take(pa.array(old + 1))
        moved |= ~pc.fill_null(pc.equal(before, after), False).to_numpy(zero_copy_only=False)
    whole = kinds[old] == ImageKind.OLD_ROW
    ops[old[moved & whole]] = ChangeOp.DELETE_WITH_ROW
    ops[old[moved] + 1] = ChangeOp.INSERT
    # A unique index that identifies rows has changed, and not the key.
    keep[old[~moved & ~whole]] = False
    return ops, keep


def _widened(decoded: Callable[[pa.DataType, int], pa.Array], oid: int, data_type: pa.DataType) -> pa.Array:
    """Return values of a type of PostgreSQL as a type that can be wider: the text of a ``real`` is no ``double``."""
    if oid == types.FLOAT4 and data_type == pa.float64():
        return decoded(pa.float32(), oid).cast(data_type)
    return decoded(data_type, oid)
