"""Changes of several tables as change events of Debezium: its envelope, in JSON without schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace
from headrace.errors import SchemaError
from headrace.model.tables.change_columns import CHANGE_COLUMNS, CHANGE_TYPE, Shape
from headrace.model.tables.changes import DELETES, ChangeOp, Changes
from headrace.model.tables.json_forms import Origin

_NAMES: Final = {
    ChangeOp.BASE: "r",
    ChangeOp.INSERT: "c",
    ChangeOp.UPSERT: "c",
    ChangeOp.REPLACE: "u",
    ChangeOp.UPDATE: "u",
    ChangeOp.DELETE: "d",
    ChangeOp.DELETE_WITH_ROW: "d",
}
_OP_NAMES: Final = [_NAMES.get(op, "") for op in ChangeOp]
_SNAPSHOT: Final = ["true" if op is ChangeOp.BASE else "false" for op in ChangeOp]
_COLUMNS: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("key", pa.string()),
        pa.field("value", pa.string()),
        *(field for field in CHANGE_COLUMNS if field.name != CHANGE_TYPE),
    ]
)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


class DebeziumShape(Shape):
    """One event for each change: `topic`, `key` and `value`, then `_commit_version` and `_commit_timestamp`.

    An update with its pre-image is one event. All times of an event are the time of its commit, so a repeated batch has
    the same events; of base data, the time of the snapshot.

    Args:
        origin: the database.
        prefix: the beginning of topics, before the names of schema and table; the name of the database if None.
        wanted: the names of the columns of the rows, in order; None for all.
        pre_images: include the row before an update.
        tombstones: add a row without a value after each delete.

    Raises:
        SchemaError: a wanted column does not exist.
    """

    def __init__(
        self,
        origin: Origin,
        prefix: str | None,
        wanted: Sequence[str] | None = None,
        *,
        pre_images: bool = True,
        tombstones: bool = False,
    ) -> None:
        for name in wanted or ():
            if name not in _COLUMNS.names:
                raise SchemaError("no such column in the stream", received=repr(name), valid=_COLUMNS.names)
        self.schema = _COLUMNS if wanted is None else pa.schema([_COLUMNS.field(name) for name in wanted])
        self._origin = origin
        self._prefix = prefix or origin.database
        self._pre_images = pre_images
        self._tombstones = tombstones

    def rows(self, changes: Changes) -> pa.RecordBatch:
        if not self._pre_images:
            changes = changes.without_preimages()
        ops = changes.ops.to_numpy()
        old = ops == ChangeOp.PREIMAGE
        events = np.flatnonzero(~old)
        columns = dict(zip(_COLUMNS.names, self._columns(changes, ops, old, events), strict=True))
        rows = pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
        deletes = np.isin(ops[events], DELETES)
        return self._with_tombstones(rows, deletes) if self._tombstones and deletes.any() else rows

    def _columns(self, changes: Changes, ops: np.ndarray, old: np.ndarray, events: np.ndarray) -> tuple[pa.Array, ...]:
        kept = changes if len(events) == len(ops) else changes.take(pa.array(events))
        deletes = np.isin(ops[events], DELETES)
        has_old = np.zeros(len(events), np.bool_)
        # The row after a pre-image is its update.
        has_old[events > 0] = old[events[events > 0] - 1]
        rows = changes.rows.column("row")
        before = rows.take(pa.array(np.where(deletes, events, events - 1), mask=~(deletes | has_old)))
        after = pc.if_else(pa.array(deletes), pa.scalar(None, pa.string()), kept.rows.column("row"))
        topics, tables = self._names(kept.rows.column("schema"), kept.rows.column("table"))
        milliseconds = pc.divide(kept.timestamps.cast(pa.int64()), 1000).cast(pa.string())
        ids = kept.transactions
        source = (
            f'"source":{{"version":{_text(headrace.__version__)},'
            f'"connector":{_text(self._origin.connector)},"name":{_text(self._prefix)},"ts_ms":'
        )
        values = pc.binary_join_element_wise(
            '{"before":',
            pc.fill_null(before, "null"),
            ',"after":',
            pc.fill_null(after, "null"),
            "," + source,
            milliseconds,
            ',"snapshot":"',
            pa.array(_SNAPSHOT).take(kept.ops),
            f'","db":{_text(self._origin.database)},"sequence":null,',
            tables,
            ',"txId":',
            "null" if ids is None else ids.cast(pa.string()),
            ',"lsn":',
            kept.versions.cast(pa.string()),
            ',"xmin":null},"op":"',
            pa.array(_OP_NAMES).take(kept.ops),
            '","ts_ms":',
            milliseconds,
            ',"transaction":null}',
            "",
        )
        return topics, kept.rows.column("key"), values, kept.versions, kept.timestamps

    def _names(self, schemas: pa.StringArray, tables: pa.StringArray) -> tuple[pa.StringArray, pa.StringArray]:
        """Return the topics of changes, and the fields ``schema`` and ``table`` of their sources."""
        # Few different ones.
        pairs = pc.binary_join_element_wise(schemas, tables, "\0").dictionary_encode()
        known = [pair.split("\0") for pair in pairs.dictionary.to_pylist()]
        topics = [".".join([self._prefix, *pair]) for pair in known]
        fields = [f'"schema":{_text(schema)},"table":{_text(table)}' for schema, table in known]
        return (
            pa.array(topics, pa.string()).take(pairs.indices),
            pa.array(fields, pa.string()).take(pairs.indices),
        )

    @staticmethod
    def _with_tombstones(rows: pa.RecordBatch, deletes: np.ndarray) -> pa.RecordBatch:
        counts = 1 + deletes
        every = np.repeat(np.arange(len(deletes)), counts)
        tombstone = np.zeros(len(every), np.bool_)
        tombstone[np.cumsum(counts)[deletes] - 1] = True
        found = rows.take(pa.array(every))
        if "value" not in rows.schema.names:
            return found
        place = rows.schema.get_field_index("value")
        values = pc.if_else(pa.array(tombstone), pa.scalar(None, pa.string()), found.column(place))
        return found.set_column(place, rows.schema.field(place), values)
