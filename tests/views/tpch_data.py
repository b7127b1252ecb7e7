"""The tables of TPC-H with random rows, the same for the same scale and seed.

Sizes, keys, types and the ranges of values are those of the specification's population. Up to scale 0.02 the words are
few, the parameters of the 22 queries among them, so that each query has an answer that is not empty; above, they are
the specification's words. Comments are shorter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.views.tables import TableDefinition

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
_MONEY = "decimal(15,2)"
FEW_WORDS = 0.02
# Names of rows are keys of targets, so each row has its own.
TABLES: Mapping[str, TableDefinition] = {
    "region": TableDefinition(
        {"r_regionkey": "long", "r_name": "string", "r_comment": "string"},
        ("r_regionkey",), fixed=frozenset({"r_name"}),
    ),
    "nation": TableDefinition(
        {"n_nationkey": "long", "n_name": "string", "n_regionkey": "long", "n_comment": "string"},
        ("n_nationkey",), {"n_regionkey": "region"}, frozenset({"n_name"}),
    ),
    "supplier": TableDefinition(
        {
            "s_suppkey": "long", "s_name": "string", "s_address": "string", "s_nationkey": "long", "s_phone": "string",
            "s_acctbal": _MONEY, "s_comment": "string",
        },
        ("s_suppkey",), {"s_nationkey": "nation"}, frozenset({"s_name"}),
    ),
    "customer": TableDefinition(
        {
            "c_custkey": "long", "c_name": "string", "c_address": "string", "c_nationkey": "long", "c_phone": "string",
            "c_acctbal": _MONEY, "c_mktsegment": "string", "c_comment": "string",
        },
        ("c_custkey",), {"c_nationkey": "nation"}, frozenset({"c_name"}),
    ),
    "part": TableDefinition(
        {
            "p_partkey": "long", "p_name": "string", "p_mfgr": "string", "p_brand": "string", "p_type": "string",
            "p_size": "int", "p_container": "string", "p_retailprice": _MONEY, "p_comment": "string",
        },
        ("p_partkey",),
    ),
    "partsupp": TableDefinition(
        {
            "ps_partkey": "long", "ps_suppkey": "long", "ps_availqty": "int", "ps_supplycost": _MONEY,
            "ps_comment": "string",
        },
        ("ps_partkey", "ps_suppkey"), {"ps_partkey": "part", "ps_suppkey": "supplier"},
    ),
    "orders": TableDefinition(
        {
            "o_orderkey": "long", "o_custkey": "long", "o_orderstatus": "string", "o_totalprice": _MONEY,
            "o_orderdate": "date", "o_orderpriority": "string", "o_clerk": "string", "o_shippriority": "int",
            "o_comment": "string",
        },
        ("o_orderkey",), {"o_custkey": "customer"},
    ),
    "lineitem": TableDefinition(
        {
            "l_orderkey": "long", "l_linenumber": "int", "l_partkey": "long", "l_suppkey": "long", "l_quantity": _MONEY,
            "l_extendedprice": _MONEY, "l_discount": _MONEY, "l_tax": _MONEY, "l_returnflag": "string",
            "l_linestatus": "string", "l_shipdate": "date", "l_commitdate": "date", "l_receiptdate": "date",
            "l_shipinstruct": "string", "l_shipmode": "string", "l_comment": "string",
        },
        ("l_orderkey", "l_linenumber"),
        {"l_orderkey": "orders", "l_partkey": "part", "l_suppkey": "supplier"},
    ),
}  # fmt: skip
_REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
_NATIONS = (
    ("ALGERIA", 0), ("ARGENTINA", 1), ("BRAZIL", 1), ("CANADA", 1), ("EGYPT", 4), ("ETHIOPIA", 0), ("FRANCE", 3),
    ("GERMANY", 3), ("INDIA", 2), ("INDONESIA", 2), ("IRAN", 4), ("IRAQ", 4), ("JAPAN", 2), ("JORDAN", 4),
    ("KENYA", 0), ("MOROCCO", 0), ("MOZAMBIQUE", 0), ("PERU", 1), ("CHINA", 2), ("ROMANIA", 3), ("SAUDI ARABIA", 4),
    ("VIETNAM", 2), ("RUSSIA", 3), ("UNITED KINGDOM", 3), ("UNITED STATES", 1),
)  # fmt: skip
_FEW_NATIONS = tuple(n for n, (name, _) in enumerate(_NATIONS) if name in (
    "BRAZIL", "CANADA", "FRANCE", "GERMANY", "INDIA", "SAUDI ARABIA",
))  # fmt: skip
_SEGMENTS = ("BUILDING", "AUTOMOBILE", "MACHINERY", "HOUSEHOLD", "FURNITURE")
_PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
_MODES = ("AIR", "AIR REG", "MAIL", "SHIP", "RAIL", "TRUCK", "FOB", "REG AIR")
_INSTRUCTIONS = ("DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN")
_COLOURS = (
    "green", "forest", "almond", "azure", "beige", "blush", "chiffon", "coral", "cream", "drab", "firebrick", "frosted",
    "gainsboro", "ghost", "honeydew", "indian", "ivory", "khaki", "lace", "lemon", "linen", "magenta", "maroon", "mint",
    "moccasin", "navajo", "olive", "orchid", "papaya", "peru", "plum", "puff", "rose", "salmon", "sienna", "snow",
    "steel", "tan", "thistle", "tomato", "violet", "wheat",
)  # fmt: skip
_TYPES = tuple(
    f"{first} {second} {third}"
    for first in ("ECONOMY", "PROMO", "MEDIUM", "STANDARD", "SMALL", "LARGE")
    for second in ("ANODIZED", "POLISHED", "BURNISHED", "PLATED", "BRUSHED")
    for third in ("STEEL", "BRASS", "TIN", "NICKEL", "COPPER")
)
_FEW_TYPES = ("ECONOMY ANODIZED STEEL", "PROMO BRUSHED BRASS", "MEDIUM POLISHED BRASS", "LARGE PLATED TIN")
_CONTAINERS = tuple(
    f"{size} {kind}"
    for size in ("SM", "MED", "LG", "JUMBO", "WRAP")
    for kind in ("BOX", "CASE", "PACK", "PKG", "BAG", "JAR", "DRUM", "CAN")
)
_FEW_CONTAINERS = ("MED BOX", "SM CASE", "MED BAG", "LG PKG")
_BRANDS = tuple(f"Brand#{first}{second}" for first in range(1, 6) for second in range(1, 6))
_FEW_BRANDS = ("Brand#12", "Brand#23", "Brand#34", "Brand#45")
_FEW_SIZES = (1, 3, 5, 9, 14, 15, 49)
_WORDS = ("carefully", "final", "packages", "sleep", "furiously", "ironic", "deposits", "quickly", "bold", "accounts")
_FIRST_DAY, _LAST_DAY = date(1992, 1, 1), date(1998, 8, 2)
_TODAY = date(1995, 6, 17)


def tpch(scale: float, seed: int = 1) -> dict[str, pa.Table]:
    """Return the rows of the eight tables at a scale; scale 1 has six million lineitems."""
    rng = np.random.default_rng(seed)
    few = scale <= FEW_WORDS
    suppliers, parts = max(int(10_000 * scale), 10), max(int(200_000 * scale), 100)
    customers = max(int(150_000 * scale), 100)
    made = {
        "region": {
            "r_regionkey": np.arange(5), "r_name": list(_REGIONS), "r_comment": _comments(rng, 5),
        },
        "nation": {
            "n_nationkey": np.arange(25), "n_name": [name for name, _ in _NATIONS],
            "n_regionkey": [region for _, region in _NATIONS], "n_comment": _comments(rng, 25),
        },
        "supplier": _suppliers(rng, suppliers, few),
        "customer": _customers(rng, customers, few),
        "part": _parts(rng, parts, few),
    }  # fmt: skip
    prices = made["part"]["p_retailprice"]
    made["partsupp"] = _offers(rng, parts, suppliers)
    made["orders"], made["lineitem"] = _orders(rng, prices, customers, suppliers, few)
    return {name: _table(TABLES[name], columns) for name, columns in made.items()}


def _suppliers(rng: np.random.Generator, count: int, few: bool) -> dict[str, Any]:
    nations = _nations(rng, count, few)
    comments = _comments(rng, count)
    for number in rng.choice(count, max(count // 200, 1), replace=False):
        comments[number] = "bold Customer sleep Complaints"
    return {
        "s_suppkey": np.arange(1, count + 1), "s_name": _names("Supplier", count),
        "s_address": _words(rng, count, 2), "s_nationkey": nations, "s_phone": _phones(rng, nations),
        "s_acctbal": rng.integers(-99_999, 999_999, count), "s_comment": comments,
    }  # fmt: skip


def _customers(rng: np.random.Generator, count: int, few: bool) -> dict[str, Any]:
    nations = _nations(rng, count, few)
    return {
        "c_custkey": np.arange(1, count + 1), "c_name": _names("Customer", count),
        "c_address": _words(rng, count, 2), "c_nationkey": nations, "c_phone": _phones(rng, nations),
        "c_acctbal": rng.integers(-99_999, 999_999, count),
        "c_mktsegment": _pick(rng, _SEGMENTS[:2] if few else _SEGMENTS, count), "c_comment": _comments(rng, count),
    }  # fmt: skip


def _parts(rng: np.random.Generator, count: int, few: bool) -> dict[str, Any]:
    colours = _COLOURS[:5] if few else _COLOURS
    first, second = _pick(rng, colours, count), _pick(rng, colours, count)
    keys = np.arange(1, count + 1)
    return {
        "p_partkey": keys, "p_name": pc.binary_join_element_wise(pa.array(first), pa.array(second), " "),
        "p_mfgr": _pick(rng, [f"Manufacturer#{number}" for number in range(1, 6)], count),
        "p_brand": _pick(rng, _FEW_BRANDS if few else _BRANDS, count),
        "p_type": _pick(rng, _FEW_TYPES if few else _TYPES, count),
        "p_size": rng.choice(np.asarray(_FEW_SIZES if few else range(1, 51)), count),
        "p_container": _pick(rng, _FEW_CONTAINERS if few else _CONTAINERS, count),
        "p_retailprice": 90_000 + (keys // 10) % 20_001 + 100 * (keys % 1_000), "p_comment": _comments(rng, count),
    }  # fmt: skip


def _offers(rng: np.random.Generator, parts: int, suppliers: int) -> dict[str, Any]:
    keys = np.repeat(np.arange(1, parts + 1), 4)
    return {
        "ps_partkey": keys, "ps_suppkey": _supplier_of(keys, np.tile(np.arange(4), parts), suppliers),
        "ps_availqty": rng.integers(1, 10_000, len(keys)), "ps_supplycost": rng.integers(100, 100_001, len(keys)),
        "ps_comment": _comments(rng, len(keys)),
    }  # fmt: skip


def _orders(
    rng: np.random.Generator, prices: Numbers, customers: int, suppliers: int, few: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    count = 10 * customers
    keys = np.arange(count)
    # Keys have gaps, and a third of the customers have no orders.
    keys = (keys // 8) * 32 + keys % 8 + 1
    buyers = rng.integers(0, customers * 2 // 3, count)
    large = rng.random(count) < (0.05 if few else 0.00005)
    lines = np.where(large, 7, rng.integers(1, 8, count))
    days = rng.integers(0, (_LAST_DAY - _FIRST_DAY).days - 150, count) + _number(_FIRST_DAY)
    order = np.repeat(np.arange(count), lines)
    total = len(order)
    starts = np.cumsum(lines) - lines
    quantities = np.where(large[order], rng.integers(40, 51, total), rng.integers(1, 51, total))
    part = rng.integers(1, len(prices) + 1, total)
    shipped = days[order] + rng.integers(1, 122, total)
    received = shipped + rng.integers(1, 31, total)
    sent = shipped <= _number(_TODAY)
    gross = quantities * prices[part - 1]
    discount, tax = rng.integers(0, 11, total), rng.integers(0, 9, total)
    modes = _MODES[:5] if few else _MODES
    lineitem = {
        "l_orderkey": keys[order], "l_linenumber": np.arange(total) - starts[order] + 1, "l_partkey": part,
        "l_suppkey": _supplier_of(part, rng.integers(0, 4, total), suppliers), "l_quantity": 100 * quantities,
        "l_extendedprice": gross, "l_discount": discount, "l_tax": tax,
        "l_returnflag": np.where(received <= _number(_TODAY), _pick(rng, "RA", total), "N"),
        "l_linestatus": np.where(sent, "F", "O"), "l_shipdate": shipped,
        "l_commitdate": days[order] + rng.integers(30, 91, total), "l_receiptdate": received,
        "l_shipinstruct": _pick(rng, _INSTRUCTIONS, total), "l_shipmode": _pick(rng, modes, total),
        "l_comment": _words(rng, total, 1),
    }  # fmt: skip
    open_lines = np.bincount(order, ~sent, count)
    comments = _comments(rng, count)
    for number in np.flatnonzero(rng.random(count) < 0.02):
        comments[number] = "final special packages requests"
    return {
        "o_orderkey": keys, "o_custkey": buyers + buyers // 2 + 1,
        "o_orderstatus": np.where(open_lines == 0, "F", np.where(open_lines == lines, "O", "P")),
        "o_totalprice": np.bincount(order, gross * (100 - discount) * (100 + tax) // 10_000, count).astype(np.int64),
        "o_orderdate": days, "o_orderpriority": _pick(rng, _PRIORITIES, count),
        "o_clerk": _names("Clerk", count, 1 + count // 1_500), "o_shippriority": np.zeros(count, np.int32),
        "o_comment": comments,
    }, lineitem  # fmt: skip


def _table(definition: TableDefinition, columns: Mapping[str, Any]) -> pa.Table:
    """Return columns in the types of a table. Money is given in cents, a date as its day since 1970."""
    arrays = []
    for field in definition.schema:
        values = pa.array(columns[field.name])
        if pa.types.is_decimal(field.type):
            cents = values.cast(pa.int64()).cast(pa.decimal128(19, 0))
            values = pc.multiply(cents, pa.scalar("0.01").cast(pa.decimal128(3, 2)))
        elif pa.types.is_date(field.type):
            values = values.cast(pa.int32())
        arrays.append(values.cast(field.type))
    return pa.table(arrays, definition.schema)


def _supplier_of(part: Numbers, number: Numbers, suppliers: int) -> Numbers:
    """Return one of the four suppliers of a part, which differ."""
    supplier: Numbers = (part + number * (suppliers // 4) + (part - 1) // suppliers) % suppliers + 1
    return supplier


def _nations(rng: np.random.Generator, count: int, few: bool) -> Numbers:
    if not few:
        return rng.integers(0, len(_NATIONS), count)
    return rng.permutation(np.resize(np.asarray(_FEW_NATIONS), count))


def _number(day: date) -> int:
    """Return a date as the number of days since 1970."""
    return (day - date(1970, 1, 1)).days


def _pick(rng: np.random.Generator, words: Sequence[str], count: int) -> Numbers:
    return np.asarray(list(words))[rng.integers(0, len(words), count)]


def _names(word: str, count: int, distinct: int | None = None) -> list[str]:
    return [f"{word}#{number % (distinct or count) + 1:09d}" for number in range(count)]


def _phones(rng: np.random.Generator, nations: Numbers) -> list[str]:
    last = rng.integers(1_000, 10_000, len(nations))
    return [f"{nation + 10}-{number % 900 + 100}-555-{number}" for nation, number in zip(nations, last, strict=True)]


def _words(rng: np.random.Generator, count: int, words: int) -> Any:
    chosen = [pa.array(_pick(rng, _WORDS, count)) for _ in range(words)]
    return chosen[0] if words == 1 else pc.binary_join_element_wise(*chosen, " ")


def _comments(rng: np.random.Generator, count: int) -> list[str]:
    comments: list[str] = _words(rng, count, 3).to_pylist()
    return comments
