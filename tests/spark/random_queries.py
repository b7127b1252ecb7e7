"""Random queries over followed tables, and their results by DuckDB over the current rows.

Sums and averages are computed from DuckDB's lists of values with fractions, so they are exact and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa
from hypothesis import strategies as st

COLUMNS = {
    "region": "string", "id": "long", "l": "long", "i": "int", "s": "string", "d": "double", "m": "decimal(10,2)",
    "b": "boolean", "happened": "timestamp", "day": "date",
}  # fmt: skip
TABLES = ("orders", "visits")
DIMENSIONS = [("a", "north"), ("b", "south"), ("b", "west")]
_ARROW = pa.schema(
    [
        ("region", pa.string()), ("id", pa.int64()), ("l", pa.int64()), ("i", pa.int32()), ("s", pa.string()),
        ("d", pa.float64()), ("m", pa.decimal128(10, 2)), ("b", pa.bool_()), ("happened", pa.timestamp("us")),
        ("day", pa.date32()),
    ]
)  # fmt: skip
Row: TypeAlias = dict[str, Any]
Reduction: TypeAlias = tuple[str, str]
"""How a list of values becomes a result: ``sum`` or ``avg``, and the type of the result."""


@dataclass(frozen=True)
class RandomQuery:
    """A query, and what it needs.

    Attributes:
        sql: the query for Spark, over tables of `TABLES` and the view ``dimensions``.
        duck: the query for DuckDB.
        columns: the columns of the target.
        key: its primary key.
        reductions: the columns that DuckDB gives as lists.
    """

    sql: str
    duck: str
    columns: Mapping[str, str]
    key: tuple[str, ...]
    reductions: Mapping[str, Reduction] = field(default_factory=dict)

    @property
    def tables(self) -> list[str]:
        return [name for name in TABLES if name in self.sql]

    def expected(self, tables: Mapping[str, Sequence[Row]]) -> list[tuple[Any, ...]]:
        """Return the result over the current rows, sorted, in the form of `comparable`."""
        with duckdb.connect() as duck:
            for name, rows in tables.items():
                naive = [{**row, "happened": row["happened"] and row["happened"].replace(tzinfo=None)} for row in rows]
                duck.register(name, pa.Table.from_pylist(naive, _ARROW))
            duck.execute("CREATE TABLE dimensions (code VARCHAR, zone VARCHAR)")
            duck.executemany("INSERT INTO dimensions VALUES (?, ?)", DIMENSIONS)
            found = duck.execute(self.duck).fetchall()
        results = [dict(zip(self.columns, row, strict=True)) for row in found]
        for row in results:
            for name, (function, data_type) in self.reductions.items():
                row[name] = reduced(row[name], function, data_type)
        return comparable(results)


def comparable(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Return rows, sorted, with one form for each value that Spark takes for the same."""

    def same(value: Any) -> Any:
        if isinstance(value, float):
            return "NaN" if math.isnan(value) else value + 0.0
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC)
        return value

    return sorted((tuple(same(value) for value in row.values()) for row in rows), key=repr)


def reduced(values: Sequence[Any] | None, function: str, data_type: str) -> Any:
    """Return the exact sum or average of values, rounded once."""
    present = [value for value in values or () if value is not None]
    if not present:
        return None
    special = [value for value in present if isinstance(value, float) and not math.isfinite(value)]
    if special:
        return sum(special)
    total = sum(map(Fraction, present), Fraction(0)) / (len(present) if function == "avg" else 1)
    if data_type == "long":
        return int(total)
    if data_type == "double":
        return float(total)
    places = int(data_type.rstrip(")").rpartition(",")[2])
    with localcontext(prec=60):
        return (Decimal(total.numerator) / Decimal(total.denominator)).quantize(
            Decimal(1).scaleb(-places), ROUND_HALF_UP
        )


# -- the parts of queries -----------------------------------------------------------------------------------

