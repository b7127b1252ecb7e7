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
"""The length of a column's value before the values of a packed key, in decimal digits: the form that SQL reads."""


@dataclass(frozen=True)
class GivenKeys:
    """Keys for a statement ``SELECT … FROM {source} LEFT JOIN table ON {equal}``, whose rows are in their order.

    With ``CROSS JOIN``, SQLite keeps this order of the loops, too.
    """

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
    # An integer is its decimal digits.
    columns = [
        (pa.array(values).cast(pa.string()) if sql_type == "INTEGER" else pa.array(values)).cast(pa.large_binary())
        for values, sql_type in zip(keys, types, strict=True)
    ]
    lengths = [pc.binary_length(column) for column in columns]
    ranges = [pc.min_max(column).as_py() for column in lengths]
    # SQL needs no digits for the length of a column whose values are all equally long.
    start, heads = f"{1 + _DIGITS * sum(each['min'] < each['max'] for each in ranges)}", list[pa.Array]()
    expressions = []
    for column, of_column, sql_type in zip(lengths, ranges, types, strict=True):
        length = str(of_column["max"])
        if of_column["min"] < of_column["max"]:
            length = f"CAST(CAST(substr(given.value, {1 + _DIGITS * len(heads)}, {_DIGITS}) AS TEXT) AS INTEGER)"
            heads.append(pc.utf8_lpad(column.cast(pa.large_string()), _DIGITS, "0").cast(pa.large_binary()))
        value = f"substr(given.value, {start}, {length})"
        if sql_type == "INTEGER":
            value = f"CAST(CAST({value} AS TEXT) AS INTEGER)"
        elif sql_type == "TEXT":
            value = f"CAST({value} AS TEXT)"
        expressions.append(value)
        start += f" + {length}"
    # SQLite's substr of an empty binary is null: no packed key is empty.
    end, separator = pa.scalar(b".", pa.large_binary()), pa.scalar(b"", pa.large_binary())
    packed = pc.binary_join_element_wise(*heads, *columns, end, separator)
    return tuple(packed.to_pylist()), expressions
