"""Partitions of Delta tables: columns whose values are in the log, and not in the data files.

A file has rows of one partition. It is in a directory with their values, as some readers expect.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.tables.schema import TableSchema
from headrace.model.types import type_name

_NULL = "__HIVE_DEFAULT_PARTITION__"


def check_partitions(schema: TableSchema, columns: Sequence[str]) -> None:
    """Raise an error if headrace cannot write a table with these partition columns."""
    if len(set(columns)) < len(columns) or not set(columns) < set(schema.names):
        raise SchemaError(
            "a Delta table cannot have these partition columns",
            received=", ".join(columns),
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


def partition_text(value: Any) -> str | None:
    """Return a value in the form of the log."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    return str(value)


def scalar_of(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return a value of the log in the type of its column."""
    # In the log an empty text is a null, too.
    found = pa.scalar(text or None, pa.string())
    if pa.types.is_timestamp(kind):
        found = pc.replace_substring(found, "Z", "").cast(pa.timestamp("us"))
    return found.cast(kind)


def directory_of(partition: Mapping[str, str | None], columns: Sequence[str]) -> str:
    """Return the directory of the files of a partition, relative to that of the table; empty without partitions."""
    values = ((name, partition[name]) for name in columns)
    return "/".join(
        f"{quote(name, safe='')}={_NULL if text is None else quote(text, safe='')}" for name, text in values
    )


def divided(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Mapping[str, str | None], pa.Table]]:
    """Yield the rows of each partition, with its values in the form of the log.

    Raises:
        SchemaError: a value is an empty text, which readers of Delta Lake take for a null.
    """
    if not columns:
        yield {}, rows
        return
    codes = np.zeros(rows.num_rows, np.int64)
    for name in columns:
        column = rows.column(name).combine_chunks()
        if pa.types.is_string(column.type) and pc.any(pc.equal(column, "")).as_py():
            raise SchemaError(
                f"partition column {name!r} has an empty text, which Delta Lake reads as a null",
                received="''",
                remedy="write a null, or another text",
            )
        encoded = column.dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        # Without gaps, products of several columns fit into 64 bits.
        codes = np.unique(codes, return_inverse=True)[1]
    for code in range(int(codes.max(initial=-1)) + 1):
        part = rows.take(pa.array(np.flatnonzero(codes == code)))
        yield {name: partition_text(part.column(name)[0].as_py()) for name in columns}, part
