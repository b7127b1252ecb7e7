"""Random queries: each returns rows or a headrace error."""

from __future__ import annotations

import contextlib
import random
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.testing.effort import thorough
from headrace_ytsaurus.endpoint.formats import JSON, YSON, write_rows
from headrace_ytsaurus.endpoint.select.execution import Limits, run
from headrace_ytsaurus.endpoint.select.grammar import parse_query
from headrace_ytsaurus.endpoint.tables.row_sources import RowsInMemory
from headrace_ytsaurus.wire.types import columns_of

COLUMNS = columns_of(
    [
        *[{"name": name, "type": kind} for name, kind in (("a", "int64"), ("k", "int8"), ("u", "uint64"))],
        *[{"name": name, "type": kind} for name, kind in (("d", "double"), ("e", "boolean"), ("s", "string"))],
        *[{"name": name, "type": kind} for name, kind in (("y", "any"), ("day", "date"))],
        {"name": "r", "type_v3": {"type_name": "tagged", "tag": "binary", "item": "string"}},
    ]
)
ROWS: list[dict[str, Any]] = [
    {},
    {"a": -(1 << 63), "k": -128, "u": Decimal(0), "d": 0.0, "e": True, "s": "", "y": b"#", "r": b"\xff"},
    {"a": 5, "k": 127, "u": Decimal((1 << 64) - 1), "d": float("nan"), "e": False, "s": "ab", "y": b"1", "r": b""},
]
# In ATOMS and forms: X is an expression of the same type, B a boolean, S a string, O an expression of another type.
ATOMS = {
    "int64": ["a", "k", "-1", "0", "64", "9223372036854775807", "-9223372036854775808", "length(S)", "int64(u)", "#"],
    "uint64": ["u", "0u", "63u", "18446744073709551615u", "uint64(a)", "day", "5", "null"],
    "double": ["d", "-0.0", "1.5", "%nan", "%inf", "double(a)", "null"],
    "boolean": ["e", "%true", "is_null(y)", "null"],
    "string": ["s", "''", "'a%'", r'"\xff"', "r", "null"],
}
WHOLE = [*[f"(X {sign} X)" for sign in ("+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^")], "(- X)", "~X", "abs(X)"]
FORMS = {
    "int64": WHOLE,
    "uint64": WHOLE,
    "double": ["(X + X)", "(X / X)", "(X * X)", "abs(X)", "floor(X)", "(- X)"],
    "string": ["(X || X)", "concat(X, X)", "lower(X)"],
    "boolean": [
        *[f"O {sign} O" for sign in ("=", "!=", "<", ">=")],
        *["(X and X)", "(X or not X)", "O in (O, O)", "(O, X) = (O, X)", "(O, X) <= (O, X)", "O between O and O"],
        *["S like '%a_'", "is_prefix('a', S)", "is_null(O)"],
    ],
}
SHARED = ["if(B, X, X)", "if_null(X, X)", "case when B then X else X end", "case O when O then X end"]
FUNCTIONS = ["sum", "min", "max", "avg", "first", "count", "cardinality"]


def expression(chance: random.Random, kind: str, depth: int) -> str:
    """Return a random expression, usually of the type."""
    other = chance.choice(list(ATOMS))
    kinds = {"X": kind, "O": other, "B": "boolean", "S": "string"}
    if chance.random() < 0.03:
        kind = other
    shallow = depth <= 0 or chance.random() < 0.2
    form = chance.choice(ATOMS[kind] if shallow else FORMS[kind] + SHARED)
    return re.sub("[XOBS]", lambda found: expression(chance, kinds[found[0]], depth - 1), form)


@settings(max_examples=thorough(200), deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_query_returns_rows_or_a_headrace_error(chance: random.Random) -> None:
    arrays = [pa.array([row.get(column.name) for row in ROWS], column.type) for column in COLUMNS]
    source = RowsInMemory(pa.RecordBatch.from_arrays(arrays, names=[column.name for column in COLUMNS]), COLUMNS)
    kinds = [chance.choice(list(ATOMS)) for _ in range(3)]
    items, end = [expression(chance, kind, 3) for kind in kinds], ""
    if chance.random() < 0.5:
        items = [f"{chance.choice(FUNCTIONS)}({expression(chance, kind, 2)})" for kind in kinds]
        end = f"group by {expression(chance, kinds[1], 2)} as z having z = {expression(chance, kinds[1], 1)}"
    where = expression(chance, "boolean", 3) if chance.random() < 0.5 else "true"
    selected = ", ".join(f"{item} as x{place}" for place, item in enumerate(items))
    query = f"{selected} from [//t] where {where} {end} order by x0 limit 2"
    with contextlib.suppress(HeadraceError):
        batches, columns = run(parse_query(query), source, Limits(canonical_null=chance.random() < 0.5))
        for form in (YSON, JSON):
            write_rows(batches, columns, form)
