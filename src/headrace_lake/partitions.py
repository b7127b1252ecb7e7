"""Partitions of lake tables: a file has rows with one value of each partition column. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError, UnsupportedError, shown
from headrace.model.tables.options import PARTITION_BY
from headrace.model.tables.schema import TableSchema
from headrace.model.types import type_name
from headrace.ports import arguments

_names = arguments.check_of(PARTITION_BY, str | Sequence[str] | None)


def partition_columns(schema: TableSchema, option: object) -> tuple[str, ...]:
    """Return the partition columns of a new table.

    Args:
        option: the value of `PARTITION_BY`: a name, or a list of names.

    Raises:
        OptionError: the value is no such thing.
        SchemaError, UnsupportedError: see `check_partitions`.
    """
    names = _names(option, f"option {PARTITION_BY}")
    columns = (names,) if isinstance(names, str) else tuple(names or ())
    if columns:
        check_partitions(schema, columns)
    return columns


def check_not_set(changes: Mapping[str, Any]) -> None:
    """Raise `UnsupportedError` if changes of a table's options name `PARTITION_BY`."""
    if PARTITION_BY in changes:
        raise UnsupportedError(
            "the partition columns of a table are set when it is created",
            received=f"{PARTITION_BY}={changes[PARTITION_BY]}",
            remedy="copy the rows into a new table",
        )


def check_partitions(schema: TableSchema, columns: Sequence[str]) -> None:
    """Raise an error if headrace cannot write a table that is partitioned by these columns."""
    if len(set(columns)) < len(columns) or not set(columns) < set(schema.names):
        raise SchemaError(
            "a table cannot have these partition columns",
            received=", ".join(map(shown, columns)),
            valid=f"some of {', '.join(schema.names)}, but not all of them",
        )
    for name in columns:
        kind = schema.column(name).type
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date32(kind)):
            raise UnsupportedError(
                f"headrace writes no tables that are partitioned by a column of this type: {name!r}",
                received=type_name(kind),
                valid="string, date, byte, short, int or long",
            )


def divided(rows: pa.Table, by: Sequence[pa.ChunkedArray]) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Yield the rows of each partition, with its values.

    Args:
        by: the values of each row, for each partition column; without one, the rows are one partition.
    """
    if not by:
        yield (), rows
        return
    codes = np.zeros(rows.num_rows, np.int64)
    for column in by:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        # Without gaps, products of several columns fit into 64 bits.
        codes = np.unique(codes, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        if len(places):
            yield tuple(_value(column[int(places[0])]) for column in by), rows.take(pa.array(places))


def _value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except OverflowError:
        raise SchemaError(
            "a date of a partition column is outside the years that Python has",
            received=f"year {pc.year(value).as_py()}",
            valid="1 to 9999",
        ) from None
