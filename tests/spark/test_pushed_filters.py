"""Filters that Spark hands to a table's reader: rows with `pushDownFilters` are those without it."""

from __future__ import annotations

import datetime
import decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

import headrace
from headrace.testing.effort import THOROUGH

D = decimal.Decimal
# Days around the ten that the Julian calendar lacks, of Julian and Gregorian leap years, and of today.
DAYS = [
    *("0001-01-01", "1000-02-28", "1500-03-01", "1582-10-04", "1582-10-05", "1582-10-10", "1582-10-14", "1582-10-15"),
    *("1582-10-20", "1883-11-18", "1900-01-01", "1969-12-31", "1972-06-30", "2024-02-29"),
]
CASES: dict[str, list[Any]] = {
    "date": [datetime.date.fromisoformat(day) for day in DAYS],
    "timestamp": [datetime.datetime.fromisoformat(f"{day}T12:00:00+00:00") for day in DAYS],
    "timestamp_ntz": [datetime.datetime.fromisoformat(f"{day}T12:00:00") for day in DAYS],
    "decimal(38,0)": [D("12345678901234567890123456789"), D("12345678901234567890123456790"), D(7)],
    "decimal(38,10)": [D("1234567890123456789012345678.5"), D("1234567890123456789012345678.6"), D("0.5")],
}


@pytest.mark.parametrize(("kind", "zone"), [*((kind, "UTC") for kind in CASES), ("timestamp", "America/Los_Angeles")])
def test_values_that_change_on_the_way_to_python_are_compared_by_spark(
    spark: SparkSession, tmp_path: Path, kind: str, zone: str
) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    with headrace.open(tmp_path / "shop", create=True, synchronous="off") as store:
        table = store.create_table("t", {"id": "long", "v": kind}, "id")
        values = CASES[kind]
        column = pa.array(values, table.schema.column("v").type)
        table.put(pa.table({"id": pa.array(range(len(values))), "v": column}))
    reader = spark.read.format("headrace").options(store=store.url, table="t", pushDownFilters="true")
    conditions, expected = [], []
    for number, value in enumerate(values):
        literal = _literal(kind, value)
        comparisons = [
            (f"v = {literal}", value.__eq__),
            (f"v < {literal}", value.__gt__),
            (f"v IN ({literal}, {literal})", value.__eq__),
        ]
        # Each condition is a source with processes of its own. Neighbours have the other comparisons.
        for condition, holds in comparisons if THOROUGH else [comparisons[number % len(comparisons)]]:
            expected += [(condition, index) for index, each in enumerate(values) if holds(each)]
            # A DataFrame for each condition: Spark would use the filters of the last one for all.
            conditions.append(reader.load().where(condition).select(lit(condition), "id"))
    found = [tuple(row) for row in reduce(DataFrame.union, conditions).collect()]
    assert sorted(found) == sorted(set(expected))


def _literal(kind: str, value: Any) -> str:
    if kind == "date":
        return f"DATE '{value}'"
    if kind == "timestamp":
        return f"TIMESTAMP '{value.isoformat()}'"
    if kind == "timestamp_ntz":
        return f"TIMESTAMP_NTZ '{value.isoformat()}'"
    return f"CAST('{value}' AS {kind})"
