"""A DuckLake in a database: transactions over its catalog, and the definitions of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from headrace.errors import HeadraceError, NotFoundError, OptionError, StoreError
from headrace.stores.postgres.for_lakes import Bulk, PostgresStore
from headrace.support import failpoints
from headrace_lake.ducklake import flushing, state
from headrace_lake.ducklake.catalog import Definition, Lake, Snapshot
from headrace_lake.ducklake.state import State
from headrace_lake.ducklake.writing import NewFiles, TableChange
from headrace_lake.folding import TableWrite

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
                "the database has no DuckLake", received=self.store.url, remedy="pass create=True and option data"
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

    def state(self, name: str) -> State:
        """Return the rows of a table."""
        return self.read(lambda bulk: state.load(self.lake, bulk, self.definition(bulk, name)))

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
            The number of the newest snapshot, and the tables with many rows in the catalog, for `flush`.
        """
        self._check(bulk)
        snapshot = Snapshot.next(self.lake, bulk)
        made: list[str] = []
        full: list[str] = []
        for name, of in writes.items():
            definition = self.definition(bulk, name, snapshot.schema_version)
            change = TableChange(self.lake, bulk, snapshot, definition, files)
            try:
                made += change.apply(of(definition))
            except OSError as error:
                raise StoreError(
                    f"a file of the DuckLake cannot be used: {error.strerror}", received=str(definition.path)
                ) from error
            if change.inlined > flushing.MAX_INLINED_ROWS:
                full.append(name)
        files.sync()
        failpoints.reach("parts-written")
        return snapshot.finish(bulk, made, information), full

    def flush(self, name: str) -> int:
        """Move the inlined rows of a table into files; return their number."""
        files = NewFiles()

        def flush(bulk: Bulk) -> int:
            snapshot = Snapshot.next(self.lake, bulk)
            definition = self.definition(bulk, name, snapshot.schema_version)
            count = flushing.flush(self.lake, bulk, snapshot, definition, files)
            files.sync()
            snapshot.finish(bulk, [f"inline_flush:{definition.id}"] if count else [])
            return count

        try:
            return self.write(flush)
        finally:
            self.clean(files)

    def flush_quietly(self, names: Sequence[str]) -> None:
        """Flush tables after a write that has succeeded: after an error, the next write tries again."""
        for name in names:
            with suppress(HeadraceError, OSError):
                self.flush(name)

    def clean(self, files: NewFiles) -> None:
        """Delete the files of attempts that were rolled back."""
        if files.paths:
            self.store.connection.run_bulk(lambda bulk: files.clean(self.lake, bulk), repeatable=True)
