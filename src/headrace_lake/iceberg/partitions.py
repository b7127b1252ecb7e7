"""Partitions of Iceberg tables: columns, or functions of them, by which new files are divided. No I/O.

A table can get another partition spec at any time: its files keep theirs. A file need not have the column by which it
is divided. pyiceberg computes the functions of one value; of a column they are computed once for each different value.
Files are in the directory of all data files: the metadata has their partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, TimeTransform, TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.tables.schema import TableSchema
from headrace_lake.partitions import divided

_FIRST_FIELD = 1000
"""The first number of a partition field, by Iceberg's definition."""
_TYPES = (IntegerType, LongType, StringType, DateType, TimestampType, TimestamptzType)
_TRANSFORMS = (IdentityTransform, BucketTransform, TruncateTransform, TimeTransform)


def spec_of(schema: Schema, columns: Sequence[str]) -> PartitionSpec:
    """Return the spec of a table that is partitioned by columns."""
    return PartitionSpec(
        *(
            PartitionField(
                source_id=schema.find_field(name).field_id,
                field_id=_FIRST_FIELD + place,
                transform=IdentityTransform(),
                name=name,
            )
            for place, name in enumerate(columns)
        )
    )


def texts_of(spec: PartitionSpec, schema: Schema) -> tuple[str, ...]:
    """Return the fields of a spec for people: columns, and functions of columns."""
    return tuple(
        name if isinstance(field.transform, IdentityTransform) else f"{field.transform}({name})"
        for field in spec.fields
        for name in [_source(field, schema).name]
    )


def check_spec(name: str, spec: PartitionSpec, schema: Schema) -> None:
    """Raise `UnsupportedError` if headrace does not divide the rows of a table so."""
    for field in spec.fields:
        source = _source(field, schema)
        known = isinstance(field.transform, _TRANSFORMS) and field.transform.can_transform(source.field_type)
        if not known or not isinstance(source.field_type, _TYPES):
            raise _refused(name, field, source)


def constants(
    name: str, record: Record, spec: PartitionSpec, schema: Schema, columns: TableSchema
) -> dict[str, pa.Scalar]:
    """Return the values of the columns by which a file is divided: it need not have them.

    Args:
        name: the name of the table.
        record: the partition of the file.
        spec: its spec.

    Raises:
        UnsupportedError: a column has a type of which headrace does not know the values.
    """
    found = {}
    for place, field in enumerate(spec.fields):
        # A column may have been dropped since.
        if isinstance(field.transform, IdentityTransform) and schema.find_column_name(field.source_id) is not None:
            source = _source(field, schema)
            if not isinstance(source.field_type, _TYPES):
                raise _refused(name, field, source)
            value = pa.scalar(record[place])
            kind = columns.column(source.name).type
            found[source.name] = (value.cast(pa.int32()) if pa.types.is_date32(kind) else value).cast(kind)
    return found


def partitions_of(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> Iterator[tuple[Record, pa.Table]]:
    """Yield the partitions of rows, with the rows of each.

    Raises:
        SchemaError: a partition has no value for a row.
    """
    columns = [_transformed(rows.column(_source(field, schema).name), field, schema) for field in spec.fields]
    for values, part in divided(rows, columns):
        yield Record(*values), part


def _source(field: PartitionField, schema: Schema) -> NestedField:
    return schema.find_field(field.source_id)


def _refused(name: str, field: PartitionField, source: NestedField) -> UnsupportedError:
    return UnsupportedError(
        f"headrace does not support how Iceberg table {name!r} is partitioned",
        received=f"{field.transform} of column {source.name!r}, {source.field_type}",
        valid="identity, bucket, truncate, year, month, day or hour of an int, long, string, date or timestamp",
    )


def _transformed(values: pa.ChunkedArray, field: PartitionField, schema: Schema) -> pa.ChunkedArray:
    """Return the values of a partition field, in Iceberg's form: days and microseconds are numbers."""
    transform, kind = field.transform, _source(field, schema).field_type
    if isinstance(transform, TimeTransform) and pa.types.is_timestamp(values.type):
        # Other parts are functions of the hour, of which there are fewer.
        values = pc.floor_temporal(values, unit="hour")
    numbers = _numbers(values, kind)
    if isinstance(transform, IdentityTransform):
        return numbers
    function: Callable[[Any], Any] = transform.transform(kind)
    encoded = numbers.combine_chunks().dictionary_encode()
    result = numbers.type if isinstance(transform, TruncateTransform) else pa.int64()
    try:
        found = pa.array([function(value) for value in encoded.dictionary.to_pylist()], result)
    except (OverflowError, pa.ArrowInvalid) as error:
        raise SchemaError(
            f"a value of column {_source(field, schema).name!r} has no partition",
            received=f"{field.transform}: {error}",
            remedy="write a value that the partitions of the table have",
        ) from None
    return pa.chunked_array([found.take(encoded.indices)])


def _numbers(values: pa.ChunkedArray, kind: IcebergType) -> pa.ChunkedArray:
    if isinstance(kind, DateType):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if isinstance(kind, TimestampType | TimestamptzType) else values
