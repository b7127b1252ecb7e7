"""Changes as rows with change columns: those of Spark and Delta, or those of Tablestore. Pure functions."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import OptionError, SchemaError
from headrace.tables.changes import ChangeOp, Changes
from headrace.tables.schema import TableSchema
from headrace.types import parse_type, type_name

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
CHANGE_COLUMNS = pa.schema(
    [
        pa.field(CHANGE_TYPE, pa.string()),
        pa.field(COMMIT_VERSION, pa.int64()),
        pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC")),
    ]
)
_CHANGE_TYPE_OF = {
    ChangeOp.BASE: "insert",
    ChangeOp.INSERT: "insert",
    ChangeOp.UPSERT: "insert",
    ChangeOp.REPLACE: "update_postimage",
    ChangeOp.UPDATE: "update_postimage",
    ChangeOp.DELETE: "delete",
    ChangeOp.PREIMAGE: "update_preimage",
}
RECORD_TYPE, RECORD_TIMESTAMP, COLUMN_TYPE_PREFIX = (
    "__ots_record_type__",
    "__ots_record_timestamp__",
    "__ots_column_type_",
)
_RECORD_TYPE_OF = {
    ChangeOp.BASE: "PUT",
    ChangeOp.INSERT: "PUT",
    ChangeOp.REPLACE: "PUT",
    ChangeOp.UPDATE: "UPDATE",
    ChangeOp.UPSERT: "UPDATE",
    ChangeOp.DELETE: "DELETE",
}


class Shape(ABC):
    """Converts changes into rows. ``schema`` is the schema of the rows; all fields are nullable."""

    schema: pa.Schema

    @abstractmethod
    def rows(self, changes: Changes) -> pa.RecordBatch:
        """Return the changes as rows of `schema`."""


class ChangeShape(Shape):
    """The table's columns, then `_change_type`, `_commit_version` and `_commit_timestamp`.

    Args:
        table: the table's columns.
        wanted: the names of the columns to return, in order; None is all columns.
        pre_images: return `update_preimage` rows.
    """

    def __init__(self, table: TableSchema, wanted: Sequence[str] | None = None, *, pre_images: bool = True) -> None:
        clash = sorted(set(table.names) & set(CHANGE_COLUMNS.names))
        if clash:
            raise SchemaError(
                "the table has a column with the name of a change column",
                received=", ".join(clash),
                remedy="rename the column, or read the table through format tablestore",
            )
        every = pa.schema([pa.field(c.name, c.type) for c in table.columns] + list(CHANGE_COLUMNS))
        known = set(every.names)
        for name in wanted or ():
            if name not in known:
                raise SchemaError("the stream has no such column", received=repr(name), valid=every.names)
        self.schema = every if wanted is None else pa.schema([every.field(name) for name in wanted])
        self.pre_images = pre_images

    def rows(self, changes: Changes) -> pa.RecordBatch:
        if not self.pre_images:
            changes = changes.without_preimages()
        columns: list[pa.Array] = []
        for name in self.schema.names:
            if name == CHANGE_TYPE:
                columns.append(_names_of(changes.ops, _CHANGE_TYPE_OF))
            elif name == COMMIT_VERSION:
                columns.append(changes.versions)
            elif name == COMMIT_TIMESTAMP:
                columns.append(changes.timestamps)
            else:
                columns.append(changes.rows.column(name))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class TablestoreShape(Shape):
    """The columns of the vendor's connector; docs/tablestore.md has the rules.

    `__ots_record_type__` is PUT, UPDATE or DELETE. `__ots_record_timestamp__` is the commit time in µs, 0 for base
    data. Each column of the catalog follows, with a column `__ots_column_type_<column>`: PUT for a written cell,
    DELETE_ALL_VERSION for a removed cell, null for an unchanged cell and for key columns.

    Args:
        table: the columns of the table.
        catalog: the columns to return and their types.
    """

    def __init__(self, table: TableSchema, catalog: pa.Schema) -> None:
        self._table = table
        self._catalog = catalog
        fields = [pa.field(RECORD_TYPE, pa.string()), pa.field(RECORD_TIMESTAMP, pa.int64())]
        for field in catalog:
            fields += [field, pa.field(COLUMN_TYPE_PREFIX + field.name, pa.string())]
        self.schema = pa.schema(fields)

    def rows(self, changes: Changes) -> pa.RecordBatch:
        changes = changes.without_preimages()
        count = changes.num_rows
        updates = pc.is_in(changes.ops, pa.array([ChangeOp.UPDATE, ChangeOp.UPSERT], pa.int8()))
        deletes = pc.equal(changes.ops, pa.scalar(int(ChangeOp.DELETE), pa.int8()))
        some_updates, some_deletes = pc.any(updates, min_count=0).as_py(), pc.any(deletes, min_count=0).as_py()
        times = changes.timestamps.cast(pa.int64())
        base = pc.equal(changes.ops, pa.scalar(int(ChangeOp.BASE), pa.int8()))
        if pc.any(base, min_count=0).as_py():
            times = pc.if_else(base, pa.scalar(0, pa.int64()), times)
        columns: list[pa.Array] = [_names_of(changes.ops, _RECORD_TYPE_OF), times]
        for field in self._catalog:
            values, is_key = self._cells(changes, field), field.name in self._table.primary_key
            put = _constant("PUT", count)
            nothing = pa.nulls(count, pa.string())
            if is_key or field.name not in self._table:
                columns += [values, nothing]
                continue
            present = pc.is_valid(changes.rows.column(field.name))
            kind = pc.if_else(present, put, nothing)
            if some_updates:
                written = _written(changes, field.name)
                left_alone = pc.and_(updates, pc.invert(written))
                removed = pc.and_(pc.and_(updates, written), pc.invert(present))
                kind = pc.if_else(removed, _constant("DELETE_ALL_VERSION", count), kind)
                kind = pc.if_else(left_alone, nothing, kind)
                values = pc.if_else(left_alone, pa.scalar(None, field.type), values)
            if some_deletes:
                kind = pc.if_else(deletes, nothing, kind)
                values = pc.if_else(deletes, pa.scalar(None, field.type), values)
            columns += [values, kind]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _cells(self, changes: Changes, field: pa.Field) -> pa.Array:
        """Return a column in the catalog's type; values that do not fit become null, as in the connector."""
        if field.name not in self._table:
            return pa.nulls(changes.num_rows, field.type)
        values = changes.rows.column(field.name)
        if values.type == field.type:
            return values
        whole, real = pa.types.is_integer, pa.types.is_floating
        if whole(values.type) and whole(field.type):
            limits = np.iinfo(field.type.to_pandas_dtype())
            low, high = pa.scalar(int(limits.min)), pa.scalar(int(limits.max))
            wide = values.cast(pa.int64())
            fits = pc.and_(pc.greater_equal(wide, low), pc.less_equal(wide, high))
            return pc.if_else(fits, wide, pa.scalar(None, pa.int64())).cast(field.type)
        if (whole(values.type) or real(values.type)) and real(field.type):
            return values.cast(field.type, safe=False)
        return pa.nulls(changes.num_rows, field.type)


