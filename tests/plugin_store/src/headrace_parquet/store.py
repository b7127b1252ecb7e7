"""The store: a manifest that names the file of each table, and is replaced as a whole.

A write reads the table's file, writes another one, and replaces the manifest, under a lock of the directory. So all
tables and the markers of jobs change at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.errors import AlreadyExistsError, NotFoundError, PublicationError, SchemaError, UnsupportedError
from headrace.model.own_names import of_users
from headrace.model.tables.changes import RowChange
from headrace.model.tables.column_limits import check_columns
from headrace.model.tables.conditions import OPERATORS, KeyRange, Where, parse_where
from headrace.model.tables.options import TableOptions, check_option_names
from headrace.model.tables.schema import KeyValue, TableSchema
from headrace.model.types import type_name
from headrace.ports import (
    Advance,
    Append,
    Capabilities,
    Claim,
    Publisher,
    Rows,
    Staged,
    Store,
    Table,
    TableDescription,
    TrimReport,
    Write,
)
from headrace.rows import to_arrow
from headrace.rows.by_position import aggregated, aligned, last_rows, sort_indices
from headrace.rows.conditions import check_scan_sizes, typed_key, typed_range
from headrace.rows.satisfied import satisfied

OPTIONS = TableOptions(change_log=False, retention_seconds=None)
Manifest = dict[str, Any]
_COLUMNS: dict[RowChange, Literal["given", "keys"]] = {RowChange.UPDATE: "given", RowChange.DELETE: "keys"}


class ParquetStore(Store):
    """Tables as Parquet files.

    Args:
        directory: an existing directory.
        compression: the compression of new files.
    """

    capabilities = Capabilities(
        transactions=True,
        whole_rows=False,
        pre_images=False,
        add_columns=True,
        queues=False,
        predicates=frozenset(OPERATORS),
        column_types=("boolean", "byte", "short", "int", "long", "float", "double", "string", "binary", "date"),
        tells_rows=False,
        tunnels=False,
        trims=False,
        not_null=False,
    )

    def __init__(self, directory: Path, compression: str) -> None:
        self.directory = directory
        self.compression = compression
        self.url = f"parquet://{directory}"
        self.id = self.url
        self._seen = 0

    # -- files -----------------------------------------------------------------------------------------

    def manifest(self) -> Manifest:
        try:
            found: Manifest = json.loads((self.directory / "manifest.json").read_text())
        except FileNotFoundError:
            return {"version": 0, "tables": {}, "markers": {}}
        return found

    @contextmanager
    def change(self) -> Iterator[Manifest]:
        """Change the manifest; nothing is changed if the block fails. Returns the version as ``version``."""
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            manifest = self.manifest()
            manifest["version"] += 1
            yield manifest
            temporary = self.directory / "manifest.tmp"
            with temporary.open("w") as file:
                json.dump(manifest, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.directory / "manifest.json")

    def write(self, rows: pa.Table) -> str:
        name = f"{uuid.uuid4().hex}.parquet"
        pq.write_table(rows, self.directory / name, compression=self.compression)
        return name

    def read(self, entry: Mapping[str, Any]) -> pa.Table:
        schema = schema_of(entry).arrow
        if entry["file"] is None:
            return schema.empty_table()
        rows = pq.read_table(self.directory / entry["file"])
        # Columns that were added later are null.
        return pa.concat_tables([schema.empty_table(), rows], promote_options="default").cast(schema)

    # -- tables ----------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        return sorted(self.manifest()["tables"])

    def create_table(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        primary_key: str | Sequence[str],
        *,
        exist_ok: bool = False,
        **options: Any,
    ) -> Table:
        schema = TableSchema.of(columns, primary_key)
        refused = [each.name for each in schema.columns if type_name(each.type) not in self.capabilities.column_types]  # type: ignore[operator]
        if refused:
            raise SchemaError("a column has a type that this store does not have", received=refused[0])
        check_columns(schema)
        _check_options(options)
        with self.change() as manifest:
            entry = manifest["tables"].get(name)
            if entry is None:
                manifest["tables"][name] = {
                    "id": uuid.uuid4().hex,
                    "file": None,
                    "columns": [[each.name, type_name(each.type)] for each in schema.columns],
                    "key": list(schema.primary_key),
                }
            elif not exist_ok:
                raise AlreadyExistsError("a table of this name exists", received=repr(name))
            elif schema_of(entry) != schema:
                raise SchemaError("the table exists with other columns or another key", received=repr(name))
        return self.table(name)

    def table(self, name: str, columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None) -> ParquetTable:
        found = ParquetTable(self, name)
        found.entry()
        return found

    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        with self.change() as manifest:
            if manifest["tables"].pop(name, None) is None and not missing_ok:
                raise NotFoundError("no such table", received=repr(name), valid=of_users(sorted(manifest["tables"])))

    def publisher(self, job: str, sink: str = "") -> Publisher:
        return ParquetPublisher(self, job, sink)

    def wait_for_change(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        while (version := self.manifest()["version"]) == self._seen and time.monotonic() < end:
            time.sleep(0.01)
        changed, self._seen = bool(version != self._seen), version
        return changed

    def close(self) -> None:
        """There is nothing to close."""


def _check_options(given: Mapping[str, Any]) -> None:
    """Raise `UnsupportedError` for the options of a change log, except for the values that say that there is none."""
    check_option_names(given)
    for name, value in given.items():
        if value not in (getattr(OPTIONS, name, None), getattr(TableOptions(), name, None)):
            raise UnsupportedError("tables of this store have no options", received=f"{name}={value}")


def schema_of(entry: Mapping[str, Any]) -> TableSchema:
    return TableSchema.of(dict(entry["columns"]), entry["key"])


def changed(there: pa.Table, change: RowChange, rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the rows of a table after a write of whole rows, or keys."""
    if change is RowChange.REPLACE_ALL:
        there = there.slice(0, 0)
    deletes = change is RowChange.DELETE
    both = pa.concat_tables(
        [
            there.append_column("\0gone", pa.array([False] * there.num_rows, pa.bool_())),
            rows.append_column("\0gone", pa.array([deletes] * rows.num_rows, pa.bool_())),
        ],
        promote_options="default",
    )
    last = both.take(pa.array(last_rows(both, key)))
    kept = last.filter(pc.invert(last.column("\0gone"))).drop_columns(["\0gone"])
    return kept.take(sort_indices(kept, key)).select(there.column_names).cast(there.schema)


