"""Rows of queues in the columns that a query reads: the queue's own columns and the address of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.errors import SchemaError
from headrace.model.queues.columns import QueueSchema
from headrace.model.queues.values import QueuePage
from headrace.model.types import type_name
from headrace.ports import Queue
from headrace.rows.to_reader import as_type, opaque_type

QUEUE_NAME, PARTITION, ROW_INDEX = "queue name", "partition", "row index"
_ADDRESS_TYPES = {QUEUE_NAME: pa.string(), PARTITION: pa.int64(), ROW_INDEX: pa.int64()}


@dataclass(frozen=True)
class AddressColumns:
    """The columns with the address of a row: column name → `QUEUE_NAME`, `PARTITION` or `ROW_INDEX`.

    Columns in ``front`` precede the queue's own columns; columns in ``back`` follow them.
    """

    front: Mapping[str, str]
    back: Mapping[str, str]

    def of(self, part: str) -> frozenset[str]:
        """Return the names of the columns with one part of the address."""
        return frozenset(name for name, content in {**self.front, **self.back}.items() if content == part)


class QueueShape:
    """Converts pages of queues into rows of ``schema``; all columns of ``schema`` are nullable.

    Args:
        rows: the queue's columns.
        address: the columns with the address of a row.
        opaque: return composite values as JSON in binary columns.
        wanted: the columns to return, in this order and with these types; None is all columns.

    Raises:
        SchemaError: two columns have the same name, or a wanted column does not exist.
    """

    def __init__(
        self, rows: pa.Schema, address: AddressColumns, *, opaque: bool = False, wanted: pa.Schema | None = None
    ) -> None:
        self._address = {**address.front, **address.back}
        clash = sorted(
            (set(address.front) | set(rows.names)) & set(address.back) | set(address.front) & set(rows.names)
        )
        if clash:
            raise SchemaError(
                "an option names a column that already exists",
                received=", ".join(clash),
                remedy="choose another name, or leave the option out",
            )
        own = [pa.field(field.name, opaque_type(field.type) if opaque else field.type) for field in rows]
        every = pa.schema([*_address_fields(address.front), *own, *_address_fields(address.back)])
        known = set(every.names)
        for name in () if wanted is None else wanted.names:
            if name not in known:
                raise SchemaError("the queue has no such column", received=repr(name), valid=every.names)
        self.schema = every if wanted is None else wanted

    def rows(self, queue: str, page: QueuePage) -> pa.RecordBatch:
        """Return a page of a queue as rows of ``schema``."""
        columns = []
        for field in self.schema:
            part = self._address.get(field.name)
            values = page.rows.column(field.name) if part is None else _address(part, queue, page)
            columns.append(as_type(values, field))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _address_fields(columns: Mapping[str, str]) -> Sequence[pa.Field]:
    return [pa.field(name, _ADDRESS_TYPES[part]) for name, part in columns.items()]


def _address(part: str, queue: str, page: QueuePage) -> pa.Array:
    count = page.rows.num_rows
    if part == ROW_INDEX:
        return pa.array(np.arange(page.first, page.first + count, dtype=np.int64))
    return pa.repeat(pa.scalar(queue if part == QUEUE_NAME else page.partition, _ADDRESS_TYPES[part]), count)


def common_schema(queues: Sequence[Queue]) -> QueueSchema:
    """Return the columns of queues that are read together; raise `SchemaError` if they differ."""
    schema = queues[0].schema
    for queue in queues[1:]:
        if queue.schema.columns != schema.columns:
            raise SchemaError(
                f"queues {queues[0].name!r} and {queue.name!r} have different columns",
                received=_described(queue.schema),
                valid=_described(schema),
                remedy="read them as two streams and union the columns that you need",
            )
    return schema


def _described(schema: QueueSchema) -> list[str]:
    return [
        f"{column.name} {type_name(column.type)}{'' if column.nullable else ' not null'}" for column in schema.columns
    ]
