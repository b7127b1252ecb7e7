"""The error of a conversion, before the column and the row are known."""

from __future__ import annotations

WRONG_TYPE = "wrong type"
OUT_OF_RANGE = "out of range, or more digits than the column keeps"
INVALID_UTF8 = "not valid UTF-8"
NULL = "null in a type that is not null"


class ConversionError(Exception):
    """A value cannot be converted. The caller finds the row.

    Args:
        reason: the reason, for the message.
        path: the path inside the value: ``[]`` in an array, ``.key`` or ``.value`` in a map, ``.name`` in a struct,
            concatenated; empty for the value itself.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def inside(self, step: str) -> ConversionError:
        """Return the error with a path from the enclosing value."""
        return ConversionError(self.reason, step + self.path)
