"""Batch reads that evaluate filters in the store. Spark has them since 4.1: see `headrace.spark.versions`."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from headrace.model.tables.conditions import Predicate
from headrace.spark.batch_reader import BatchReader

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


class FilteringBatchReader(BatchReader):
    """A `BatchReader` that accepts filters. A separate class, because Spark rejects it if push-down is disabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        with self._source.open_store() as store:
            evaluates = self._source.batch(store).evaluates(store)
        for given in filters:
            predicate = predicate_of(given)
            if predicate is None or not evaluates(predicate):
                yield given
            else:
                self._predicates.append(predicate)


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
