"""What a statement gives."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Result:
    """What one statement gave.

    Attributes:
        statement: its text.
        columns: the names of the result's columns; none if there is no result.
        rows: the result's rows, unless they are in ``dataframe``.
        message: what was done, in one sentence.
        dataframe: the result of a query, which is read when it is asked for.
    """

    statement: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    message: str | None = None
    dataframe: DataFrame | None = None

    def fetch(self, limit: int | None = None) -> list[tuple[Any, ...]]:
        """Return the rows, at most ``limit``; a query runs now."""
        if self.dataframe is None:
            return list(self.rows[:limit])
        frame = self.dataframe if limit is None else self.dataframe.limit(limit)
        return [tuple(row) for row in frame.collect()]


def instant(seconds: float | None) -> str | None:
    """Return seconds since 1970 as ISO 8601; None stays None."""
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")
