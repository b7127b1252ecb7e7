"""Invalid values that callers may pass: half surrogate pairs, huge numbers, NUL, other types, long texts."""

from __future__ import annotations

import base64
import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tunnels.values import Position, Start, StartKind


class Unprintable:
    """An object whose representation fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no representation")


def token(content: bytes) -> Position:
    """Return a position in the form of the embedded store, with any content."""
    return Position(base64.b64encode(content).decode())


TEXTS = ["", " ", "\ud800", "a\udcffb", "a\0b", "x" * 70_000, "/", "/../x", "/a/./b", "/a\0b", "//", "/" + "y" * 5_000]
NUMBERS = [-1, 0, 2**31, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**70, 10**5_000, True]
NUMPY = [np.int64(1), np.uint64(2**64 - 1), np.float32("inf"), np.array([1, 2]), np.bool_(True)]
FLOATS = [float("nan"), float("inf"), float("-inf"), 1e300, -0.5, 1.5, decimal.Decimal("NaN")]
MAPPINGS: list[Any] = [
    *(
        {1: 2},
        {"\ud800": 1},
        {"id": "\ud800"},
        {"id": 2**70},
        {"id": None},
        {"id": float("nan")},
        {2**70: 0},
        {0: 2**70},
    ),
    *(
        {0: None},
        {None: 0},
        {"0": 0},
        {0: True},
        {"n": float("nan")},
        {"n": 2**70},
        {"n": [2**70, None]},
        {"n": object()},
    ),
    *({"n": Unprintable()}, {"id": "a" * 70_000}, {"id": "a", "n": 10**5_000}, {"id": "a", "n": True}),
]
POSITIONS: list[Any] = [
    *(Position("\ud800"), Position("x"), Position("", 2**70), Position("", -1), token(b'{"r":1e400}'), token(b"[]")),
    *(token(b'{"r":"x"}'), token(b'{"r":[1]}'), token(b'{"k":5}'), token(b'{"k":"[["}'), token(b'{"r":-1}')),
    *(token(b'{"r":99999999999999999999}'), token(b"{" * 5_000), token(b'{"k":"[]"}'), token(b'{"k":"[null]"}')),
]
OTHERS: list[Any] = [
    *(None, b"x", b"\xff", [], {}, (), set(), object(), Unprintable(), Unprintable, ["\ud800"], [None], [[]], range(3)),
    *(datetime.datetime.max, datetime.datetime.min, datetime.timedelta.max, iter(())),
    *(pa.scalar(1), pa.array([1]), pa.schema([]), pa.table({"id": ["a"]}), pa.table({"id": [b"\xff"]})),
    *(KeyRange(("\ud800",), None), KeyRange((2**70,), (None,)), KeyRange("a", 5), KeyRange(("a", "b", "c"), ())),  # type: ignore[arg-type]
    *(Start(StartKind.TIMESTAMP), Start(StartKind.TIMESTAMP, datetime.datetime.max)),
    Start(StartKind.BATCH, batch="\ud800"),
    *([("id", "=", "\ud800")], [("id", "in", 5)], [("\ud800", "=", 1)], [Predicate("id", "starts with", None)], [()]),
]
VALUES: list[Any] = [*TEXTS, *NUMBERS, *NUMPY, *FLOATS, *MAPPINGS, *POSITIONS, *OTHERS]
