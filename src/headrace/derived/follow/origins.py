"""Which columns of a query's result are plain copies of columns of its followed scan, as Spark sees it.

Spark passes the metadata of a column on with each plain copy. So each SELECT is analysed over a view whose columns are
tagged by metadata. Items that are more than a name or a star are left out of that: Spark also keeps the metadata of the
fields of a struct, and a function can return another struct than its first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from headrace.derived.follow.empty_views import EmptyViews
from headrace.derived.follow.shape import Item, Select, Source
from headrace.derived.follow.split import FollowedQuery, with_views
from headrace.sql_text.lexer import quote_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

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
            result: the columns of the whole query. UNION ALL can change the type of a branch's column.
        """
        types = [field.dataType.simpleString() for field in self._schema(select)]
        return tuple(
            origin if data_type == field.dataType.simpleString() else None
            for origin, data_type, field in zip(self._origins(select), types, result, strict=True)
        )

    def _schema(self, select: Select) -> StructType:
        return self._analysed(f"{self._with} {self._tokens.render(select.start, select.end, [])}")

    def _analysed(self, sql: str) -> StructType:
        return self._spark.sql(with_views(sql.lstrip(), self._views.plain)).schema

    def _origins(self, select: Select) -> list[Origin | None]:
        source = select.followed
        assert source is not None, "each SELECT of a followed query reads a scan"
        names, types, inner = self._columns(source)
        tokens = self._tokens
        view = quote_name(self._views.view(_tagged(names, types)))
        if source.alias is not None:
            view = f"{view} AS {quote_name(source.alias)}"
        items = ", ".join(self._plain(item) for item in select.items)
        relations = tokens.render(*select.source, [(*source.span, view)])
        found = self._analysed(f"{self._with} SELECT {items} FROM {relations}")
        return [inner[int(field.metadata[_TAG])] if _TAG in field.metadata else None for field in found]

    def _plain(self, item: Item) -> str:
        """Return an item without what it computes."""
        text = self._tokens.render(item.start, item.end, []) if item.kind in ("star", "column") else "NULL"
        return text if item.alias is None else f"{text} AS {quote_name(item.alias)}"

    def _columns(self, source: Source) -> tuple[list[str], list[DataType], list[Origin | None]]:
        """Return the names, types and origins of the columns of a relation."""
        if source.scan is not None:
            schema = self._scans[source.scan]
            inner: list[Origin | None] = [(source.scan, name) for name in schema.names]
        else:
            schema = self._schema(source.query[0])
            inner = self._origins(source.query[0])
        return list(source.renamed or schema.names), [field.dataType for field in schema], inner


def _tagged(names: list[str], types: list[DataType]) -> StructType:
    from pyspark.sql.types import StructField, StructType

    columns = enumerate(zip(names, types, strict=True))
    return StructType([StructField(name, kind, metadata={_TAG: str(place)}) for place, (name, kind) in columns])
