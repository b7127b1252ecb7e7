"""The result of a statement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.spark.sql_errors import errors_in_a_sentence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Result:
    """The result of one statement.

    Attributes:
        columns: the names of the result's columns; empty if the statement has no rows.
        rows: the result's rows, unless they are in ``dataframe``.
        message: the effect of the statement in one sentence.
        dataframe: the result of a query, which runs when it is fetched.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    message: str | None = None
    dataframe: DataFrame | None = None

    def fetch(self, limit: int | None = None) -> list[tuple[Any, ...]]:
        """Run the query, if there is one, and return the rows, at most ``limit``.

        Raises:
            SqlError: Spark cannot run the query.
        """
        if self.dataframe is None:
            return list(self.rows[:limit])
        with errors_in_a_sentence():
            frame = self.dataframe if limit is None else self.dataframe.limit(limit)
            return [tuple(row) for row in frame.collect()]
