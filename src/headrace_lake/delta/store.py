"""The store of a directory of Delta tables."""

from __future__ import annotations

import re
import shutil
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import (
    HeadraceError,
    NotFoundError,
    OptionError,
    StoreError,
    UnsupportedError,
)
from headrace.model.existing import already_exists, other_columns
from headrace.model.findings import Finding, Status
from headrace.model.own_names import is_internal
from headrace.model.tables.conditions import OPERATORS
from headrace.model.tables.options import PARTITION_BY
from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.validation import Named, check_new, find
from headrace.model.tunnels.values import KindName, Start, TunnelKind
from headrace.options.names import check_names
from headrace.ports import Capabilities, Disk, Files, Publisher, Queue, Table, Tunnel
from headrace_lake import publishing
from headrace_lake.delta import maintenance
from headrace_lake.delta.log import LOG
from headrace_lake.delta.publisher import DeltaPublisher
from headrace_lake.delta.queue import DeltaQueue
from headrace_lake.delta.schemas import check_schema, properties_of
from headrace_lake.delta.snapshot import create_version
from headrace_lake.delta.table import DELETION_VECTORS, DeltaTable, check_options
from headrace_lake.delta.tunnels import records
from headrace_lake.delta.tunnels.records import StoredTunnel, TunnelRecords
from headrace_lake.delta.tunnels.tunnel import DeltaTunnel, new_tunnel
from headrace_lake.delta.versions import Versions
from headrace_lake.home import OWN_DIRECTORY, Home, Owner
from headrace_lake.maintenance import LakeStore, Maintenance
from headrace_lake.partitions import partition_columns
from headrace_lake.places import Place, directories_in, moment_of, remove_tree, sync

# Readers take paths as URLs, and skip names that begin with a dot or an underscore.
_NAME_PART = re.compile(r"[^\W_][\w @+,=.~()-]*")
_LONGEST_NAME = 200


