"""Rows as JSON objects, such as bad rows are kept, and rows of which some have no form in their table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from headrace.errors import HeadraceError, PublicationError, SchemaError
from headrace.model.tables.bad_rows import json_object, object_of
from headrace.model.tables.schema import TableSchema
from headrace.rows.from_user import to_arrow
from headrace.rows.json_rows import value_of, with_objects
from headrace.rows.shown_values import shown_rows

Result = TypeVar("Result")

MOST_REFUSED = 1000
"""The maximum number of rows of a table that a batch may have refused."""


def objects(rows: pa.Table) -> list[str]:
    """Return rows as JSON objects."""
    return [json_object(row) for row in with_objects(shown_rows(rows), rows.schema)]


def row_of(text: str | None, schema: TableSchema) -> dict[str, Any]:
    """Return the row of a JSON object, for `headrace.rows.to_arrow`; raise `SchemaError` if it has no form there."""
    try:
        return {
            name: value_of(value, schema.column(name).type) if name in schema else value
            for name, value in object_of(text).items()
        }
    except (ValueError, TypeError, ArithmeticError, AttributeError, pa.ArrowException) as error:
        raise SchemaError("the row is not one of the table", received=str(error)) from None


def typed_keys(keys: Sequence[str | None], schema: TableSchema) -> tuple[pa.Table, list[int]]:
    """Return keys with the types of a table's key columns, in key order, and the index of each among the texts.

    A text that has no form in the table is left out.
    """
    done: list[pa.Table] = []
    indexes: list[int] = []

    def typed(begin: int, end: int) -> tuple[pa.Table, range]:
        values = [row_of(text, schema) for text in keys[begin:end]]
        return to_arrow(values, schema, columns="keys"), range(begin, end)

    for rows, of_rows in sift(len(keys), typed, (SchemaError,), most=len(keys))[0]:
        done.append(rows)
        indexes += of_rows
    names = list(schema.primary_key)
    found = pa.concat_tables(done) if done else to_arrow(pa.table({name: [] for name in names}), schema, columns="keys")
    return found.select(names), indexes


def sift(
    rows: int,
    attempt: Callable[[int, int], Result],
    failures: tuple[type[HeadraceError], ...],
    *,
    most: int = MOST_REFUSED,
    apart: Callable[[int, int], list[tuple[int, HeadraceError]] | None] = lambda begin, end: None,
) -> tuple[list[Result], list[tuple[int, HeadraceError]]]:
    """Call a function for ranges of rows that together are all rows, except those for which it fails alone.

    Args:
        rows: the number of rows.
        attempt: takes the begin and the end of a range; it has no effect if it fails.
        failures: the errors with which it refuses a row.
        most: the maximum number of refused rows.
        apart: takes a range of several rows that was refused, and returns the indexes of its refused rows with their
            errors, or None if it does not know them; there is no result for the others then.

    Returns:
        The results in the order of the rows, and the index of each refused row with its error.

    Raises:
        PublicationError: more rows are refused.
    """
    results: list[Result] = []
    refused: list[tuple[int, HeadraceError]] = []
    waiting = [(0, rows)] if rows else []
    while waiting:
        begin, end = waiting.pop()
        try:
            results.append(attempt(begin, end))
        except failures as error:
            found = [(begin, error)] if end - begin == 1 else apart(begin, end)
            if found is None:
                middle = (begin + end) // 2
                waiting += [(middle, end), (begin, middle)]
                continue
            refused += found
            if len(refused) > most:
                raise PublicationError(
                    f"the table refuses more than {most} rows of a batch, which is no exception any more",
                    received=str(error),
                    remedy="correct the table or the query, or let the batches have fewer rows",
                ) from error
    return results, refused
