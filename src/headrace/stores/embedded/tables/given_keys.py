"""Many keys as a table of a statement: SQLite looks them all up in one call, ten times as fast as one by one.

SQLite's table-valued function ``carray`` has one column. Keys of several columns are packed into one binary, which SQL
takes apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import apsw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DIGITS = 10
"""The length of each column's value before the values of a packed key, in decimal digits: the form that SQL reads."""


@dataclass(frozen=True)
class GivenKeys:
    """Keys for a statement ``SELECT … FROM {source} LEFT JOIN table ON {equal}``, whose rows are in their order."""

    source: str
    equal: str
    bindings: tuple[Any, ...]


def given_keys(names: Sequence[str], types: Sequence[str], keys: Sequence[Sequence[Any]]) -> GivenKeys:
    """Return keys for a statement.

    Args:
        names: the SQLite columns of the key.
        types: their SQLite types: TEXT, INTEGER or BLOB.
        keys: the columns of the keys, as lists of Python values; at least one key.
    """
    if len(names) == 1:
        values, expressions = _single(keys[0], types[0])
    else:
        values, expressions = _packed(keys, types)
    equal = " AND ".join(f"{name} = {each}" for name, each in zip(names, expressions, strict=True))
    return GivenKeys("carray(?) AS given", equal, (apsw.carray(values),))


def _single(values: Sequence[Any], sql_type: str) -> tuple[Any, list[str]]:
    if sql_type == "INTEGER":
        return np.array(values, np.int64), ["given.value"]
    if sql_type == "BLOB":
        return tuple(values), ["given.value"]
    # A text of carray ends at its first zero character.
    return tuple(value.encode() for value in values), ["CAST(given.value AS TEXT)"]


def _packed(keys: Sequence[Sequence[Any]], types: Sequence[str]) -> tuple[tuple[bytes, ...], list[str]]:
    columns, lengths, expressions = [], [], []
    start = f"{1 + _DIGITS * len(types)}"
    for index, (values, sql_type) in enumerate(zip(keys, types, strict=True)):
        # An integer is its decimal digits.
        column = pa.array(values).cast(pa.string()).cast(pa.binary()) if sql_type == "INTEGER" else pa.array(values)
        columns.append(column.cast(pa.large_binary()))
        lengths.append(pc.utf8_lpad(pc.binary_length(columns[-1]).cast(pa.large_string()), _DIGITS, "0"))
        length = f"CAST(CAST(substr(given.value, {1 + _DIGITS * index}, {_DIGITS}) AS TEXT) AS INTEGER)"
        value = f"substr(given.value, {start}, {length})"
        if sql_type == "INTEGER":
            value = f"CAST(CAST({value} AS TEXT) AS INTEGER)"
        elif sql_type == "TEXT":
            value = f"CAST({value} AS TEXT)"
        expressions.append(value)
        start += f" + {length}"
    packed = pc.binary_join_element_wise(
        *(length.cast(pa.large_binary()) for length in lengths), *columns, pa.scalar(b"", pa.large_binary())
    )
    return tuple(packed.to_pylist()), expressions