class DeltaStore(LakeStore):
    """Delta tables below a directory, or below a prefix of a bucket.

    Args:
        directory: an existing directory, which is absolute; or a place in a bucket.
        home: the URL of the store with the state of jobs, which a bucket needs; None is an embedded store in the
            directory.
    """

    capabilities = Capabilities(
        transactions=True,
        atomic_targets=1,
        whole_rows=True,
        pre_images=True,
        add_columns=True,
        adds_in_batches=True,
        queues=False,
        predicates=frozenset(OPERATORS),
        column_types=(
            *("boolean", "byte", "short", "int", "long", "float", "double", "string", "binary"),
            *("date", "timestamp", "timestamp_ntz", "decimal(10,2)", "decimal(12,2)", "decimal(20,3)"),
        ),
        trims=False,
        files=True,
        backup_tool="a copy of the directory while nothing writes into it",
    )

    def __init__(self, directory: Place, home: str | None) -> None:
        scheme = "delta" if isinstance(directory, Path) else "delta+s3"
        self.url = f"{scheme}:{directory.as_uri().partition(':')[2]}"
        self.id = self.url
        self._directory = directory
        self._home = Home(directory, home, Owner(self.url, "Delta"))
        self._versions: dict[str, Versions] = {}
        self._seen: dict[str, object] = {}
        self._guard = threading.Lock()

    def __repr__(self) -> str:
        return f"DeltaStore({self.url!r})"

    def instance(self) -> str:
        """See `headrace.ports.Store.instance`: a copy of the directory is another one."""
        return f"{self.id} {self._directory.stat().st_ino}" if isinstance(self._directory, Path) else self.id

    # -- tables -------------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        store = self._home.find()
        own = [] if store is None else [name for name in store.tables() if is_internal(name)]
        return sorted([*_tables_below(self._directory), *own])

    def create_table(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        primary_key: str | Sequence[str],
        *,
        exist_ok: bool = False,
        **options: Any,
    ) -> Table:
        if is_internal(name):
            return self._home.store().create_table(name, columns, primary_key, exist_ok=exist_ok, **options)
        schema = TableSchema.of(columns, primary_key)
        directory = self._path(name)
        check_schema(schema)
        check_options(options)
        properties = properties_of(
            schema,
            pre_images=options.get("pre_images", False),
            deletion_vectors=options.get(DELETION_VECTORS, False),
        )
        partitions = partition_columns(schema, options.get(PARTITION_BY))
        if not (directory / LOG).is_dir() and self._create(directory, schema, partitions, properties):
            return self._table(name)
        if not exist_ok:
            raise already_exists(name, self.url)
        table = self._table(name)
        if table.schema != schema:
            raise other_columns(repr(name), schema, table.schema)
        return table

    def _create(
        self, directory: Place, schema: TableSchema, partitions: Sequence[str], properties: Mapping[str, str]
    ) -> bool:
        """Create a table; return False if another process has created it."""
        if not isinstance(directory, Path):
            return create_version(directory, schema, partitions, properties)
        new = self._directory / OWN_DIRECTORY / "new" / uuid.uuid4().hex
        assert isinstance(new, Path)
        try:
            new.parent.mkdir(parents=True, exist_ok=True)
            create_version(new, schema, partitions, properties)
            Versions("", new).sync(0)
            directory.parent.mkdir(parents=True, exist_ok=True)
            new.rename(directory)
        except OSError as error:
            if not (directory / LOG).is_dir():
                raise StoreError(
                    f"a table cannot be created: {error.strerror}",
                    received=str(directory),
                    remedy="a table needs a directory of its own, which does not exist or is empty",
                ) from error
            return False
        finally:
            shutil.rmtree(new, ignore_errors=True)
        sync(directory.parent)
        return True

    def table(self, name: str, columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None) -> Table:
        if not is_internal(name):
            table = self._table(name)
            if not (table.directory / LOG).is_dir():
                raise NotFoundError(f"no such table in {self.url}", received=repr(name), valid=self.lake_tables())
            return table
        store = self._home.find()
        if store is None:
            raise NotFoundError(f"no such table in {self.url}", received=repr(name))
        return store.table(name, columns)

    def lake_tables(self) -> list[str]:
        return sorted(_tables_below(self._directory))

    def maintenance(self, table: str) -> Maintenance:
        found = self.table(table)
        if not isinstance(found, DeltaTable):
            raise UnsupportedError("headrace's own tables need no maintenance", received=repr(table))
        return maintenance.DeltaMaintenance(found)

    def _table(self, name: str) -> DeltaTable:
        directory = self._path(name)
        with self._guard:
            return DeltaTable(self._versions.setdefault(name, Versions(name, directory)))

    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        if is_internal(name):
            store = self._home.find() if missing_ok else self._home.store()
            if store is not None:
                store.drop_table(name, missing_ok=missing_ok)
            return
        directory = self._path(name)
        # Before the table is dropped: the home of another lake is refused.
        self._home.find()
        try:
            if not (directory / LOG).is_dir():
                raise FileNotFoundError
            if isinstance(directory, Path):
                dropped = self._directory / OWN_DIRECTORY / "dropped" / uuid.uuid4().hex
                assert isinstance(dropped, Path)
                dropped.parent.mkdir(parents=True, exist_ok=True)
                directory.rename(dropped)
                sync(directory.parent)
                directory = dropped
        except FileNotFoundError:
            if missing_ok:
                return
            raise NotFoundError(f"no such table in {self.url}", received=repr(name), valid=self.lake_tables()) from None
        with self._guard:
            self._versions.pop(name, None)
        for tunnel in records.stored_tunnels(self._home, name):
            records.drop(self._home, tunnel)
        # Without its log the table does not exist.
        remove_tree(directory / LOG)
        remove_tree(directory)

    # -- tunnels ------------------------------------------------------------------------------------------

    def create_tunnel(
        self,
        table: str | Sequence[str],
        name: str,
        kind: KindName | TunnelKind = TunnelKind.BASE_AND_STREAM,
        *,
        start: str | Start = "latest",
        base_channels: int | None = None,
        **options: Any,
    ) -> Tunnel:
        if not isinstance(table, str):
            return super().create_tunnel_of_tables(table, name, kind, base_channels=base_channels, **options)
        kind = kind if isinstance(kind, TunnelKind) else TunnelKind.parse(kind)
        begin = start if isinstance(start, Start) else Start.parse(start)
        check_names("a tunnel", options, [])
        check_new(name, kind, begin, base_channels)
        found = self.table(table)
        if not isinstance(found, DeltaTable):
            raise UnsupportedError("headrace's own tables have no tunnels", received=repr(table))
        stored = new_tunnel(found, name, kind, begin, base_channels)
        records.create(self._home, stored)
        return self._tunnel(stored)

    def tunnel(
        self,
        id_or_name: str,
        table: str | None = None,
        columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None,
    ) -> Tunnel:
        return self._tunnel(self._find_tunnel(id_or_name, table))

    def tunnels(self, table: str | None = None) -> list[Tunnel]:
        return [self._tunnel(stored) for stored in records.stored_tunnels(self._home, table)]

    def drop_tunnel(self, id_or_name: str, table: str | None = None, *, missing_ok: bool = False) -> None:
        try:
            records.drop(self._home, self._find_tunnel(id_or_name, table))
        except NotFoundError:
            if not missing_ok:
                raise

    def _find_tunnel(self, id_or_name: str, table: str | None) -> StoredTunnel:
        known = records.stored_tunnels(self._home, table)
        return find(known, lambda each: Named(each.id, each.name, each.table), id_or_name, table)

    def _tunnel(self, stored: StoredTunnel) -> DeltaTunnel:
        return DeltaTunnel(self._table(stored.table), stored, TunnelRecords(self._home, stored.id))

    def queue(self, name: str) -> Queue:
        """Return an append-only table as a queue, without consumers."""
        table = self.table(name)
        if not isinstance(table, DeltaTable):
            raise UnsupportedError("headrace's own tables are no queues", received=repr(name))
        return DeltaQueue(table)

    # -- publication, files, waiting ------------------------------------------------------------------------

    def publisher(self, job: str, sink: str = "") -> Publisher:
        return DeltaPublisher(self._table, self._home, self._directory / OWN_DIRECTORY, job, sink)

    def complete_batches(self, table: str) -> None:
        publishing.complete_batches(self, self._home, table)

    def files(self) -> Files:
        return self._home.store().files()

    def checkpoint_directory(self) -> str:
        return self._home.store().checkpoint_directory()

    def wait_for_change(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        while True:
            now = {name: _changed(self._directory / name / LOG) for name in _tables_below(self._directory)}
            if now != self._seen:
                self._seen = now
                return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(moment_of(self._directory), left))

    def diagnose(self, table: str | None = None) -> list[Finding]:
        if table is not None:
            return super().diagnose(table)
        found = self.lake_tables()
        wrong = [(name, problem) for name in found if (problem := _obstacle(self._table(name))) is not None]
        findings = [Finding("Store", Status.OK, f"{self.url} has {len(found)} Delta tables")]
        findings += [Finding(f"Table {name}", Status.WARN, str(problem)) for name, problem in wrong]
        return findings + self._home.diagnose()

    def check(self, *, repair: bool = False) -> list[Finding]:
        if repair:
            raise UnsupportedError("headrace repairs no Delta tables", remedy="headrace lake vacuum deletes orphans")
        findings = [finding for name in self.lake_tables() for finding in maintenance.check(self._table(name))]
        home = self._home.find()
        if home is not None:
            # Another system checks its own data.
            with suppress(UnsupportedError):
                findings += home.check()
        return findings

    def disk(self) -> Disk | None:
        if not isinstance(self._directory, Path):
            return None
        usage = shutil.disk_usage(self._directory)
        return Disk(usage.free, usage.total)

    def close(self) -> None:
        self._home.close()

    # -- names --------------------------------------------------------------------------------------------

    def _path(self, name: str) -> Place:
        """Return the directory of a table."""
        parts = name.split("/")
        if not all(_NAME_PART.fullmatch(part) and len(part.encode()) <= _LONGEST_NAME for part in parts):
            raise OptionError(
                "a Delta table cannot have this name",
                received=repr(name)[:200],
                valid="letters, digits, spaces and @+,=.~()-_ after a letter or digit; a slash is a directory",
            )
        return self._directory / name


def _tables_below(root: Place, below: str = "") -> Iterator[str]:
    """Yield the names of the tables below a directory."""
    found = directories_in(root / below)
    if below and LOG in found:
        yield below
        return
    for name in found:
        if name[0] not in "._":
            yield from _tables_below(root, f"{below}/{name}" if below else name)


def _obstacle(table: DeltaTable) -> HeadraceError | None:
    """Return why headrace cannot write a table; None if it can."""
    try:
        snapshot = table.snapshot()
        snapshot.check_writable(removes=True)
        snapshot.schema.check_keyed()
    except HeadraceError as error:
        return error
    return None


def _changed(log: Place) -> object:
    """Return a value that a commit changes."""
    if not isinstance(log, Path):
        return max((path.name for path in log.iterdir()), default="")
    try:
        return log.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
