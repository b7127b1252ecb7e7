"""Random column types, and their values as Arrow returns them in Python."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "byte": st.integers(-(2**7), 2**7 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    # Without NaN, which is not equal to itself, and without -0.0, which is equal to 0.0 in Python.
    "float": st.floats(width=32, allow_nan=False).map(lambda value: value + 0.0),
    "double": st.floats(allow_nan=False).map(lambda value: value + 0.0),
    "string": st.text(max_size=5),
    "binary": st.binary(max_size=5),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(datetime.UTC)),
    "timestamp_ntz": st.datetimes(),
    "interval day to second": st.timedeltas(datetime.timedelta(-10000), datetime.timedelta(10000)),
    "decimal(38,10)": st.integers(-(10**38) + 1, 10**38 - 1).map(
        lambda number: decimal.Decimal(number).scaleb(-10, decimal.Context(prec=38))
    ),
}
_FIELD_NAMES = ("a", "b c", "d`e", "`")


def _inner(types: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(types, st.sampled_from(["", " not null"])).map("".join)


def _composite(types: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    inner = _inner(types)
    fields = st.lists(inner, min_size=1, max_size=len(_FIELD_NAMES)).map(
        lambda kinds: ",".join(
            f"`{name.replace('`', '``')}`:{kind}" for name, kind in zip(_FIELD_NAMES, kinds, strict=False)
        )
    )
    return st.one_of(
        inner.map(lambda kind: f"array<{kind}>"),
        st.tuples(st.sampled_from(sorted(LEAVES)), inner).map(lambda pair: f"map<{pair[0]},{pair[1]}>"),
        fields.map(lambda kinds: f"struct<{kinds}>"),
    )


TYPE_NAMES = st.recursive(st.sampled_from(sorted(LEAVES)), _composite, max_leaves=6)
COMPOSITE_NAMES = _composite(TYPE_NAMES)


def values_of(data_type: pa.DataType) -> st.SearchStrategy[Any]:
    """Return non-null values of a type."""
    from headrace.model.types import type_name

    if pa.types.is_list(data_type):
        return st.lists(cells_of(data_type.value_field), max_size=3)
    if pa.types.is_map(data_type):
        entry = st.tuples(values_of(data_type.key_type), cells_of(data_type.item_field))
        return st.lists(entry, max_size=3, unique_by=lambda pair: pair[0])
    if pa.types.is_struct(data_type):
        return st.fixed_dictionaries({field.name: cells_of(field) for field in data_type})
    return LEAVES[type_name(data_type)]


def cells_of(field: pa.Field) -> st.SearchStrategy[Any]:
    """Return values of a field, with nulls if it is nullable."""
    values = values_of(field.type)
    return st.none() | values if field.nullable else values
