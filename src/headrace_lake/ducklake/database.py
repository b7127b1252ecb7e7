"""A DuckLake in a database: transactions over its catalog, and the definitions of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from headrace.errors import HeadraceError, NotFoundError, OptionError, StoreError
from headrace.model.tables.conditions import Predicate
from headrace.stores.opening import CREATION
from headrace.stores.postgres.for_lakes import Bulk, PostgresStore
from headrace.support import failpoints
from headrace_lake.ducklake import compacting, state
from headrace_lake.ducklake.catalog import Definition, Lake, Snapshot
from headrace_lake.ducklake.state import LakeFile, State
from headrace_lake.ducklake.writing import NewFiles, SnapshotTable, TableChange
from headrace_lake.folding import TableWrite
from headrace_lake.maintenance import Compaction, has_many_small, in_partitions

Result = TypeVar("Result")
_CREATOR = "headrace"


class LakeDatabase:
    """A DuckLake whose catalog is in a PostgreSQL database.

    Args:
        store: the store of the database.
        catalog: the schema with the tables of the catalog.
        data: the directory of the data files that the user names, which ends with a slash; None if the catalog has it.
    """

    def __init__(self, store: PostgresStore, catalog: str, data: str | None) -> None:
        self.store = store
        self.lake = Lake(catalog)
        self._data = data
        self._checked = False
        self._definitions: dict[str, Definition] = {}

    def create(self) -> None:
        """Create the catalog, unless it exists.

        Raises:
            OptionError: the directory of the data files is not named, or the catalog has another one.
        """

        def create(bulk: Bulk) -> None:
            if self.lake.exists(bulk):
                return
            if self._data is None:
                raise OptionError(
                    "the database has no DuckLake, and a new one needs a directory for its data files",
                    received=self.store.url,
                    remedy="set option data (in Spark duckLakeData)",
                )
            self.lake.create(bulk, self._data, _CREATOR)

        self.store.connection.run_bulk(create, repeatable=True)

    def read(self, work: Callable[[Bulk], Result]) -> Result:
        """Run a function that reads the catalog as of one moment."""

        def checked(bulk: Bulk) -> Result:
            self._check(bulk)
            return work(bulk)

        return self.store.connection.run_bulk(checked, repeatable=True, one_snapshot=True)

    def write(self, work: Callable[[Bulk], Result]) -> Result:
        """Run a function that changes the catalog in a transaction, which is repeated after temporary errors."""

        def checked(bulk: Bulk) -> Result:
            self._check(bulk)
            return work(bulk)

        return self.store.connection.run_bulk(checked)

    def _check(self, bulk: Bulk) -> None:
        """Raise an error unless there is a catalog that headrace knows, with the directory that the user names."""
        if self._checked:
            return
        if not self.lake.exists(bulk):
            raise NotFoundError(
                "the database has no DuckLake",
                received=self.store.url,
                remedy=f"{CREATION}, each with option data; or set option catalog, if it is in another schema",
            )
        found = self.lake.setting(bulk, "data_path")
        if self._data is not None and found is not None and found.rstrip("/") != self._data.rstrip("/"):
            raise OptionError(
                "the DuckLake has its data files elsewhere", received=self._data, valid=found, remedy="leave out data"
            )
        self._checked = True

    def definition(self, bulk: Bulk, name: str, version: int | None = None) -> Definition:
        """Return the definition of a table; see `Lake.definition`.

        Args:
            version: the version of the definitions; None to ask for it.
        """
        now = self.lake.schema_version(bulk) if version is None else version
        found = self._definitions.get(name)
        if found is None or found.schema_version != now or not self.lake.is_current(bulk, found):
            found = self._definitions[name] = self.lake.definition(bulk, name)
        return found

    def state(self, name: str, conditions: Sequence[Predicate] = ()) -> State:
        """Return the rows of a table; with conditions, without files that have no rows that satisfy them."""
        return self.read(lambda bulk: state.load(self.lake, bulk, self.definition(bulk, name), conditions=conditions))

    def change(
        self,
        bulk: Bulk,
        writes: Mapping[str, Callable[[Definition], Sequence[TableWrite]]],
        files: NewFiles,
        information: dict[str, Any] | None = None,
    ) -> tuple[int, list[str]]:
        """Change tables in one new snapshot, inside the caller's transaction.

        Args:
            writes: the writes to each table.
            files: gets the new files.
            information: texts for the history of the DuckLake.

        Returns:
            The number of the newest snapshot, and the tables with many rows in the catalog, or many small files: for
            `tidy`.
        """
        self._check(bulk)
        snapshot = Snapshot.next(self.lake, bulk)
        made: list[str] = []
        crowded: list[str] = []
        for name, of in writes.items():
            definition = self.definition(bulk, name, snapshot.schema_version)
            change = TableChange(self.lake, bulk, snapshot, definition, files)
            try:
                made += change.apply(of(definition))
            except OSError as error:
                raise StoreError(
                    f"a file of the DuckLake cannot be used: {error.strerror}", received=str(definition.path)
                ) from error
            if change.inlined > compacting.MAX_INLINED_ROWS or has_many_small(change.before):
                crowded.append(name)
        files.sync()
        failpoints.reach("parts-written")
        return snapshot.finish(bulk, made, information), crowded

    def flush(self, name: str) -> Compaction:
        """Move the inlined rows of a table into files."""

        def flush(table: SnapshotTable) -> tuple[int | None, list[str]]:
            count = compacting.flush(table)
            return count, [] if count is None else [f"inline_flush:{table.definition.id}"]

        count, version = self._move(name, flush)
        return Compaction(None) if count is None else Compaction(version, 0, count)

    def compact(self, name: str, choose: Callable[[Sequence[LakeFile]], Sequence[Sequence[LakeFile]]]) -> Compaction:
        """Merge files of a table.

        Each group of files is replaced in a transaction of its own, so that other writers wait for one group only.

        Args:
            choose: returns the groups, of the files of one partition.
        """
        files = self.read(lambda bulk: state.files_of(self.lake, bulk, self.definition(bulk, name)))
        plan = [{file.id for file in group} for group in in_partitions(files, lambda file: file.partition, choose)]
        version, before, after = None, 0, 0

        def merge(numbers: set[int], table: SnapshotTable) -> tuple[tuple[int, int], list[str]]:
            # Rows may have been deleted meanwhile, and other programs merge files, too.
            found = [file for file in state.files_of(self.lake, table.bulk, table.definition) if file.id in numbers]
            if not compacting.is_worth(found):
                return (0, 0), []
            count = compacting.merge(table, found)
            # DuckDB looks for the second one before it commits deleted rows of files in the catalog.
            number = table.definition.id
            return (len(found), count), [f"merge_adjacent:{number}", f"inline_flush:{number}"]

        for numbers in plan:
            (replaced, new), snapshot = self._move(name, partial(merge, numbers))
            if replaced:
                version, before, after = snapshot, before + replaced, after + new
        return Compaction(version, before, after)

    def _move(self, name: str, work: Callable[[SnapshotTable], tuple[Result, list[str]]]) -> tuple[Result, int]:
        """Run a function that moves rows of a table in a new snapshot.

        Args:
            work: returns its result, and what it has done, as the catalog names it.

        Returns:
            The result, and the newest snapshot.
        """
        files = NewFiles()

        def move(bulk: Bulk) -> tuple[Result, int]:
            snapshot = Snapshot.next(self.lake, bulk)
            definition = self.definition(bulk, name, snapshot.schema_version)
            result, made = work(SnapshotTable(self.lake, bulk, snapshot, definition, files))
            files.sync()
            return result, snapshot.finish(bulk, made)

        try:
            return self.write(move)
        finally:
            self.clean(files)

    def tidy(self, names: Sequence[str]) -> None:
        """Flush tables, and merge their small files, after a write that has succeeded.

        After an error, the next write tries again.
        """
        for name in names:
            with suppress(HeadraceError, OSError):
                self.flush(name)
                self.compact(name, compacting.small_groups)

    def clean(self, files: NewFiles) -> None:
        """Delete the files of attempts that were rolled back."""
        if files.paths:
            self.store.connection.run_bulk(lambda bulk: files.clean(self.lake, bulk), repeatable=True)
