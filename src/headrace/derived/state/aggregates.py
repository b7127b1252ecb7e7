"""The aggregates of a followed query, and their values from what is kept for a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from headrace.derived.state.keys import check_ordered
from headrace.errors import NumericOverflowError, UnsupportedError
from headrace.model.types import type_name
from headrace.rows.nested import Mask

Kind: TypeAlias = Literal["count_rows", "count", "sum", "avg", "min", "max", "count_distinct"]


@dataclass(frozen=True)
class Aggregate:
    """An aggregate function of a query.

    Attributes:
        kind: the function; ``count_rows`` is ``count(*)``.
        arguments: the columns of the signed rows with its arguments. Aggregates that name the same column share what
            is kept for it.
        types: the types of the arguments.
        result: the type of Spark's result.
        text: the aggregate as the user wrote it, for messages.

    Raises:
        UnsupportedError: the aggregate of these types cannot be kept.
    """

    kind: Kind
    arguments: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    result: pa.DataType
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind in ("min", "max"):
            check_ordered(self.types[0])
        elif self.kind in ("sum", "avg") and not _is_number(self.types[0]):
            raise UnsupportedError(
                f"{self.shown} cannot be followed",
                received=f"an argument of type {type_name(self.types[0])}",
                valid="integers, decimals, floating-point numbers and intervals of days",
            )

    @property
    def shown(self) -> str:
        """The aggregate for messages."""
        return self.text or f"{self.kind}({', '.join(self.arguments)})"

    def check_fits(self, overflows: Mask) -> None:
        """Raise `NumericOverflowError` if the result of a group does not fit the type of the result."""
        if overflows.any():
            raise NumericOverflowError(
                f"the value of {self.shown} does not fit the type of the result",
                received=f"{int(overflows.sum())} groups with such a value",
                valid=type_name(self.result),
                remedy="cast the argument to a wider type, for example CAST(… AS DECIMAL(38, 0)) or CAST(… AS DOUBLE)",
            )


def _is_number(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(data_type)
        or types.is_floating(data_type)
        or types.is_decimal(data_type)
        or types.is_duration(data_type)
    )
