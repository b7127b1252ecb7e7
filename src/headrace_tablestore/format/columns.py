"""The columns of format ``tablestore``: its catalog, and changes as rows of Tablestore's connector."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import OptionError, SchemaError
from headrace.model.tables.change_columns import Shape, constant, op_names
from headrace.model.tables.changes import DELETES, ChangeOp, Changes
from headrace.model.tables.schema import TableSchema
from headrace.model.types import parse_type, type_name

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
    ChangeOp.DELETE_WITH_ROW: "DELETE",
}


class TablestoreShape(Shape):
    """The columns of the connector's stream (docs/tablestore.md has the rules).

    `__ots_record_type__` is PUT, UPDATE or DELETE. `__ots_record_timestamp__` is the commit time in µs, 0 for base
    data. Then each column of the catalog, followed by `__ots_column_type_<column>`: PUT for a written cell,
    DELETE_ALL_VERSION for a deleted cell, null for an unchanged cell and for key columns.

    Args:
        table: the columns of the table.
        catalog: the columns of the rows and their types.
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
        deletes = pc.is_in(changes.ops, pa.array(DELETES, pa.int8()))
        some_updates, some_deletes = pc.any(updates, min_count=0).as_py(), pc.any(deletes, min_count=0).as_py()
        times = changes.timestamps.cast(pa.int64())
        base = pc.equal(changes.ops, pa.scalar(int(ChangeOp.BASE), pa.int8()))
        if pc.any(base, min_count=0).as_py():
            times = pc.if_else(base, pa.scalar(0, pa.int64()), times)
        columns: list[pa.Array] = [op_names(changes.ops, _RECORD_TYPE_OF), times]
        for field in self._catalog:
            values, is_key = self._cells(changes, field), field.name in self._table.primary_key
            put = constant("PUT", count)
            no_kind = pa.nulls(count, pa.string())
            if is_key or field.name not in self._table:
                columns += [values, no_kind]
                continue
            present = pc.is_valid(changes.rows.column(field.name))
            kind = pc.if_else(present, put, no_kind)
            if some_updates:
                written = _written(changes, field.name)
                unchanged = pc.and_(updates, pc.invert(written))
                deleted = pc.and_(pc.and_(updates, written), pc.invert(present))
                kind = pc.if_else(deleted, constant("DELETE_ALL_VERSION", count), kind)
                kind = pc.if_else(unchanged, no_kind, kind)
                values = pc.if_else(unchanged, pa.scalar(None, field.type), values)
            if some_deletes:
                kind = pc.if_else(deletes, no_kind, kind)
                values = pc.if_else(deletes, pa.scalar(None, field.type), values)
            columns += [values, kind]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _cells(self, changes: Changes, field: pa.Field) -> pa.Array:
        """Return a column's values in the catalog's type. Other values become null, as in the connector."""
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
    """Read a catalog, ``{"columns": {name: {"type": type name}}}``. Other keys are ignored.

    Raises:
        OptionError: the text is not JSON, or has another form.
    """
    valid = '{"columns": {"UserId": {"type": "string"}, "price": {"type": "double"}}}'
    try:
        catalog = json.loads(text)
        columns = catalog["columns"]
        pairs = [(name, spec["type"]) for name, spec in columns.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise OptionError("option catalog cannot be read", received=repr(text[:200]), valid=valid) from None
    if not pairs:
        raise OptionError("option catalog names no column", valid=valid)
    fields = []
    for name, kind in pairs:
        if not isinstance(kind, str):
            raise OptionError(f"option catalog gives column {name!r} no type name", received=repr(kind), valid=valid)
        fields.append(pa.field(name, parse_type(kind)))
    return pa.schema(fields)


def checked_catalog(catalog: pa.Schema, table: TableSchema) -> pa.Schema:
    """Return the catalog after comparing the types of its key columns with the table's.

    Raises:
        SchemaError: the values of a key column cannot have the catalog's type.
    """
    for field in catalog:
        if field.name in table.primary_key:
            actual = table.column(field.name).type
            if field.type != actual and not (pa.types.is_integer(actual) and pa.types.is_primitive(field.type)):
                raise SchemaError(
                    f"option catalog gives key column {field.name!r} another type than the table",
                    received=type_name(field.type),
                    valid=type_name(actual),
                )
    return catalog


def _written(changes: Changes, column: str) -> pa.BooleanArray:
    """Return which changes wrote the column's cell."""
    cells = None if changes.written is None else changes.written.get(column)
    if cells is None:
        return pa.array(np.ones(changes.num_rows, np.bool_))
    return pc.fill_null(cells, True)
