"""Changes of several tables as changes of one table, whose rows are JSON. No I/O.

The one table has a row for each row of the tables: the names of its schema and table, its key and the whole row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tables.json_forms import UNAVAILABLE, JsonForm
from headrace.model.tables.schema import TableSchema
from headrace.rows.json_texts import json_texts, objects
from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.schemas import PgColumn, TableLayout
from headrace.stores.postgres.tunnels.pages import (
    ChangedImages,
    TableColumns,
    Visibility,
    Window,
    changed_images,
    check_unchanged,
    columns_of,
    concatenated,
)
from headrace.wire.pgoutput.messages import Images

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
        name: its name when the tunnel was created.
        layout: its columns in the catalog.
        columns: its columns in the log.
        form: the form of its rows.
        key: the columns of the primary key → the names in keys, which they had when the tunnel was created.
    """

    name: TableName
    layout: TableLayout
    columns: TableColumns
    form: JsonForm
    key: Mapping[str, str]


class _Part(NamedTuple):
    """Changes of one table, and the numbers of their messages."""

    changes: Changes
    messages: npt.NDArray[np.int64]


def window(
    images: Sequence[Images], tables: Mapping[int, JsonTable], start: int, end: int, in_base: Visibility | None
) -> Window:
    """Return the changes of all tables in the order of the log; see `headrace.stores.postgres.tunnels.pages.window`.

    Args:
        tables: the tables of the images, by their oids.
    """
    parts = []
    for found in images:
        table = tables[found.relation.oid]
        changed = changed_images(found, table.columns, start, end, in_base)
        if len(changed.ops):
            parts.append(_part(changed, table))
    changes = concatenated([part.changes for part in parts], SCHEMA)
    if len({found.relation.oid for found in images}) > 1 and len(parts) > 1:
        # An old row and the new one have the same message, and stay together.
        order = np.argsort(np.concatenate([part.messages for part in parts]), kind="stable")
        changes = changes.take(pa.array(order))
    return Window(start, end, changes)


def base_rows(columns: Mapping[str, tuple[str, pa.Array]], count: int, table: JsonTable) -> pa.RecordBatch:
    """Return rows of a table as rows of the one table.

    Args:
        columns: the columns by their present names, with their names when the rows were read.
        count: the number of rows.
    """
    texts = _json_columns({name: values for name, (_, values) in columns.items()}, table)
    rows = objects({columns[name][0]: text for name, text in texts.items()}, count)
    return _rows(table.name, _keys(texts, count, table), rows)


def _part(changed: ChangedImages, table: JsonTable) -> _Part:
    images, ops = changed
    if not table.form.debezium:
        check_unchanged(images, table.columns)
    # The columns and names that the table had at that time, so that a repeated read has the same texts after a change
    # of the table.
    places = table.columns.places(images)
    names = list(places)
    columns = _json_columns(dict(zip(names, columns_of(images, table.columns, names), strict=True)), table)
    keys = _keys(columns, len(images), table)
    for name, place in places.items():
        unchanged = images.unchanged(place)
        if unchanged is not None:
            columns[name] = pc.if_else(pa.array(unchanged), _UNAVAILABLE, columns[name])
    rows = objects({images.relation.columns[places[name]].name: text for name, text in columns.items()}, len(images))
    if not table.form.debezium and (ops == ChangeOp.DELETE).any():
        rows = pc.if_else(pa.array(ops == ChangeOp.DELETE), pa.scalar(None, pa.string()), rows)
    changes = Changes(
        # The name that the table had at that time.
        _rows(TableName(images.relation.schema, images.relation.name), keys, rows),
        pa.array(ops),
        pa.array(images.lsns),
        pa.array(images.times).view(pa.timestamp("us", tz="UTC")),
        transactions=pa.array(images.xids),
    )
    return _Part(changes, images.messages)


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
        found, digits = pc.if_else(last, _DAY, times), _DIGITS.search(column.limited or "")
        return pc.divide(found, 1000) if digits and int(digits[1]) <= _MILLISECONDS else found
    if column.base == "timestamp" and values.type == pa.timestamp("us"):
        digits_kept = column.time_digits
        if digits_kept is not None and digits_kept <= _MILLISECONDS:
            # The values are whole milliseconds.
            return pc.divide(values.view(pa.int64()), 1000)
    return values
