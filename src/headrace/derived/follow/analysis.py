"""What Spark says about a followed query: the columns of its parts, its names, the origins of its columns.

Spark analyses the parts over empty views with the columns of their relations.

Spark passes the metadata of a column on with each plain copy. So for the origins, each SELECT is analysed over a view
whose columns are tagged by metadata. Items that are more than a name or a star are left out of that: Spark also keeps
the metadata of the fields of a struct, and a function can return another struct than its first one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from headrace.derived.follow.relations import RelationRows, Select
from headrace.derived.follow.split import FollowedQuery
from headrace.derived.follow.static_tables import StaticTable, reading
from headrace.derived.own_names import ORDER, SIGN
from headrace.model.own_names import PREFIX
from headrace.sql_text.lexer import quote_name
from headrace.sql_text.query_text import Item, with_views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType


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
        for name, schema in self._scans.items():
            self.add(name, schema)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._created:
            self._spark.catalog.dropTempView(name)

    def add(self, scan: str, schema: StructType) -> None:
        """Create the views of a scan, or of a table with the groups of an inner query."""
        from pyspark.sql.types import ByteType, LongType, StructField, StructType

        own = [StructField(SIGN, ByteType(), nullable=False), StructField(ORDER, LongType(), nullable=False)]
        self.plain[scan] = self.view(schema)
        self.signed[scan] = self.view(StructType([*schema.fields, *own]))

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


# Spark's conditions for a name that is no column, or no field of a column.
_NOT_COLUMNS = ("UNRESOLVED_COLUMN", "FIELD_NOT_FOUND", "INVALID_EXTRACT")


class SparkNames:
    """The names in the FROM clause of one SELECT; see `headrace.derived.follow.items.Names`.

    Args:
        views: the views of the followed scans, by the names of the scans.
        with_: the WITH clause of the query; can be empty.
        from_: the FROM clause.
    """

    def __init__(self, spark: SparkSession, views: Mapping[str, str], with_: str, from_: str) -> None:
        self._spark = spark
        self._views = views
        self._with = with_
        self._from = from_
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
        query = f"{self._with} SELECT {name} AS {PREFIX}name {self._from}{clause}".lstrip()
        _ = self._spark.sql(with_views(query, self._views)).schema


Origin: TypeAlias = tuple[str, str]
"""A scan and its column."""
_TAG = "headrace.origin"


class Origins:
    """Finds the origins of the columns of a query without aggregates.

    Args:
        scans: the columns of the followed scans.
        views: creates views; its ``plain`` views are those of the scans.
    """

    def __init__(
        self, spark: SparkSession, query: FollowedQuery, scans: Mapping[str, StructType], views: EmptyViews
    ) -> None:
        self._spark = spark
        self._tokens = query.tokens
        self._with = query.tokens.render(*query.with_, [])
        self._scans = scans
        self._views = views

    def of(self, select: Select, result: StructType) -> tuple[Origin | None, ...]:
        """Return the scan and column of which each output column of a branch is a copy, or None.

        Args:
            result: the columns of the whole query. UNION ALL can change the type of a branch's column. A copy can
                have a wider type of whole numbers: different values stay different.
        """
        columns = zip(self._origins(select), self._schema(select), result, strict=True)
        return tuple(origin if _keeps(own.dataType, field.dataType) else None for origin, own, field in columns)

    def _schema(self, select: Select) -> StructType:
        return self._analysed(f"{self._with} {self._tokens.render(select.block.start, select.block.end, [])}")

    def _analysed(self, sql: str) -> StructType:
        return self._spark.sql(with_views(sql.lstrip(), self._views.plain)).schema

    def _origins(self, select: Select) -> list[Origin | None]:
        rows = select.followed
        assert rows is not None, "each SELECT of a followed query reads a scan"
        names, types, inner = self._columns(rows)
        tokens, relation = self._tokens, rows.relation
        view = quote_name(self._views.view(_tagged(names, types)))
        if relation.implied_alias is not None:
            view = f"{view} AS {quote_name(relation.implied_alias)}"
        items = ", ".join(self._plain(item) for item in select.items)
        relations = tokens.render(*select.block.source, [(relation.start, relation.end, view)])
        found = self._analysed(f"{self._with} SELECT {items} FROM {relations}")
        return [inner[int(field.metadata[_TAG])] if _TAG in field.metadata else None for field in found]

    def _plain(self, item: Item) -> str:
        """Return an item without what it computes."""
        text = self._tokens.render(item.start, item.end, []) if item.kind in ("star", "column") else "NULL"
        return text if item.alias is None else f"{text} AS {quote_name(item.alias)}"

    def _columns(self, rows: RelationRows) -> tuple[list[str], list[DataType], list[Origin | None]]:
        """Return the names, types and origins of the columns of a relation."""
        if rows.scan is not None:
            schema = self._scans[rows.scan]
            inner: list[Origin | None] = [(rows.scan, name) for name in schema.names]
        else:
            schema = self._schema(rows.query[0])
            inner = self._origins(rows.query[0])
        return list(rows.renamed or schema.names), [field.dataType for field in schema], inner


def _keeps(kind: DataType, wider: DataType) -> bool:
    """Return whether each value of a type has its own value in the type of the column of UNION ALL."""
    from pyspark.sql.types import IntegralType

    same = kind.simpleString() == wider.simpleString()
    return same or (isinstance(kind, IntegralType) and isinstance(wider, IntegralType))


def _tagged(names: list[str], types: list[DataType]) -> StructType:
    from pyspark.sql.types import StructField, StructType

    columns = enumerate(zip(names, types, strict=True))
    return StructType([StructField(name, kind, metadata={_TAG: str(place)}) for place, (name, kind) in columns])
