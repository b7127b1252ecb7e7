"""The columns of Delta tables in headrace's types, and back. No I/O.

The primary key is the table property `headrace.primaryKey`, a JSON list of columns. Delta Lake itself has no keys.
Property `headrace.preImages` is the table's option of that name.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headrace.model.tables.column_limits import check_columns
from headrace.model.tables.schema import TableSchema, parse_columns
from headrace_lake.column_checks import check_columns_in_files
from headrace_lake.delta.actions import WRITES_VECTORS, is_on
from headrace_lake.primary_keys import PRIMARY_KEY, key_text, schema_with_key

PRE_IMAGES = "headrace.preImages"


def check_schema(schema: TableSchema) -> None:
    """Raise `SchemaError` if a Delta table cannot have these columns."""
    check_columns(schema)
    check_columns_in_files(schema, "Delta Lake")


def properties_of(schema: TableSchema, *, pre_images: bool, deletion_vectors: bool) -> dict[str, str]:
    """Return the table properties of a new table."""
    properties = {PRIMARY_KEY: key_text(schema), PRE_IMAGES: text_of(pre_images)}
    return properties | ({WRITES_VECTORS: text_of(True)} if deletion_vectors else {})


def text_of(flag: bool) -> str:
    """Return a boolean as a table property."""
    return "true" if flag else "false"


def keeps_pre_images(properties: Mapping[str, str | None]) -> bool:
    """Return whether the changes of a table have old rows: so do those of tables of other programs."""
    return is_on(properties, PRE_IMAGES, default=True)


def table_schema(name: str, fields: pa.Schema, properties: Mapping[str, str | None]) -> TableSchema:
    """Return the schema of a table, with the key of its properties.

    Args:
        name: the table's name, for messages.
        fields: the columns, as the log has them.

    Raises:
        SchemaError: a column has a type that headrace does not have.
        StoreDamagedError: the property with the key is invalid.
    """
    return schema_with_key(
        parse_columns(fields),
        properties.get(PRIMARY_KEY),
        name=name,
        missing=f"Delta table {name!r} does not have the property {PRIMARY_KEY}",
        remedy=f'set it if no two rows have the same key and no key is null: {PRIMARY_KEY} = ["id"]',
    )
