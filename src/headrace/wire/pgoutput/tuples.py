"""Tuples of many messages at once: the format and the byte range of each column."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.wire.pgoutput.cells import Bytes, Integers, Mask, big_endian
from headrace.wire.pgoutput.errors import PgOutputError

NULL, UNCHANGED, TEXT, BINARY = b"nutb"
_T = TypeVar("_T", bound=np.generic)


class ImageKind:
    """The role of a row image in its change. Not an enum: numpy compares arrays with numbers faster."""

    INSERT: Final = 0
    UPDATE: Final = 1
    """The new row of an update."""
    OLD_KEY: Final = 2
    """The old key of an update; other columns are null."""
    OLD_ROW: Final = 3
    """The old row of an update."""
    DELETED_KEY: Final = 4
    DELETED_ROW: Final = 5


class Column(NamedTuple):
    """The values of a column: their format (``n``, ``u``, ``t`` or ``b``) and byte ranges."""

    kinds: npt.NDArray[np.uint8]
    starts: Integers
    lengths: Integers

    def filter(self, mask: Mask) -> Column:
        return Column(self.kinds[mask], self.starts[mask], self.lengths[mask])


class Walk(NamedTuple):
    """Tuples: their columns, and the index of the byte after each tuple."""

    columns: list[Column]
    ends: Integers


def walk(data: Bytes, at: Integers, ends: Integers, columns: int) -> Walk:
    """Find the columns of tuples that begin at ``at``, each within its message.

    Raises:
        PgOutputError: a tuple has another number of columns, or does not fit into its message.
    """
    # Each column has at least the byte of its format.
    if not (at + 2 + columns <= ends).all():
        raise PgOutputError("a row ends early", valid=f"{columns} columns")
    counts = big_endian(data, at, "u2")
    if not (counts == columns).all():
        received = int(counts[counts != columns][0])
        raise PgOutputError(
            "a row does not fit its relation", received=f"{received} columns", valid=f"{columns} columns"
        )
    at = at + 2
    found = []
    for _ in range(columns):
        if not (at < ends).all():
            raise PgOutputError("a row ends early", valid=f"{columns} columns")
        kinds = data[at]
        present = (kinds == BINARY) | (kinds == TEXT)
        if present.all():
            if not (at + 5 <= ends).all():
                raise PgOutputError("a row ends early", valid=f"{columns} columns")
            lengths = big_endian(data, at + 1, "u4").astype(np.int64)
            starts = at + 5
            at = starts + lengths
        else:
            if not (present | (kinds == NULL) | (kinds == UNCHANGED)).all():
                raise PgOutputError("a column has an unknown format", valid="n, u, t or b")
            if not ((at + 5 <= ends) | ~present).all():
                raise PgOutputError("a row ends early", valid=f"{columns} columns")
            lengths = np.where(present, big_endian(data, np.where(present, at + 1, 0), "u4"), 0).astype(np.int64)
            starts = np.where(present, at + 5, 0)
            at = np.where(present, starts + lengths, at + 1)
        if not (at <= ends).all():
            raise PgOutputError("a value is longer than its message")
        found.append(Column(kinds, starts, lengths))
    return Walk(found, at)


def check_ends(found: Integers, ends: Integers) -> None:
    if not (found == ends).all():
        raise PgOutputError("a message has bytes after its last column")


def merged(first: Column, second: Column, one: Integers, other: Integers) -> Column:
    """Return a column with the values of the first images at ``one``, and of the second ones at ``other``."""

    def both(a: npt.NDArray[_T], b: npt.NDArray[_T]) -> npt.NDArray[_T]:
        found = np.empty(len(a) + len(b), a.dtype)
        found[one], found[other] = a, b
        return found

    return Column(
        both(first.kinds, second.kinds), both(first.starts, second.starts), both(first.lengths, second.lengths)
    )


def with_old_values(column: Column, kinds: npt.NDArray[np.uint8]) -> Column:
    """Return a column whose unchanged values are those of the old row or key, if the message contains them.

    An update has its old key also if the key is stored out of line, and so is no part of the new row.
    """
    unchanged = np.flatnonzero(column.kinds == UNCHANGED)
    unchanged = unchanged[(unchanged > 0) & (kinds[unchanged] == ImageKind.UPDATE)]
    in_key = (kinds[unchanged - 1] == ImageKind.OLD_KEY) & (column.kinds[unchanged - 1] != NULL)
    unchanged = unchanged[(kinds[unchanged - 1] == ImageKind.OLD_ROW) | in_key]
    column.kinds[unchanged] = column.kinds[unchanged - 1]
    column.starts[unchanged] = column.starts[unchanged - 1]
    column.lengths[unchanged] = column.lengths[unchanged - 1]
    return column
