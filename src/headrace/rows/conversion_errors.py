"""Why a value does not fit its column: the message between what converts and what tells the caller."""

from __future__ import annotations

WRONG_TYPE = "wrong type"
OUT_OF_RANGE = "out of range, or more digits than the column keeps"
INVALID_UTF8 = "not valid UTF-8"
NULL = "null where the type says not null"


class ConversionError(Exception):
    """Some value does not fit; in which row, is found out by the caller.

    Args:
        reason: what is wrong with it.
        path: where it is inside of its column: ``[]`` in an array, ``.key`` or ``.value`` in a map, ``.name`` in a
            struct, one behind the other; empty for the column's own value.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def inside(self, step: str) -> ConversionError:
        """Return the same for the column around the value, one step further out."""
        return ConversionError(self.reason, step + self.path)
