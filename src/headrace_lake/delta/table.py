"""A Delta table as a table of headrace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import OptionError, SchemaError, UnsupportedError
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import KeyRange, Where, parse_where
from headrace.model.tables.options import TableOptions
from headrace.model.tables.schema import KeyValue, TableSchema, parse_columns
from headrace.options.names import check_names
from headrace.ports import Rows, Table, TableDescription, TrimReport
from headrace.ports.arguments import flag
from headrace.rows import to_arrow
from headrace.rows.by_position import aligned, repeats
from headrace.rows.conditions import check_scan_sizes, typed_key, typed_range
from headrace.rows.fields import with_fields
from headrace_lake import data_files
from headrace_lake.delta import changes, reading
from headrace_lake.delta.actions import WRITES_VECTORS, Actions
from headrace_lake.delta.changes import Planner
from headrace_lake.delta.commits import SyncedLog, commit
from headrace_lake.delta.schemas import PRE_IMAGES, keeps_pre_images, text_of
from headrace_lake.delta.snapshot import Snapshot
from headrace_lake.folding import TableWrite
from headrace_lake.places import Place
from headrace_lake.scanning import Selection

_DEFAULT = TableOptions()
PARTITION_BY = "partition_by"
"""The option of a new table with its partition columns."""
DELETION_VECTORS = "deletion_vectors"
"""The option of a table: whether deleted rows are written as deletion vectors."""
_PROPERTIES = {"pre_images": PRE_IMAGES, DELETION_VECTORS: WRITES_VECTORS}


def check_options(given: Mapping[str, Any]) -> None:
    """Raise `UnsupportedError` for options of a change log that the log of a Delta table does not have."""
    check_names("a table", given, sorted([*vars(_DEFAULT), PARTITION_BY, DELETION_VECTORS]))
    for name, value in given.items():
        if name in _PROPERTIES:
            flag(value, name)
        elif name not in ("change_log", PARTITION_BY) and value not in (None, getattr(_DEFAULT, name)):
            raise UnsupportedError(
                "the changes of a Delta table are kept as long as its log and its files",
                received=f"{name}={value}",
                remedy="set the properties delta.logRetentionDuration and delta.deletedFileRetentionDuration",
            )


class DeltaTable(Table):
    """A table: a directory with data files and a log.

    Args:
        name: its name in the store.
        directory: its directory.
        log: the state of its log on the disk, the same for all handles of a process.
    """

    def __init__(self, name: str, directory: Place, log: SyncedLog) -> None:
        self.name = name
        self.directory = directory
        self.log = log

    def __repr__(self) -> str:
        return f"DeltaTable({self.name!r})"

    def snapshot(self) -> Snapshot:
        """Return the newest version.

        Raises:
            NotFoundError: the table does not exist.
        """
        return Snapshot(self.name, self.directory)

    def _readable(self) -> Snapshot:
        snapshot = self.snapshot()
        snapshot.check_readable()
        return snapshot

    @property
    def schema(self) -> TableSchema:
        return self.snapshot().schema

    def identity(self) -> str:
        return self.snapshot().id

    # -- writing ------------------------------------------------------------------------------------------

    def put(self, rows: Rows) -> int:
        return self._write(RowChange.PUT, to_arrow(rows, self._keyed(), columns="all"))

    def update(self, rows: Rows, *, keep_nulls: bool = True) -> int:
        schema = self._keyed()
        typed = to_arrow(rows, schema, columns="given")
        if typed.num_columns == len(schema.primary_key):
            raise SchemaError("an update needs a column to set besides the key", received=typed.column_names)
        return self._write(RowChange.UPDATE, typed, keep_nulls=keep_nulls)

    def delete(self, keys: Rows) -> int:
        return self._write(RowChange.DELETE, to_arrow(keys, self._keyed(), columns="keys"))

    def _keyed(self) -> TableSchema:
        schema = self.schema
        schema.check_keyed()
        return schema

    def _write(self, change: RowChange, rows: pa.Table, *, keep_nulls: bool = True) -> int:
        if not rows.num_rows:
            return self.snapshot().version
        planner = Planner([TableWrite(change, rows, keep_nulls)], data_files.PREFIX)
        done: Actions | None = None

        def plan(snapshot: Snapshot) -> Actions:
            nonlocal done
            # An earlier attempt was certainly not committed.
            done = None
            snapshot.check_writable(removes=True)
            done = planner.actions(snapshot)
            return done

        try:
            version = commit(self.name, self.directory, plan, log=self.log)
        except Exception:
            # It may be that only the answer of the commit is lost: what the last attempt has added stays.
            planner.clean(done)
            raise
        planner.clean(done)
        assert version is not None
        return version

    # -- reading ------------------------------------------------------------------------------------------

    def get(self, key: Mapping[str, KeyValue], columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        snapshot = self._readable()
        schema = snapshot.schema
        schema.check_keyed()
        if set(key) != set(schema.primary_key):
            raise SchemaError("a key needs exactly the key columns", received=list(key), valid=schema.primary_key)
        values = typed_key(schema, [key[name] for name in schema.primary_key])
        names = _names(schema, columns)
        fields = pa.schema([schema.arrow.field(name) for name in schema.primary_key])
        keys = pa.table([pa.array([value], each.type) for value, each in zip(values, fields, strict=True)], fields)
        rows: list[dict[str, Any]] = changes.find(snapshot, keys, names).select(names).to_pylist()
        return rows[0] if rows else None

    def get_many(self, keys: Rows, columns: Sequence[str] | None = None) -> pa.Table:
        snapshot = self._readable()
        schema = snapshot.schema
        typed = to_arrow(keys, schema, columns="keys")
        if typed.num_rows and repeats(typed, schema.primary_key):
            raise OptionError("keys of get_many must be different", received=f"{typed.num_rows} keys")
        fields = schema.nullable(_names(schema, columns))
        return aligned(typed, changes.find(snapshot, typed, fields.names), schema.primary_key, fields)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        keys: KeyRange | None = None,
        limit: int | None = None,
        batch_rows: int = 65536,
        read_ahead: bool = True,
    ) -> pa.RecordBatchReader:
        check_scan_sizes(limit, batch_rows)
        snapshot = self._readable()
        schema = snapshot.schema
        names = _names(schema, columns)
        conditions = parse_where(where)
        for condition in conditions:
            schema.column(condition.column)
        selection = Selection(names, typed_range(schema, keys or KeyRange()), conditions)
        fields = pa.schema([schema.arrow.field(name) for name in names])

        def parts() -> Any:
            left = limit
            for rows in reading.scan(snapshot, selection):
                for start in range(0, rows.num_rows, batch_rows):
                    part = rows.slice(start, batch_rows if left is None else min(batch_rows, left))
                    if left is not None:
                        left -= part.num_rows
                    yield with_fields(part, fields) if names else part
                    if left == 0:
                        return

        found = iter(()) if limit == 0 else parts()
        return pa.RecordBatchReader.from_batches(fields, found)

    def splits(self, count: int, *, size: int | None = None) -> list[KeyRange]:
        return reading.ranges(self._readable(), count)

    # -- columns, options ---------------------------------------------------------------------------------

    def add_columns(self, columns: Mapping[str, str | pa.DataType]) -> None:
        self.alter(Alteration(added=parse_columns(columns)))

    def alter(self, alteration: Alteration) -> None:
        def plan(snapshot: Snapshot) -> Actions:
            snapshot.check_writable(removes=False)
            return Actions(definition=snapshot.changed(snapshot.altered(alteration).schema))

        commit(self.name, self.directory, plan, log=self.log)

    def set_options(self, **changes: Any) -> TableOptions:
        check_options(changes)
        wanted = {key: text_of(changes[name]) for name, key in _PROPERTIES.items() if changes.get(name) is not None}

        def plan(snapshot: Snapshot) -> Actions | None:
            snapshot.check_writable(removes=False)
            if all(snapshot.properties.get(key) == value for key, value in wanted.items()):
                return None
            return Actions(definition=snapshot.changed(properties=wanted))

        if wanted:
            commit(self.name, self.directory, plan, log=self.log)
        return self._options(self.snapshot())

    def _options(self, snapshot: Snapshot) -> TableOptions:
        return TableOptions(pre_images=keeps_pre_images(snapshot.properties), retention_seconds=None)

    def describe(self) -> TableDescription:
        snapshot = self._readable()
        counts = [file.rows for file in snapshot.files]
        rows = sum(count for count in counts if count is not None) if None not in counts else None
        return TableDescription(self.name, snapshot.schema, self._options(snapshot), rows, ())

    def trim(self, *, before: Mapping[int, int] | None = None, cut_tunnels: bool = False) -> TrimReport:
        return TrimReport(0, 0)


def _names(schema: TableSchema, columns: Sequence[str] | None) -> list[str]:
    return [schema.column(name).name for name in (schema.names if columns is None else columns)]
