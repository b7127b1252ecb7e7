"""Conditions and key ranges as SQL over the packed rows of `codec`.

Attributes of fixed width are in ``f``, and their bytes sort like their values. So a comparison with a value is a set of
ranges of encoded numbers, and a range compares ``substr(f, …)`` with two constants. Strings, binaries and keys are
native SQLite columns and are compared by their bytes.

Comparisons follow Spark: null never satisfies one, NaN equals NaN and is greater than every number, -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.errors import OptionError
from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.schema import Key
from headrace.rows.byte_order import ordered_bytes
from headrace.rows.conditions import BOUNDING, Cut, after_prefix, check_comparable, key_cuts, operands
from headrace.stores.embedded.tables.codec import RowCodec, Slot, value_width
from headrace.stores.embedded.tables.keys import stored_key, stored_values

_Range: TypeAlias = tuple[int, int]
"""Encoded numbers from the first to the second, both included."""


@dataclass(frozen=True)
class Sql:
    """A part of a WHERE clause, and the values of its parameters."""

    text: str
    bindings: tuple[Any, ...] = ()


_TERMS = 100
# A statement has at most 32,766 parameters, and the query of a snapshot contains the condition twice.
_MAX_BINDINGS = 16_000
EVERYTHING = Sql("1")
NOTHING = Sql("0")


def where(codec: RowCodec, keys: KeyRange, predicates: Sequence[Predicate], after: Key | None = None) -> Sql:
    """Return the condition for the rows in a key range, after a key, that satisfy all predicates.

    Predicates on the first key columns become a part of the range, so that SQLite only visits that part of the table.

    Raises:
        OptionError: the predicates have more values than a statement of SQLite can have.
    """
    low, high, remaining = bounds(codec, keys, predicates)
    if after is not None:
        start = Cut(after, after=True)
        low = start if low is None or low < start else low
    pieces = [_cut_sql(codec, low, ">=", ">"), _cut_sql(codec, high, "<", "<=")]
    pieces += [predicate_sql(codec, predicate) for predicate in remaining]
    pieces = [piece for piece in pieces if piece != EVERYTHING]
    if not pieces:
        return EVERYTHING
    bindings = tuple(value for piece in pieces for value in piece.bindings)
    if len(bindings) > _MAX_BINDINGS:
        raise OptionError(
            "too many values in the conditions", received=len(bindings), valid=f"at most {_MAX_BINDINGS} in all"
        )
    return Sql(tree_of(" AND ", [piece.text for piece in pieces]), bindings)


def tree_of(operator: str, terms: Sequence[str]) -> str:
    """Join terms as a tree: SQLite limits the depth of an expression to 1,000."""
    parts = [operator.join(terms[start : start + _TERMS]) for start in range(0, len(terms), _TERMS)]
    return parts[0] if len(parts) == 1 else operator.join(f"({part})" for part in parts)


def bounds(
    codec: RowCodec, keys: KeyRange, predicates: Sequence[Predicate]
) -> tuple[Cut | None, Cut | None, list[Predicate]]:
    """Return the range of keys that the predicates allow, and the predicates that the range does not express.

    The other predicates must not be in the statement: with an equality, SQLite would not seek the first row of the
    page.
    """
    lows = [] if keys.low is None else [Cut(keys.low)]
    highs = [] if keys.high is None else [Cut(keys.high)]
    covered = set()
    prefix: Key = ()
    for name in codec.schema.primary_key:
        fixed: Key | None = None
        for predicate in predicates:
            if predicate.column == name and predicate.operator in BOUNDING and predicate.value is not None:
                low, high = key_cuts(codec.schema.column(name), predicate, prefix)
                lows += low
                highs += high
                covered.add(id(predicate))
                if predicate.operator == "=":
                    fixed = low[0].prefix
        if fixed is None:
            break
        prefix = fixed
    remaining = [predicate for predicate in predicates if id(predicate) not in covered]
    return max(lows, default=None), min(highs, default=None), remaining


def _cut_sql(codec: RowCodec, cut: Cut | None, before: str, after: str) -> Sql:
    if cut is None or not cut.prefix:
        return EVERYTHING
    columns = ", ".join(f"k{index}" for index in range(len(cut.prefix)))
    return Sql(
        f"({columns}) {after if cut.after else before} ({marks(cut.prefix)})", stored_key(codec.key_types, cut.prefix)
    )


def predicate_sql(codec: RowCodec, predicate: Predicate) -> Sql:
    """Return one condition as SQL.

    Raises:
        SchemaError: the column does not exist, or its type does not have the value.
        OptionError: the operator cannot be used with the column or the value.
    """
    column = codec.schema.column(predicate.column)
    operator = predicate.operator
    slot = codec.slots[column.name]
    if operator in ("is null", "is not null"):
        # Rows that are older than the column have no presence byte.
        return Sql(f"substr(f, {slot.offset + 1}, 1) {'!=' if operator == 'is null' else '='} x'01'")
    check_comparable(column, operator)
    values = operands(column, predicate)
    if len(values) == 0:
        return NOTHING
    if column.name in codec.native:
        return _native_sql(codec.native[column.name], operator, stored_values(values))
    encoded = [int.from_bytes(row.tobytes(), "big") for row in ordered_bytes(values)]
    return _packed_sql(slot, _ranges(column.type, operator, encoded))


def _native_sql(name: str, operator: str, values: list[Any]) -> Sql:
    if operator == "in":
        return Sql(f"{name} IN ({marks(values)})", tuple(values))
    if operator != "starts with":
        return Sql(f"{name} {operator} ?", (values[0],))
    end = after_prefix(values[0])
    return Sql(f"{name} >= ?", (values[0],)) if end is None else Sql(f"({name} >= ? AND {name} < ?)", (values[0], end))


def marks(values: Sequence[Any]) -> str:
    """Return a parameter for each value."""
    return ", ".join("?" * len(values))


# -- ranges of encoded numbers ----------------------------------------------------------------------------


def _packed_sql(slot: Slot, ranges: list[_Range]) -> Sql:
    expression = f"substr(f, {slot.offset + 1}, {slot.width + 1})"
    # A long list of values would make a deep expression.
    single = [number for low, high in ranges if high - low <= 1 for number in range(low, high + 1)]
    wide = [pair for pair in ranges if pair[1] - pair[0] > 1]
    parts = [f"{expression} IN ({marks(single)})"] if single else []
    parts += [f"{expression} BETWEEN ? AND ?"] * len(wide)
    numbers = single + [number for pair in wide for number in pair]
    bindings = tuple(b"\x01" + number.to_bytes(slot.width, "big") for number in numbers)
    return Sql(f"({' OR '.join(parts)})", bindings) if parts else NOTHING


def _ranges(data_type: pa.DataType, operator: str, encoded: list[int]) -> list[_Range]:
    """Return the ranges of encoded numbers that satisfy a comparison."""
    if operator == "in":
        return sorted({pair for number in encoded for pair in _divide(data_type, number)[1]})
    below, equal, above = _divide(data_type, encoded[0])
    return {
        "=": equal,
        "!=": below + above,
        "<": below,
        "<=": below + equal,
        ">": above,
        ">=": equal + above,
    }[operator]


def _divide(data_type: pa.DataType, number: int) -> tuple[list[_Range], list[_Range], list[_Range]]:
    """Return the ranges of encoded numbers below, equal to and above a value."""
    last = (1 << 8 * value_width(data_type)) - 1
    if not pa.types.is_floating(data_type):
        return _not_empty((0, number - 1)), [(number, number)], _not_empty((number + 1, last))
    limits = ordered_bytes(pa.array([float("-inf"), -0.0, 0.0, float("inf")], data_type))
    lowest, minus_zero, zero, highest = (int.from_bytes(row.tobytes(), "big") for row in limits)
    not_a_number = [(0, lowest - 1), (highest + 1, last)]
    if not lowest <= number <= highest:
        return [(lowest, highest)], not_a_number, []
    low, high = (minus_zero, zero) if number in (minus_zero, zero) else (number, number)
    return _not_empty((lowest, low - 1)), [(low, high)], [*_not_empty((high + 1, highest)), *not_a_number]


def _not_empty(pair: _Range) -> list[_Range]:
    return [pair] if pair[0] <= pair[1] else []
