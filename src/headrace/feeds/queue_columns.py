"""What a queue's row looks like to a user: its columns, and where it stands in the queue. Pure functions."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import SchemaError
from headrace.queues.values import QueuePage
from headrace.types import type_name

QUEUE_NAME, PARTITION, ROW_INDEX = "queue name", "partition", "row index"
_ADDRESS_TYPES = {QUEUE_NAME: pa.string(), PARTITION: pa.int64(), ROW_INDEX: pa.int64()}


@dataclass(frozen=True)
class AddressColumns:
    """The columns that tell where a row stands: column name → `QUEUE_NAME`, `PARTITION` or `ROW_INDEX`.

    Those of ``front`` come before the queue's own columns, those of ``back`` behind them.
    """

    front: Mapping[str, str]
    back: Mapping[str, str]

    def of(self, part: str) -> frozenset[str]:
        """Return the names of the columns that hold this part of an address."""
        return frozenset(name for name, held in {**self.front, **self.back}.items() if held == part)


class QueueShape:
    """Gives the rows of queues as rows of ``schema``, every column of which is nullable.

    Args:
        rows: the queue's columns.
        address: columns beside them.
        opaque: give composite columns as binary columns that hold JSON.
        wanted: the columns to give, in this order, and in these types; all if None.

    Raises:
        SchemaError: a name stands for two columns, or no column has a wanted name.
    """

    def __init__(
        self, rows: pa.Schema, address: AddressColumns, *, opaque: bool = False, wanted: pa.Schema | None = None
    ) -> None:
        self._held = {**address.front, **address.back}
        clash = sorted(
            (set(address.front) | set(rows.names)) & set(address.back) | set(address.front) & set(rows.names)
        )
        if clash:
            raise SchemaError(
                "an option names a column that is there already",
                received=", ".join(clash),
                remedy="choose another name, or leave the option out",
            )
        own = [pa.field(field.name, opaque_type(field.type) if opaque else field.type) for field in rows]
        every = pa.schema([*_address_fields(address.front), *own, *_address_fields(address.back)])
        known = set(every.names)
        for name in () if wanted is None else wanted.names:
            if name not in known:
                raise SchemaError("no such column in the queue", received=repr(name), valid=every.names)
        self.schema = every if wanted is None else wanted

    def rows(self, queue: str, page: QueuePage) -> pa.RecordBatch:
        """Return the rows of a page of a queue."""
        columns = []
        for field in self.schema:
            held = self._held.get(field.name)
            values = page.rows.column(field.name) if held is None else _address(held, queue, page)
            columns.append(fitted(values, field))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def opaque_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type that stands for a type where composite values are given as binary ones."""
    return pa.binary() if pa.types.is_nested(data_type) else data_type


def fitted(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return values in the type of a field; composite values become JSON where the field is binary.

    Raises:
        SchemaError: there is a value that the type cannot hold.
    """
    if values.type.equals(field.type):
        return values
    if pa.types.is_nested(values.type) and pa.types.is_binary(field.type):
        return _as_json(values)
    try:
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise SchemaError(
            f"column {field.name!r} cannot be read as another type",
            received=field.type,
            valid=type_name(values.type),
            remedy="leave the column's type as it is in .schema(…), and cast in the query",
        ) from None


def _address_fields(columns: Mapping[str, str]) -> Sequence[pa.Field]:
    return [pa.field(name, _ADDRESS_TYPES[held]) for name, held in columns.items()]


def _address(held: str, queue: str, page: QueuePage) -> pa.Array:
    count = page.rows.num_rows
    if held == ROW_INDEX:
        return pa.array(np.arange(page.first, page.first + count, dtype=np.int64))
    return pa.repeat(pa.scalar(queue if held == QUEUE_NAME else page.partition, _ADDRESS_TYPES[held]), count)


def _as_json(values: pa.Array) -> pa.Array:
    # Value by value: nobody who asks for opaque values is after speed, and Arrow writes no JSON. A map is a list of
    # its pairs, because its keys may be anything.
    texts = [None if value is None else _json(value) for value in values.to_pylist()]
    return pa.array(texts, pa.binary())


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_json_value).encode()


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.date):
        return value.isoformat()
    return str(value)