# Expressions with their types: each is valid in Spark and in DuckDB.
_EXPRESSIONS = [
    ("l", "long"), ("i", "int"), ("s", "string"), ("d", "double"), ("m", "decimal(10,2)"), ("b", "boolean"),
    ("happened", "timestamp"), ("day", "date"), ("l + id", "long"), ("CASE WHEN b THEN l END", "long"),
    ("coalesce(s, region)", "string"), ("s || '/' || region", "string"), ("d * 2", "double"),
    ("l IS NULL", "boolean"), ("upper(s)", "string"), ("nullif(l, 1)", "long"),
]  # fmt: skip
_CONDITIONS = [
    "l > 0", "s <> 'b'", "b", "NOT b", "d > 0.5", "m < 3", "s IS NULL OR l >= -1", "day >= DATE '2026-01-03'",
    "s IN ('a', 'b') AND id < 5", "coalesce(b, id > 3)",
]  # fmt: skip
_HAVING = ["count(*) > 1", "max(l) > 0", "sum(m) > 3", "count(DISTINCT s) < 2", "count(d) = count(*) OR min(i) < 0"]
# Group expressions for Spark and for DuckDB, with their types.
_GROUPS = [
    ("region", "region", "string"),
    ("coalesce(s, '')", "coalesce(s, '')", "string"),
    ("coalesce(l, 0) % 3", "coalesce(l, 0) % 3", "long"),
    ("repeat(region, 600)", "repeat(region, 600)", "string"),
    ("coalesce(CAST(day AS STRING), 'never')", "coalesce(CAST(day AS VARCHAR), 'never')", "string"),
]
_TUMBLING = (
    "unix_micros(window(happened, '4 minutes').start)",
    "epoch_us(time_bucket(INTERVAL 4 minutes, happened))",
    "long",
)
_HOPPING = ("unix_micros(window(happened, '10 minutes', '5 minutes').start)", "hop", "long")
_HOPS = """(SELECT *, unnest([epoch_us(time_bucket(INTERVAL 5 minutes, happened)),
    epoch_us(time_bucket(INTERVAL 5 minutes, happened)) - 300000000]) AS hop FROM orders WHERE happened IS NOT NULL)"""
_NUMBERS = {
    "l": ("long", "double"), "i": ("long", "double"), "d": ("double", "double"),
    "m": ("decimal(20,2)", "decimal(14,6)"), "CASE WHEN b THEN l END": ("long", "double"),
}  # fmt: skip


def _where(condition: str | None) -> str:
    return "" if condition is None else f" WHERE {condition}"


conditions = st.none() | st.sampled_from(_CONDITIONS)
expressions = st.lists(st.sampled_from(_EXPRESSIONS), min_size=1, max_size=4)


@st.composite
def row_queries(draw: st.DrawFn, key: tuple[str, ...]) -> RandomQuery:
    """Return a query without aggregates over tables with a primary key."""
    chosen = draw(expressions)
    columns = {name: COLUMNS[name] for name in key}
    columns |= {f"x{number}": data_type for number, (_, data_type) in enumerate(chosen)}
    items = ", ".join([*key, *(f"{text} AS x{number}" for number, (text, _) in enumerate(chosen))])
    source = draw(st.sampled_from(["table", "table", "join", "left join", "union"]))
    if source == "table":
        sql = f"SELECT {items} FROM orders{_where(draw(conditions))}"
    elif source == "union":
        branches = [f"SELECT '{name}' AS origin, {items} FROM {name}{_where(draw(conditions))}" for name in TABLES]
        sql = " UNION ALL ".join(branches)
        columns, key = {"origin": "string", **columns}, ("origin", *key)
    else:
        zone = "coalesce(zone, 'none') AS zone"
        sql = f"SELECT {zone}, {items} FROM orders {source} dimensions ON s = code{_where(draw(conditions))}"
        columns, key = {"zone": "string", **columns}, ("zone", *key)
    return RandomQuery(sql, sql, columns, key)


