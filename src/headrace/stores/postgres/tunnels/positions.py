"""Positions of a PostgreSQL tunnel; their tokens are opaque to other modules.

A position of the stream is an LSN and a number of rows to skip: the rows of the table whose transactions have committed
at or after the LSN. Its token is the LSN as PostgreSQL writes it, such as ``16/B374D848``. A position in base data is a
row of the chunk's spool; its token is ``row:<index>``.
"""

from __future__ import annotations

import re

from headrace.errors import OptionError
from headrace.model.tunnels.values import FINISHED, Position

_LSN = re.compile(r"([0-9A-F]{1,8})/([0-9A-F]{1,8})")
_ROW = re.compile(r"row:([0-9]{1,18})")
BASE_START = Position("row:0")
"""The position before the first row of a base channel."""


def lsn_text(lsn: int) -> str:
    """Return an LSN as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Return the LSN of a text of PostgreSQL."""
    found = _LSN.fullmatch(text)
    if found is None:
        raise OptionError("not an LSN of PostgreSQL", received=repr(text)[:200], valid="16/B374D848, for example")
    return int(found[1], 16) << 32 | int(found[2], 16)


def lsn_position(lsn: int, skip: int = 0) -> Position:
    """Return the position before the changes that are committed at or after an LSN, after ``skip`` of their rows."""
    return Position(lsn_text(lsn), skip)


def lsn_of(position: Position) -> int:
    """Return the LSN of a position of the stream, without its ``skip``."""
    if position.skip < 0 or _LSN.fullmatch(position.token) is None:
        raise _invalid_position(position)
    return parse_lsn(position.token)


def row_position(row: int) -> Position:
    """Return the position before a row of base data."""
    return Position(f"row:{row}")


def row_of(position: Position) -> int:
    """Return the index of the next row at a position of base data."""
    found = _ROW.fullmatch(position.token)
    if position.skip < 0 or found is None:
        raise _invalid_position(position)
    return int(found[1]) + position.skip


def is_after(position: Position, other: Position) -> bool:
    """Return whether a position is after another one of its channel.

    Rows to skip are compared only behind the same LSN.
    """
    if FINISHED in (position, other):
        return position == FINISHED != other
    if position.token.startswith("row:"):
        return row_of(position) > row_of(other)
    return (lsn_of(position), position.skip) > (lsn_of(other), other.skip)


def _invalid_position(position: Position) -> OptionError:
    return OptionError("a position is not one of this store's channel", received=repr(position)[:200])
