"""The values of PlainBuffer: rows and cells, and the codes of their parts on the wire.

A row has a key, whose cells have only values; attribute cells; optionally a mark that deletes the whole row; and, in
the record of a change, the position in the order of changes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, cast

from headrace.errors import HeadraceError
from headrace.model.tables.schema import Key

HEADER: Final = (0x75).to_bytes(4, "little")


class Tag:
    """The byte before each part of a row. Not an enum: numpy compares arrays with numbers several times faster."""

    KEY: Final = 0x01
    ATTRIBUTES: Final = 0x02
    CELL: Final = 0x03
    CELL_NAME: Final = 0x04
    CELL_VALUE: Final = 0x05
    CELL_OP: Final = 0x06
    CELL_TIMESTAMP: Final = 0x07
    DELETE_ROW: Final = 0x08
    ROW_CHECKSUM: Final = 0x09
    CELL_CHECKSUM: Final = 0x0A
    EXTENSION: Final = 0x0B
    SEQUENCE: Final = 0x0C
    SEQUENCE_EPOCH: Final = 0x0D
    SEQUENCE_TIMESTAMP: Final = 0x0E
    SEQUENCE_INDEX: Final = 0x0F


class ValueType:
    """The first byte of a value."""

    INTEGER: Final = 0x00
    DOUBLE: Final = 0x01
    BOOLEAN: Final = 0x02
    STRING: Final = 0x03
    NULL: Final = 0x06
    BINARY: Final = 0x07
    INF_MIN: Final = 0x09
    INF_MAX: Final = 0x0A
    AUTO_INCREMENT: Final = 0x0B


FIXED_LENGTHS: Final[Mapping[int, int]] = {
    ValueType.INTEGER: 9,
    ValueType.DOUBLE: 9,
    ValueType.BOOLEAN: 2,
    ValueType.NULL: 1,
    ValueType.INF_MIN: 1,
    ValueType.INF_MAX: 1,
    ValueType.AUTO_INCREMENT: 1,
}
"""The length of a value including its type byte, for all types except texts."""


class Marker(enum.Enum):
    """A substitute for a value in a key: an infinite bound of a range, or a number for the server to assign."""

    INF_MIN = "INF_MIN"
    INF_MAX = "INF_MAX"
    AUTO_INCREMENT = "AUTO_INCREMENT"


Value: TypeAlias = int | float | bool | str | bytes | Marker | None
KeyValues: TypeAlias = tuple[str | int | bytes, ...]
"""The value of a cell. The Python type determines the type on the wire: True is a BOOLEAN, never the INTEGER 1."""


class CellOp(enum.IntEnum):
    """The operation of a cell in an update that does not set a value."""

    DELETE_ALL = 1
    """Remove all versions of the cell."""
    DELETE_ONE = 3
    """Remove the version of the cell's timestamp."""
    INCREMENT = 4
    """Add the value to the present one."""


class CellKind(enum.IntEnum):
    """The content of a decoded row for one attribute."""

    ABSENT = 0
    PUT = 1
    DELETE_ONE = 2
    DELETE_ALL = 3
    MISFIT = 4
    """Put, with a value that does not fit the column."""


@dataclass(frozen=True, slots=True)
class Cell:
    """An attribute cell; ``timestamp`` is in milliseconds."""

    name: str
    value: Value = None
    op: CellOp | None = None
    timestamp: int | None = None


class SequenceInfo(NamedTuple):
    """The position of a change. Changes have the order of these tuples.

    ``timestamp`` is in microseconds; ``index`` is the position among the changes of the same timestamp.
    """

    epoch: int
    timestamp: int
    index: int  # type: ignore[assignment]  # tuple has a method of that name


@dataclass(frozen=True, slots=True)
class Row:
    """A row, or a change of one. ``key`` is ``((name, value), …)`` in key order; ``delete`` removes the row."""

    key: tuple[tuple[str, Value], ...]
    cells: tuple[Cell, ...] = ()
    delete: bool = False
    sequence: SequenceInfo | None = None


class PlainBufferError(HeadraceError):
    """Bytes that are not PlainBuffer, or a value that PlainBuffer cannot hold."""


def values_of_key(key: Key) -> KeyValues:
    """Return the values of a key. Tables of Tablestore have no other types."""
    return cast(KeyValues, key)