def parse_catalog(text: str) -> pa.Schema:
    """Parse a Tablestore catalog, ``{"columns": {name: {"type": type name}}}``; other keys are ignored.

    Raises:
        OptionError: the text is not JSON, or has another form.
    """
    valid = '{"columns": {"UserId": {"type": "string"}, "price": {"type": "double"}}}'
    try:
        catalog = json.loads(text)
        columns = catalog["columns"]
        pairs = [(name, spec["type"]) for name, spec in columns.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise OptionError("option catalog is not a valid catalog", received=repr(text[:200]), valid=valid) from None
    if not pairs:
        raise OptionError("option catalog has no columns", valid=valid)
    fields = []
    for name, kind in pairs:
        if not isinstance(kind, str):
            raise OptionError(f"column {name!r} of option catalog has no type name", received=repr(kind), valid=valid)
        fields.append(pa.field(name, parse_type(kind)))
    return pa.schema(fields)


def checked_catalog(catalog: pa.Schema, table: TableSchema) -> pa.Schema:
    """Return the catalog; raise `SchemaError` if a key column has a type that cannot represent its values."""
    for field in catalog:
        if field.name in table.primary_key:
            stored = table.column(field.name).type
            if field.type != stored and not (pa.types.is_integer(stored) and pa.types.is_primitive(field.type)):
                raise SchemaError(
                    f"key column {field.name!r} of option catalog has another type than in the table",
                    received=type_name(field.type),
                    valid=type_name(stored),
                )
    return catalog


@cache
def _name_table(names: tuple[tuple[int, str], ...]) -> pa.StringArray:
    table: list[str | None] = [None] * (max(code for code, _ in names) + 1)
    for code, name in names:
        table[code] = name
    return pa.array(table, pa.string())


@cache
def _constants(text: str) -> pa.StringArray:
    return pa.array([text], pa.string()).take(pa.array(np.zeros(65536, np.int8)))


def _constant(text: str, count: int) -> pa.StringArray:
    """Return one text ``count`` times. Long runs of one kind of change are common."""
    if count <= 65536:
        return _constants(text).slice(0, count)
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int8)))


def _names_of(ops: pa.Int8Array, names: dict[ChangeOp, str]) -> pa.StringArray:
    if len(ops):
        extremes = pc.min_max(ops)
        if extremes["min"] == extremes["max"]:
            return _constant(names[ChangeOp(extremes["min"].as_py())], len(ops))
    return _name_table(tuple((int(op), name) for op, name in names.items())).take(ops)


def _written(changes: Changes, column: str) -> pa.BooleanArray:
    cells = None if changes.written is None else changes.written.get(column)
    if cells is None:
        return pa.array(np.ones(changes.num_rows, np.bool_))
    return pc.fill_null(cells, True)
