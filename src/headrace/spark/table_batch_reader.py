"""A table as a batch source of Spark: tasks are key ranges; the store evaluates projections and filters."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from headrace.errors import SchemaError
from headrace.formats.source import TableRead
from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.schema import TableSchema
from headrace.rows.to_reader import as_type
from headrace.spark.executors import Sent, task_store
from headrace.stores.registry import StoreAddress

if TYPE_CHECKING:
    import pyarrow as pa


_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    StringStartsWith: "starts with",
}


_LAST_LOCAL_MEAN_TIME = 1972
# The precision of the context in which Spark's Python reads the digits of a decimal.
_DECIMAL_DIGITS = decimal.DefaultContext.prec


@dataclass
class _KeyRangeTask(InputPartition):
    keys: KeyRange
    store: StoreAddress


class TableReader(Sent, DataSourceReader):
    """Reads a table; each task reads a snapshot of one key range. Snapshots of several tasks may differ."""

    def __init__(self, read: TableRead, schema: StructType) -> None:
        self._read = read
        self._schema = schema
        self._predicates: list[Predicate] = []

    def partitions(self) -> Sequence[InputPartition]:
        source = self._read.source
        with source.open_store() as store:
            table = self._read.open(store)
            self._check(table.schema)
            address = source.location.store.of(store)
            return [_KeyRangeTask(keys, address) for keys in self._read.splits(table)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, _KeyRangeTask)
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        with task_store(partition.store) as store:
            table = self._read.open(store)
            schema = table.schema
            stored = [name for name in arrow.names if name in schema]
            for batch in table.scan(stored, self._predicates, keys=partition.keys):
                columns = [
                    as_type(batch.column(field.name), field)
                    if field.name in schema
                    else pa.nulls(batch.num_rows, field.type)
                    for field in arrow
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=arrow)

    def _check(self, schema: TableSchema) -> None:
        if self._read.source.format.missing_columns_are_null:
            return
        for name in self._schema.fieldNames():
            if name not in schema:
                raise SchemaError("no such column in the table", received=repr(name), valid=schema.names)


class FilteringTableReader(TableReader):
    """A `TableReader` that accepts filters. A separate class, because Spark rejects it if push-down is disabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        with self._read.source.open_store() as store:
            table = self._read.open(store)
            operators, schema = store.capabilities.predicates, table.schema
        for given in filters:
            predicate = predicate_of(given)
            if predicate is None or predicate.operator not in operators or not _can_evaluate(schema, predicate):
                yield given
            else:
                self._predicates.append(predicate)


def _can_evaluate(schema: TableSchema, predicate: Predicate) -> bool:
    """Return whether a store can evaluate a condition. Composite values cannot be compared."""
    import pyarrow as pa

    from headrace.rows.conditions import MAX_VALUES

    if predicate.column not in schema:
        return False
    if predicate.operator == "in" and len(predicate.value) > MAX_VALUES:
        return False
    only_null = predicate.operator in ("is null", "is not null")
    return only_null or not pa.types.is_nested(schema.column(predicate.column).type)


def predicate_of(given: Filter) -> Predicate | None:
    """Return the predicate that is equivalent to a filter of Spark; None if there is none."""
    found = _predicate_of(given)
    if found is None or found.value is None:
        return found
    values = found.value if found.operator == "in" else (found.value,)
    return found if all(map(_arrived_unchanged, values)) else None


def _arrived_unchanged(value: Any) -> bool:
    """Return whether a value is sure to be that of Spark's filter.

    On the way to Python, Spark converts days and times to the Julian calendar and back, which lacks ten days of 1582.
    In the years of local mean times, a time zone can shift them, too. Decimals are rounded to 28 digits.
    """
    if isinstance(value, datetime.date):
        return value.year > _LAST_LOCAL_MEAN_TIME
    if isinstance(value, decimal.Decimal):
        return len(value.as_tuple().digits) < _DECIMAL_DIGITS
    return True


def _predicate_of(given: Filter) -> Predicate | None:
    attribute: Any = getattr(given, "attribute", None)
    if isinstance(given, Not):
        child = given.child
        if isinstance(child, EqualTo) and len(child.attribute) == 1 and child.value is not None:
            return Predicate(child.attribute[0], "!=", child.value)
        return None
    if attribute is None or len(attribute) != 1:
        return None
    name = attribute[0]
    if isinstance(given, IsNull):
        return Predicate(name, "is null")
    if isinstance(given, IsNotNull):
        return Predicate(name, "is not null")
    value: Any = getattr(given, "value", None)
    if isinstance(given, EqualNullSafe):
        return Predicate(name, "is null") if value is None else Predicate(name, "=", value)
    if isinstance(given, In):
        values = tuple(item for item in value if item is not None)
        return Predicate(name, "in", values)
    operator = _COMPARISONS.get(type(given))
    return None if operator is None or value is None else Predicate(name, operator, value)
