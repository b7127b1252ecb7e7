"""The columns of Delta tables in headrace's types, and back. No I/O.

The primary key is the table property `headrace.primaryKey`, a JSON list of columns. Delta Lake itself has no keys.
Property `headrace.preImages` is the table's option of that name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import pyarrow as pa

from headrace.errors import SchemaError, StoreDamagedError
from headrace.model.tables.column_limits import check_columns
from headrace.model.tables.schema import KeylessSchema, TableSchema, parse_columns
from headrace.model.types import type_name
from headrace_lake.delta.actions import WRITES_VECTORS

PRIMARY_KEY, PRE_IMAGES = "headrace.primaryKey", "headrace.preImages"


def check_schema(schema: TableSchema) -> None:
    """Raise `SchemaError` if a Delta table cannot have these columns."""
    check_columns(schema)
    _check_names(schema.names)
    for column in schema.columns:
        _check_type(column.name, column.type)


def _check_type(column: str, kind: pa.DataType) -> None:
    if pa.types.is_duration(kind):
        raise SchemaError(
            f"column {column!r} has a type that Delta Lake does not have",
            received=type_name(kind),
            remedy="store the interval as a long, in microseconds",
        )
    inner = [kind.field(n) for n in range(kind.num_fields)]
    if pa.types.is_struct(kind):
        _check_names([field.name for field in inner])
    for field in inner:
        _check_type(column, field.type)


def _check_names(names: Iterable[str]) -> None:
    spellings: dict[str, str] = {}
    for name in names:
        other = spellings.setdefault(name.lower(), name)
        if other != name:
            raise SchemaError(
                "two columns of a Delta table cannot differ in upper and lower case only",
                received=f"{other!r}, {name!r}",
                remedy="rename one of them",
            )
        if "\0" in name or not name:
            raise SchemaError("a column of a Delta table cannot have this name", received=repr(name))


def properties_of(schema: TableSchema, *, pre_images: bool, deletion_vectors: bool) -> dict[str, str]:
    """Return the table properties of a new table."""
    key = json.dumps(list(schema.primary_key), ensure_ascii=False)
    properties = {PRIMARY_KEY: key, PRE_IMAGES: text_of(pre_images)}
    return properties | ({WRITES_VECTORS: text_of(True)} if deletion_vectors else {})


def text_of(flag: bool) -> str:
    """Return a boolean as a table property."""
    return "true" if flag else "false"


def keeps_pre_images(properties: Mapping[str, str | None]) -> bool:
    """Return whether the changes of a table have old rows: so do those of tables of other programs."""
    return properties.get(PRE_IMAGES) != "false"


def table_schema(name: str, fields: pa.Schema, properties: Mapping[str, str | None]) -> TableSchema:
    """Return the schema of a table, with the key of its properties.

    Args:
        name: the table's name, for messages.
        fields: the columns, as the log has them.

    Raises:
        SchemaError: a column has a type that headrace does not have.
        StoreDamagedError: the property with the key is invalid.
    """
    columns = parse_columns(fields)
    text = properties.get(PRIMARY_KEY)
    if text is None:
        return KeylessSchema(
            columns,
            (),
            f"Delta table {name!r} does not have the property {PRIMARY_KEY}",
            f'set it if no two rows have the same key and no key is null: {PRIMARY_KEY} = ["id"]',
            appends=True,
        )
    try:
        return TableSchema(columns, tuple(json.loads(text)))
    except (ValueError, TypeError) as error:
        raise StoreDamagedError(
            f"the property {PRIMARY_KEY} of table {name!r} is not a list of columns", received=f"{text[:200]}: {error}"
        ) from None
