"""The errors of the decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import HeadraceError, SchemaError

_REPLACE = "replace the value in the table; if changes in the log have it"


class PgOutputError(HeadraceError):
    """Bytes are not valid messages of pgoutput."""


class UnfitValueError(SchemaError):
    """A value does not fit the type of its column in headrace.

    Attributes:
        unfit: true for each such value of the column; None if it is not known which they are.
    """

    unfit: npt.NDArray[np.bool_] | None = None


def value_error(
    column: str, received: object, valid: str, unfit: npt.NDArray[np.bool_] | None = None
) -> UnfitValueError:
    """Return the error for a value that does not fit the type of its column in headrace."""
    error = UnfitValueError(
        f"column {column!r} has a value that does not fit its type",
        received=received,
        valid=valid,
        remedy=f"{_REPLACE}, {shown_otherwise(column)}",
    )
    error.unfit = unfit
    return error


def of_key(error: UnfitValueError, column: str) -> UnfitValueError:
    """Return the error of `value_error` for a column of the primary key."""
    return UnfitValueError(
        error.problem,
        received=error.received,
        valid=error.valid,
        remedy=f"{_REPLACE}, {shown_otherwise(column, in_key=True)}",
    )


def shown_otherwise(column: str, *, in_key: bool = False) -> str:
    """Return the remedy that shows the values of a column in another way: a key cannot be null."""
    choice, other = ("text", "") if in_key else ("null", f" (or {column}=text, for a column of PostgreSQL's texts)")
    return (
        f"open the store with option unrepresentable='{column}={choice}'{other}; on the command line it is "
        f"--store-option 'unrepresentable={column}={choice}'"
    )


def fitting(
    decode: Callable[[npt.NDArray[np.bool_]], pa.Array], count: int, report: Callable[[int], Any] | None
) -> pa.Array:
    """Return decoded values, with nulls for the values that do not fit their type.

    Args:
        decode: returns the values; those where its argument is true are null.
        count: the number of the values.
        report: receives the number of the values that do not fit; None for an error instead.

    Raises:
        UnfitValueError: a value does not fit, and there is no ``report``.
    """
    unfit = np.zeros(count, np.bool_)
    while True:
        try:
            values = decode(unfit)
        except UnfitValueError as error:
            if report is None or error.unfit is None:
                # The error may travel between processes.
                error.unfit = None
                raise
            unfit |= error.unfit
        else:
            if report is not None and unfit.any():
                report(int(unfit.sum()))
            return values