def _cells(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return a row for each key, with the last value of each column that is not null."""
    rest = [name for name in rows.column_names if name not in key]
    keys, cells = aggregated(rows.select(key).columns, [("last", rows.column(name)) for name in rest])
    return pa.table([*keys, *cells], [*key, *rest]).select(rows.column_names)


class ParquetTable(Table):
    """A table: one file, which each write replaces."""

    def __init__(self, store: ParquetStore, name: str) -> None:
        self._store = store
        self.name = name

    def entry(self, manifest: Manifest | None = None) -> dict[str, Any]:
        tables = (manifest or self._store.manifest())["tables"]
        if self.name not in tables:
            raise NotFoundError("no such table", received=repr(self.name), valid=of_users(sorted(tables)))
        found: dict[str, Any] = tables[self.name]
        return found

    @property
    def schema(self) -> TableSchema:
        return schema_of(self.entry())

    def identity(self) -> str:
        return str(self.entry()["id"])

    def write(self, manifest: Manifest, change: RowChange, rows: pa.Table, *, keep_nulls: bool = True) -> None:
        entry = self.entry(manifest)
        there, key = self._store.read(entry), entry["key"]
        if change is RowChange.UPDATE:
            rows = rows.take(pa.array(last_rows(rows, key))) if keep_nulls else _cells(rows, key)
            old = aligned(rows, there, key, schema_of(entry).nullable())
            new = {name: rows.column(name) for name in rows.column_names}
            if not keep_nulls:
                new = {name: pc.coalesce(column, old.column(name)) for name, column in new.items()}
            rows = pa.table({name: new.get(name, old.column(name)) for name in there.column_names})
        entry["file"] = self._store.write(changed(there, change, rows, key))

    def _write(self, change: RowChange, rows: pa.Table, **options: bool) -> int:
        with self._store.change() as manifest:
            self.write(manifest, change, rows, **options)
        return int(manifest["version"])

    def put(self, rows: Rows) -> int:
        return self._write(RowChange.PUT, to_arrow(rows, self.schema, columns="all"))

    def update(self, rows: Rows, *, keep_nulls: bool = True) -> int:
        typed = to_arrow(rows, self.schema, columns="given")
        if typed.num_columns == len(self.schema.primary_key):
            raise SchemaError("an update needs a column to set besides the key", received=typed.column_names)
        return self._write(RowChange.UPDATE, typed, keep_nulls=keep_nulls)

    def delete(self, keys: Rows) -> int:
        return self._write(RowChange.DELETE, to_arrow(keys, self.schema, columns="keys"))

    def get(self, key: Mapping[str, KeyValue], columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        if set(key) != set(self.schema.primary_key):
            raise SchemaError("a key needs exactly the key columns", received=list(key), valid=self.schema.primary_key)
        values = typed_key(self.schema, [key[name] for name in self.schema.primary_key])
        where = [(name, "=", value) for name, value in zip(self.schema.primary_key, values, strict=True)]
        rows: list[dict[str, Any]] = self.scan(columns, where).read_all().to_pylist()
        return rows[0] if rows else None

    def get_many(self, keys: Rows, columns: Sequence[str] | None = None) -> pa.Table:
        entry = self.entry()
        schema = schema_of(entry)
        typed = to_arrow(keys, schema, columns="keys")
        return aligned(typed, self._store.read(entry), schema.primary_key, schema.nullable(columns))

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
        entry = self.entry()
        schema = schema_of(entry)
        names = [schema.column(name).name for name in (schema.names if columns is None else columns)]
        bounds = typed_range(schema, keys or KeyRange())
        rows = self._store.read(entry).combine_chunks()
        (batch,) = rows.to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]
        conditions = parse_where(where)
        batch = satisfied(batch, [schema.column(each.column) for each in conditions], conditions)
        for bound, below in ((bounds.low, False), (bounds.high, True)):
            if bound is not None:
                batch = batch.filter(_before(batch, schema.primary_key, bound, below=below))
        batch = batch.select(names) if limit is None else batch.select(names).slice(0, limit)
        parts = [batch.slice(start, batch_rows) for start in range(0, batch.num_rows, batch_rows)]
        return pa.RecordBatchReader.from_batches(batch.schema, parts)

    def splits(self, count: int, *, size: int | None = None) -> list[KeyRange]:
        return [KeyRange()]

    def add_columns(self, columns: Mapping[str, str | pa.DataType]) -> None:
        with self._store.change() as manifest:
            entry = self.entry(manifest)
            wider = schema_of(entry).with_columns(columns)
            entry["columns"] = [[each.name, type_name(each.type)] for each in wider.columns]

    def set_options(self, **changes: Any) -> TableOptions:
        _check_options(changes)
        return OPTIONS

    def describe(self) -> TableDescription:
        entry = self.entry()
        return TableDescription(self.name, schema_of(entry), OPTIONS, self._store.read(entry).num_rows, ())

    def trim(self, *, before: Mapping[int, int] | None = None, cut_tunnels: bool = False) -> TrimReport:
        return TrimReport(0, 0)


def _before(rows: pa.RecordBatch, key: Sequence[str], bound: Sequence[KeyValue], *, below: bool) -> pa.Array:
    """Return which keys are less than a bound (``below``), or not less."""
    less = pa.array([False] * rows.num_rows, pa.bool_())
    for name, value in reversed(list(zip(key, bound, strict=False))):
        column = rows.column(name)
        scalar = pa.scalar(value, column.type)
        less = pc.or_(pc.less(column, scalar), pc.and_(pc.equal(column, scalar), less))
    return less if below else pc.invert(less)


class ParquetPublisher(Publisher):
    """Batches of a job: staged rows are files, and their names are numbers."""

    def __init__(self, store: ParquetStore, job: str, sink: str) -> None:
        self._store, self.job, self.sink = store, job, sink

    def _markers(self, manifest: Manifest) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = manifest["markers"].setdefault(self.job, {})
        return found

    def published(self, batch: int) -> bool:
        last = self._markers(self._store.manifest()).get(self.sink)
        return last is not None and last[0] >= batch

    def last_batch(self) -> int | None:
        return max((batch for batch, _ in self._markers(self._store.manifest()).values()), default=None)

    def _files(self, batch: int) -> Path:
        name = uuid.uuid5(uuid.NAMESPACE_URL, f"{self.job}/{self.sink}").hex
        return self._store.directory / "staged" / name / str(batch)

    def stage(self, batch: int, rows: Iterable[pa.RecordBatch], **_: Any) -> list[Staged]:
        batches = list(rows)
        if not batches:
            return []
        staged = Staged(uuid.uuid4().int >> 65, sum(each.num_rows for each in batches))
        directory = self._files(batch)
        directory.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_batches(batches), directory / str(staged.id))
        return [staged]

    def publish(
        self,
        batch: int,
        writes: Sequence[Write | Append],
        *,
        advances: Sequence[Advance] = (),
        content: str = "",
        last: bool = False,
        claim: Claim | None = None,
    ) -> bool:
        with self._store.change() as manifest:
            markers = self._markers(manifest)
            known = markers.get(self.sink)
            if known is not None and known[0] >= batch:
                self._check_same(batch, content, known[0], known[1])
                return False
            if claim is not None:
                self._claim(manifest, claim)
            for write in writes:
                assert isinstance(write, Write)
                self._apply(manifest, batch, write)
            if last:
                markers.pop(self.sink, None)
            else:
                markers[self.sink] = [batch, content]
        self.discard(batch)
        return True

    def _claim(self, manifest: Manifest, claim: Claim) -> None:
        table = ParquetTable(self._store, claim.table)
        entry = table.entry(manifest)
        rows = self._store.read(entry).to_pylist()
        found = next((row for row in rows if all(row[name] == claim.after[name] for name in entry["key"])), None)
        if found != (None if claim.before is None else dict(claim.before)):
            raise claim.lost(found)
        table.write(manifest, RowChange.PUT, to_arrow(dict(claim.after), schema_of(entry), columns="all"))

    def _apply(self, manifest: Manifest, batch: int, write: Write) -> None:
        table = ParquetTable(self._store, write.table)
        files = [self._files(batch) / str(each.id) for each in write.staged]
        if not all(file.exists() for file in files):
            raise PublicationError("staged rows do not exist", received=f"batch {batch} of job {self.job}")
        schema = schema_of(table.entry(manifest))
        parts = [pq.read_table(file) for file in files]
        rows = pa.concat_tables(parts) if parts else schema.arrow.empty_table()
        typed = to_arrow(rows, schema, columns=_COLUMNS.get(write.change, "all"))
        table.write(manifest, write.change, typed, keep_nulls=False)

    def discard(self, batch: int, staged: Sequence[Staged] | None = None) -> None:
        directory = self._files(batch)
        for file in [directory / str(each.id) for each in staged] if staged is not None else list(directory.glob("*")):
            file.unlink(missing_ok=True)
