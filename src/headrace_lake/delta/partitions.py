"""Partitions of Delta tables: columns whose values are in the log, and not in the data files.

A file has rows of one partition. It is in a directory with their values, as some readers expect.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace_lake import partitions

_NULL = "__HIVE_DEFAULT_PARTITION__"
# In the log an empty text is a null. polars reads the directory.
_NULLS = ("", _NULL)
# polars reads the names of columns in a directory as they are, unlike values; only these do not fit into a path.
_UNFIT = re.compile(r"[/=\x00-\x1f\x7f]")


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
    return "/".join(f"{_name(name)}={_NULL if text is None else quote(text, safe='')}" for name, text in values)


def _name(column: str) -> str:
    return _UNFIT.sub(lambda each: quote(each[0], safe=""), column)


def divided(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Mapping[str, str | None], pa.Table]]:
    """Yield the rows of each partition, with its values in the form of the log.

    Raises:
        SchemaError: a value is a text that readers of Delta Lake take for a null.
    """
    for name in columns:
        column = rows.column(name)
        for text in _NULLS if pa.types.is_string(column.type) else ():
            if pc.any(pc.equal(column, text)).as_py():
                raise SchemaError(
                    f"partition column {name!r} has a text that readers of Delta Lake take for a null",
                    received=repr(text),
                    remedy="write a null, or another text",
                )
    for values, part in partitions.divided(rows, [rows.column(name) for name in columns]):
        yield dict(zip(columns, map(partition_text, values), strict=True)), part
