"""Statistics of columns, by which readers skip files, and leave out conditions that no row can satisfy. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace_lake.ducklake.columns import LakeColumn
from headrace_lake.ducklake.values import bound_of, wider


@dataclass(frozen=True)
class ColumnStatistics:
    """The values of a column in some rows.

    Attributes:
        low: a lower bound, as the catalog has it; None if there is no value.
        high: an upper bound.
        nan: whether there is a NaN; None if the type has none.
    """

    kind: str
    values: int
    nulls: int
    low: str | None
    high: str | None
    nan: bool | None

    def merged(self, other: ColumnStatistics) -> ColumnStatistics:
        """Return the statistics of the rows of both."""
        return ColumnStatistics(
            self.kind,
            self.values + other.values,
            self.nulls + other.nulls,
            wider(self.kind, self.low, other.low, up=False),
            wider(self.kind, self.high, other.high, up=True),
            None if self.nan is None else self.nan or bool(other.nan),
        )


def statistics_of(rows: pa.Table, columns: Sequence[LakeColumn]) -> Mapping[int, ColumnStatistics]:
    """Return the statistics of all columns with values, also inside of nested ones, by their numbers."""
    found: dict[int, ColumnStatistics] = {}
    for column in columns:
        for leaf, values in _leaves(rows.column(column.name).combine_chunks(), column):
            found[leaf.id] = _statistics(values, leaf.kind)
    return found


def _leaves(values: pa.Array, column: LakeColumn) -> Iterator[tuple[LakeColumn, pa.Array]]:
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    match column.kind:
        case "list":
            yield from _leaves(values.flatten(), column.inner[0])
        case "map":
            entries = values.cast(pa.list_(pa.struct([values.type.key_field, values.type.item_field]))).flatten()
            yield from _fields(entries, column)
        case "struct":
            yield from _fields(values, column)
        case _:
            yield column, values


def _fields(values: pa.StructArray, column: LakeColumn) -> Iterator[tuple[LakeColumn, pa.Array]]:
    """Yield the values of all fields of structs; a null struct has null fields."""
    for part, inner in zip(values.flatten(), column.inner, strict=True):
        yield from _leaves(part, inner)


def _statistics(values: pa.Array, kind: str) -> ColumnStatistics:
    nulls = values.null_count
    has_nan = None
    numbers = values
    if kind.startswith("float"):
        is_nan = pc.is_nan(values)
        has_nan = bool(pc.any(is_nan).as_py())
        numbers = values.filter(pc.invert(is_nan)) if has_nan else values
    bounds = pc.min_max(numbers)
    low, high = (
        bound_of(bounds[side], kind, up=side == "max") if bounds[side].is_valid else None for side in ("min", "max")
    )
    if has_nan:
        low, high = "nan" if low is None else low, "nan"
    return ColumnStatistics(kind, len(values) - nulls, nulls, low, high, has_nan)