@st.composite
def aggregate_queries(draw: st.DrawFn) -> RandomQuery:
    """Return a query with GROUP BY, or with aggregates of all rows."""
    groups = draw(st.lists(st.sampled_from(_GROUPS), max_size=2, unique=True))
    source = draw(st.sampled_from(["table", "table", "table", "join", "union", "tumbling", "hopping"]))
    condition, duck_source = draw(conditions), "orders"
    if source == "join":
        duck_source = "orders JOIN dimensions ON s = code"
        groups.append(("zone", "zone", "string"))
    elif source == "union":
        names = ", ".join(COLUMNS)
        duck_source = f"(SELECT {names} FROM orders UNION ALL SELECT {names} FROM visits) AS both_tables"
    spark_source, duck_condition = duck_source, condition
    if source == "tumbling":
        groups.append(_TUMBLING)
        # A row without a time is in no window.
        duck_condition = "happened IS NOT NULL" if condition is None else f"({condition}) AND happened IS NOT NULL"
    elif source == "hopping":
        groups.append(_HOPPING)
        duck_source = _HOPS
    if not groups:
        groups.append(("'all'", "'all'", "string"))
    columns: dict[str, str] = {}
    spark_items: list[str] = []
    duck_items: list[str] = []
    for number, (spark, duck, data_type) in enumerate(groups):
        columns[f"k{number}"] = data_type
        spark_items.append(f"{spark} AS k{number}")
        duck_items.append(f"{duck} AS k{number}")
    key = tuple(columns)
    reductions: dict[str, Reduction] = {}
    for number in range(draw(st.integers(1, 5))):
        name = f"x{number}"
        spark, duck, columns[name], reduction = draw(_aggregates())
        if reduction is not None:
            reductions[name] = reduction
        spark_items.append(f"{spark} AS {name}")
        duck_items.append(f"{duck} AS {name}")
    having = draw(st.none() | st.sampled_from(_HAVING))

    def text(items: Sequence[str], source: str, condition: str | None, by: Sequence[str]) -> str:
        grouped = "" if by == ["'all'"] else f" GROUP BY {', '.join(by)}"
        kept = "" if having is None else f" HAVING {having}"
        return f"SELECT {', '.join(items)} FROM {source}{_where(condition)}{grouped}{kept}"

    return RandomQuery(
        text(spark_items, spark_source, condition, [spark for spark, _, _ in groups]),
        text(duck_items, duck_source, duck_condition, [duck for _, duck, _ in groups]),
        columns,
        key,
        reductions,
    )


@st.composite
def _aggregates(draw: st.DrawFn) -> tuple[str, str, str, Reduction | None]:
    """Return an aggregate for Spark, for DuckDB, its type, and how DuckDB's list is reduced."""
    kind = draw(st.sampled_from(["count", "sum", "avg", "min", "max", "distinct", "pairs", "rows", "mixed"]))
    condition = draw(st.none() | st.none() | st.sampled_from(_CONDITIONS))
    filtered = "" if condition is None else f" FILTER (WHERE {condition})"
    if kind == "rows":
        return f"count(*){filtered}", f"count(*){filtered}", "long", None
    if kind == "mixed":
        text = f"count(*) * 2 + coalesce(max(l){filtered}, 0)"
        return text, text, "long", None
    if kind == "pairs":
        both = "l IS NOT NULL AND s IS NOT NULL" + ("" if condition is None else f" AND ({condition})")
        return f"count(DISTINCT l, s){filtered}", f"count(DISTINCT (l, s)) FILTER (WHERE {both})", "long", None
    if kind in ("sum", "avg"):
        argument = draw(st.sampled_from(list(_NUMBERS)))
        data_type = _NUMBERS[argument][kind == "avg"]
        return f"{kind}({argument}){filtered}", f"list({argument}){filtered}", data_type, (kind, data_type)
    argument, data_type = draw(st.sampled_from(_EXPRESSIONS))
    if kind == "distinct":
        return f"count(DISTINCT {argument}){filtered}", f"count(DISTINCT {argument}){filtered}", "long", None
    text = f"{kind}({argument}){filtered}"
    return text, text, "long" if kind == "count" else data_type, None
