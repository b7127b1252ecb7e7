"""What Spark says about the names of a followed query: which are columns, and which are the same column."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from headrace.derived.follow.split import with_views
from headrace.derived.own_names import PREFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's conditions for a name that is no column, or no field of a column.
_NOT_COLUMNS = ("UNRESOLVED_COLUMN", "FIELD_NOT_FOUND", "INVALID_EXTRACT")


class SparkNames:
    """The names in the FROM clause of one SELECT; see `headrace.derived.follow.items.Names`.

    Args:
        views: the views of the followed scans, by the names of the scans.
        with_: the WITH clause of the query; can be empty.
        source: the FROM clause.
    """

    def __init__(self, spark: SparkSession, views: Mapping[str, str], with_: str, source: str) -> None:
        self._spark = spark
        self._views = views
        self._with = with_
        self._source = source
        self.is_column = cache(self._is_column)
        self.is_same = cache(self._is_same)

    def _is_column(self, name: str) -> bool:
        from pyspark.errors import AnalysisException

        try:
            self._analyse(name)
        except AnalysisException as error:
            condition = error.getCondition() or ""
            if condition.startswith(_NOT_COLUMNS):
                return False
            if not condition.startswith("AMBIGUOUS"):
                raise
        return True

    def _is_same(self, left: str, right: str) -> bool:
        # Spark compares expressions with those of GROUP BY. In one direction, a field of a column would pass.
        return self._is_grouped(left, right) and self._is_grouped(right, left)

    def _is_grouped(self, name: str, group: str) -> bool:
        from pyspark.errors import AnalysisException

        try:
            self._analyse(name, f" GROUP BY {group}")
        except AnalysisException:
            return False
        return True

    def _analyse(self, name: str, clause: str = "") -> None:
        query = f"{self._with} SELECT {name} AS {PREFIX}name {self._source}{clause}".lstrip()
        _ = self._spark.sql(with_views(query, self._views)).schema
