"""Empty views with the columns of relations, over which Spark analyses the parts of a followed query."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.derived.follow.static_tables import StaticTable, reading
from headrace.derived.own_names import ORDER, PREFIX, SIGN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class EmptyViews:
    """Creates empty temporary views in a session. As a context manager, it drops them at the end.

    Attributes:
        plain: for each followed scan the view with its columns.
        signed: for each followed scan the view that also has the sign and the order.
    """

    def __init__(self, spark: SparkSession, scans: Mapping[str, StructType]) -> None:
        self._spark = spark
        self._scans = scans
        self._created: list[str] = []
        self.plain: dict[str, str] = {}
        self.signed: dict[str, str] = {}

    def __enter__(self) -> EmptyViews:
        from pyspark.sql.types import ByteType, LongType, StructField, StructType

        own = [StructField(SIGN, ByteType(), nullable=False), StructField(ORDER, LongType(), nullable=False)]
        for name, schema in self._scans.items():
            self.plain[name] = self.view(schema)
            self.signed[name] = self.view(StructType([*schema.fields, *own]))
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._created:
            self._spark.catalog.dropTempView(name)

    def view(self, schema: StructType) -> str:
        """Create an empty view with these columns, and return its name."""
        self._created.append(f"{PREFIX}{uuid.uuid4().hex}")
        self._spark.createDataFrame([], schema).createOrReplaceTempView(self._created[-1])
        return self._created[-1]

    def without_static(self, sql: str, static: Mapping[str, StructType]) -> str:
        """Return a query that reads empty views instead of static tables.

        Args:
            static: the columns of each static table, by its name in the query.
        """
        tables: Sequence[StaticTable] = [StaticTable(name, self.view(schema), "") for name, schema in static.items()]
        return reading(sql, tables)
