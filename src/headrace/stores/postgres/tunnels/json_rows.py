"""Changes of several tables as changes of one table, whose rows are JSON. No I/O.

The one table has a row for each row of the tables: the names of its schema and table, its key and the whole row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tables.json_forms import UNAVAILABLE, JsonForm
from headrace.model.tables.schema import TableSchema
from headrace.rows.json_texts import json_texts, objects
from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.schemas import PgColumn, TableLayout
from headrace.stores.postgres.tunnels.table_images import Ops, TableImages
from headrace.wire.pgoutput.messages import Truncation

SCHEMA: Final = TableSchema.of(
    {"schema": "string", "table": "string", "key": "string", "row": "string"}, ["schema", "table", "key"]
)
"""The columns of the one table; ``key`` and ``row`` are JSON objects."""
_UNAVAILABLE: Final = f'"{UNAVAILABLE}"'
_MILLISECONDS: Final = 3
_LAST_TIME: Final = "24:00:00"
_DAY: Final = 86_400_000_000
_DIGITS: Final = re.compile(r"\((\d)\)")


class JsonTable(NamedTuple):
    """One of the tables of a tunnel.

    Attributes:
        layout: its columns in the catalog.
        form: the form of its rows.
        key: the columns of the primary key → the names in keys, which they had when the tunnel was created.
    """

    layout: TableLayout
    form: JsonForm
    key: Mapping[str, str]


def base_rows(
    table_name: TableName, columns: Mapping[str, tuple[str, pa.Array]], count: int, table: JsonTable
) -> pa.RecordBatch:
    """Return rows of a table as rows of the one table.

    Args:
        table_name: the name of the table when the rows were read.
        columns: the columns by their present names, with their names when the rows were read.
        count: the number of rows.
    """
    texts = _json_columns({name: values for name, (_, values) in columns.items()}, table)
    rows = objects({columns[name][0]: text for name, text in texts.items()}, count)
    return _rows(table_name, _keys(texts, count, table), rows)


def as_changes(piece: TableImages, ops: Ops, table: JsonTable) -> Changes:
    """Return images that are changes of a table as changes of the one table."""
    images, names = piece.images, list(piece.places)
    if not table.form.debezium:
        piece.check_unchanged()
    # The columns and names that the table had at that time, so that a repeated read has the same texts after a change
    # of the table.
    columns = _json_columns(dict(zip(names, piece.columns(names), strict=True)), table)
    keys = _keys(columns, len(images), table)
    for name, place in piece.places.items():
        unchanged = images.unchanged(place)
        if unchanged is not None:
            columns[name] = pc.if_else(pa.array(unchanged), _UNAVAILABLE, columns[name])
    then = {images.relation.columns[piece.places[name]].name: text for name, text in columns.items()}
    rows = objects(then, len(images))
    if not table.form.debezium and (ops == ChangeOp.DELETE).any():
        rows = pc.if_else(pa.array(ops == ChangeOp.DELETE), pa.scalar(None, pa.string()), rows)
    # The name that the table had at that time.
    return piece.with_rows(_rows(TableName(images.relation.schema, images.relation.name), keys, rows), ops)


def truncated(truncation: Truncation) -> pa.RecordBatch:
    """Return the row of a TRUNCATE, which has only the names of its table."""
    name = TableName(truncation.relation.schema, truncation.relation.name)
    return _rows(name, pa.nulls(1, pa.string()), pa.nulls(1, pa.string()))


def _keys(columns: Mapping[str, pa.StringArray], count: int, table: JsonTable) -> pa.StringArray:
    """Return the keys of rows: the same texts under each name of their columns."""
    return objects({table.key[name]: columns[name] for name in table.layout.primary_key}, count)


def _rows(name: TableName, keys: pa.StringArray, rows: pa.StringArray) -> pa.RecordBatch:
    constants = [pa.repeat(pa.scalar(text), len(rows)) for text in (name.schema, name.table)]
    return pa.RecordBatch.from_arrays([*constants, keys, rows], schema=SCHEMA.changes)


def _json_columns(values: Mapping[str, pa.Array], table: JsonTable) -> dict[str, pa.StringArray]:
    form = table.form
    return {
        name: json_texts(
            _debezium_time(array, table.layout.column(name)) if form.debezium else array,
            form,
        )
        for name, array in values.items()
        if name in table.layout.schema
    }


def _debezium_time(values: pa.Array, column: PgColumn) -> pa.Array:
    """Return times of day, and timestamps of up to three digits, as the numbers that Debezium writes for them.

    A time of day is a text in headrace. Other values stay as they are.
    """
    if column.is_array:
        return values
    if column.base == "time" and values.type == pa.string():
        # 24:00:00 is a valid time in PostgreSQL, and not in Arrow.
        last = pc.equal(values, _LAST_TIME)
        # Arrow reads timestamps and not times of day.
        moments = pc.binary_join_element_wise("1970-01-01", pc.if_else(last, "00:00:00", values), " ")
        times = moments.cast(pa.timestamp("us")).view(pa.int64())
        numbers, digits = pc.if_else(last, _DAY, times), _DIGITS.search(column.limited or "")
        return pc.divide(numbers, 1000) if digits and int(digits[1]) <= _MILLISECONDS else numbers
    if column.base == "timestamp" and values.type == pa.timestamp("us"):
        digits_kept = column.time_digits
        if digits_kept is not None and digits_kept <= _MILLISECONDS:
            # The values are whole milliseconds.
            return pc.divide(values.view(pa.int64()), 1000)
    return values
