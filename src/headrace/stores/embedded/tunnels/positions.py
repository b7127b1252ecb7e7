"""Positions of the embedded store's channels; their tokens are opaque to other modules.

A token is base64 of JSON: ``{"r": row index}`` in a change log, ``{"k": last key read}`` in base data (null at
its beginning), there also with ``"n"``, the number of rows after it, where it is known.

In the log of several tables it is ``{"v": commit version}``, with ``"s"``, the number of rows after that commit, and
``"l"``, the version up to which the reader accepts that changes are lost, if they are not 0.
"""

from __future__ import annotations

import base64
import json
from typing import NamedTuple

from headrace.errors import OptionError
from headrace.model.tables.schema import Key, TableSchema
from headrace.model.tunnels.values import FINISHED, Position
from headrace.rows.conditions import typed_key
from headrace.stores.embedded.tables.keys import key_from_json, key_to_json

_LAST_ROW = (1 << 63) - 1


class AfterVersion(NamedTuple):
    """A position in the log of several tables.

    Attributes:
        version: the version of a commit; all rows up to it are before the position.
        rows: the number of rows of the next commits that are before the position, too.
        lost: changes up to this version may be lost.
    """

    version: int
    rows: int = 0
    lost: int = 0

    def accepting(self, lost: int) -> AfterVersion:
        """Return this position, at which changes up to a version may be lost."""
        return self._replace(lost=lost if lost > self.version else 0)

    @property
    def position(self) -> Position:
        others = {name: value for name, value in (("s", self.rows), ("l", self.lost)) if value}
        return _position({"v": self.version, **others})


def row_position(row: int) -> Position:
    """Return the position before a log row."""
    return _position({"r": row})


def key_position(key: Key | None, rows: int | None = None) -> Position:
    """Return the position after a row of base data; None is the beginning.

    Args:
        rows: the number of rows after it; None if it is unknown. It does not define the position.
    """
    content: dict[str, object] = {"k": None if key is None else key_to_json(key)}
    return _position(content if rows is None else content | {"n": rows})


def position_text(position: Position) -> str:
    """Return a position for people: ``row 20000``, ``after key u1, 5``, ``start``, ``finished``."""
    if position == FINISHED:
        return position.token
    content = _decoded(position)
    if "r" in content:
        return f"row {row_of(position)}"
    if "v" in content:
        after = version_of(position)
        return f"after version {after.version}{f', {after.rows} rows later' if after.rows else ''}"
    key = key_of(position)
    place = "start" if key is None else f"after key {', '.join(map(str, key))}"
    return f"{place}, {position.skip} rows later" if position.skip else place


def rows_after(position: Position, skip: int = 0) -> int | None:
    """Return the number of rows of base data after a position and ``skip`` more rows; None if it is unknown."""
    rows = _decoded(position).get("n")
    return max(0, rows - position.skip - skip) if isinstance(rows, int) else None


def row_of(position: Position) -> int:
    """Return the log row index of the next row at a position of a stream channel."""
    row = _parsed(position, "r")
    if not isinstance(row, int) or not 0 <= row + position.skip <= _LAST_ROW:
        raise _invalid_position(position)
    return row + position.skip


def version_of(position: Position) -> AfterVersion:
    """Return a position in the log of several tables."""
    content = _decoded(position)
    version, rows, lost = _parsed(position, "v"), content.get("s", 0), content.get("l", 0)
    if not (isinstance(version, int) and isinstance(rows, int) and isinstance(lost, int)):
        raise _invalid_position(position)
    if min(version, rows + position.skip, lost) < 0 or max(version, rows + position.skip) > _LAST_ROW:
        raise _invalid_position(position)
    return AfterVersion(version, rows + position.skip, lost)


def key_of(position: Position) -> Key | None:
    """Return the last key before a position of a base channel, without its ``skip``."""
    value = _parsed(position, "k")
    if value is None:
        return None
    try:
        return key_from_json(str(value))
    except (LookupError, TypeError, ValueError):
        raise _invalid_position(position) from None


def check_key_position(position: Position, schema: TableSchema) -> None:
    """Raise an error unless a position is valid for a base channel of a table with this key."""
    key = key_of(position)
    if position.skip < 0 or (key is not None and len(typed_key(schema, key)) < len(schema.primary_key)):
        raise _invalid_position(position)


def is_after(position: Position, other: Position) -> bool:
    """Return whether a position is after another one of its channel; both have no rows to skip."""
    if FINISHED in (position, other):
        return position == FINISHED != other
    content = _decoded(position)
    if "r" in content:
        return row_of(position) > row_of(other)
    if "v" in content:
        return version_of(position)[:2] > version_of(other)[:2]
    key, other_key = key_of(position), key_of(other)
    return key is not None and (other_key is None or key > other_key)


def _position(content: dict[str, object]) -> Position:
    return Position(base64.b64encode(json.dumps(content, separators=(",", ":")).encode()).decode())


def _decoded(position: Position) -> dict[str, object]:
    try:
        content = json.loads(base64.b64decode(position.token, validate=True))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise _invalid_position(position)
    return content


def _invalid_position(position: Position) -> OptionError:
    return OptionError("a position is not one of this store's", received=repr(position))


def _parsed(position: Position, kind: str) -> object:
    content = _decoded(position)
    if kind not in content:
        raise OptionError("a position belongs to another kind of channel", received=repr(position.token))
    return content[kind]
