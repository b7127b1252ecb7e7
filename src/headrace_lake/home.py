"""The home of a store of lake tables: another store, for what changes in a transaction.

It has headrace's own tables, whose names begin with ``__headrace_``, and some of the lake: the jobs that publish into
the lake tables, and the tunnels of these tables (`headrace_lake.delta.tunnels.records`). A row of a job names the
tables of a sink, and the *intent* of its last publication that has more than one part.

These records have names of tables. So a home is that of one lake, the first one that writes into it: it has the
identity of the lake, which is also in a file of the lake's own directory, and moves with it. A copy of the lake has
this file, too. So the home also has the URL of the lake, and the inode of the file: of a copy, both differ. A renamed
directory keeps the inode, and a file system without lasting inodes keeps the URL.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import (
    AlreadyExistsError,
    ClaimLostError,
    HeadraceError,
    NotFoundError,
    OptionError,
    StoreDamagedError,
)
from headrace.model.findings import Finding, Status
from headrace.model.own_names import PREFIX
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import Column
from headrace.model.types import parse_type, type_name
from headrace.ports import Claim, Staged, Store, Table, Write
from headrace.stores import registry
from headrace_lake import places
from headrace_lake.places import Place

OWN_DIRECTORY = "_headrace"
# PostgreSQL's limit for names is 63 bytes; a name can have a suffix of 8.
_LONGEST_NAME, _DIGEST = 46, 8


@dataclass(frozen=True)
class HomeTable:
    """A table of the home: a key, and a content as JSON."""

    name: str
    key: tuple[str, ...]

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns: all are strings."""
        return dict.fromkeys([*self.key, "content"], "string")


OWNER = HomeTable(f"{PREFIX}lake_owner", ("name",))
_OWNER_KEY = {"name": "lake"}
_IDENTITY = "identity"
JOBS = HomeTable(f"{PREFIX}lake_jobs", ("job", "sink"))


@dataclass(frozen=True)
class Intent:
    """A publication that is decided, and whose tables change one after the other.

    Attributes:
        writes: the writes to lake tables, in order.
        tables: the identities of these tables.
        content: the hash of the batch's content; empty if unknown.
    """

    batch: int
    writes: tuple[Write, ...]
    tables: Mapping[str, str]
    content: str


@dataclass(frozen=True)
class JobRecord:
    """What the home knows of a sink of a job.

    Attributes:
        tables: the names of the lake tables that have its markers.
    """

    job: str
    sink: str
    tables: tuple[str, ...] = ()
    intent: Intent | None = None

    @property
    def row(self) -> dict[str, str]:
        """The row of the record."""
        intent = self.intent and {
            "batch": self.intent.batch,
            "content": self.intent.content,
            "tables": dict(self.intent.tables),
            "writes": [
                [write.table, write.change, [[each.id, each.rows] for each in write.staged], _shown(write.alteration)]
                for write in self.intent.writes
            ],
        }
        return {"job": self.job, "sink": self.sink, "content": json.dumps({"tables": self.tables, "intent": intent})}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> JobRecord:
        """Return the record of a row."""
        content = json.loads(row["content"])
        found = content["intent"]
        intent = found and Intent(
            found["batch"],
            tuple(
                Write(table, RowChange(change), tuple(Staged(*each) for each in staged), _alteration(*alteration))
                for table, change, staged, *alteration in found["writes"]
            ),
            found["tables"],
            found["content"],
        )
        return cls(row["job"], row["sink"], tuple(content["tables"]), intent)


def _shown(alteration: Alteration | None) -> Mapping[str, Any] | None:
    if alteration is None:
        return None
    added = [[column.name, type_name(column.type)] for column in alteration.added]
    return {"added": added, "relaxed": list(alteration.relaxed)}


def _alteration(shown: Mapping[str, Any] | None = None) -> Alteration | None:
    """Return an alteration of a record. Records of release 0.1.0 have none."""
    if shown is None:
        return None
    added = [Column(name, parse_type(kind)) for name, kind in shown["added"]]
    return Alteration(added=added, relaxed=shown["relaxed"])


def name_beside(lake: str, name: str) -> str:
    """Return the name of one of headrace's own tables in a PostgreSQL database with several lakes.

    Args:
        lake: the name of the lake, which no other one in the database has.
        name: the name that the table has in a store of its own.
    """
    digest = hashlib.sha256(f"{lake}/{name}".encode()).hexdigest()[:_DIGEST]
    return f"{name.encode()[:_LONGEST_NAME].decode(errors='ignore')}_{digest}"


@dataclass(frozen=True)
class Owner:
    """A lake that has a home for itself.

    Attributes:
        url: the URL of its store, for messages.
        name: a name that no other lake in the same directory has.
    """

    url: str
    name: str

    def __str__(self) -> str:
        return f"{self.url} ({self.name})"


class Home:
    """The home, which is opened when it is needed.

    Args:
        directory: the directory of the lake tables.
        url: the URL of the home; None is an embedded store in the directory.
        owner: the lake; None if the home can have several, because it knows their tables by different names.
        store: the home, if it is open.
    """

    def __init__(self, directory: Place, url: str | None, owner: Owner | None, store: Store | None = None) -> None:
        self._directory = directory / OWN_DIRECTORY
        self._url = url or str(self._directory / "home")
        self._moves_with_lake = url is None
        self._store = store
        self._untaken = owner
        self._tables: set[str] = set()
        self._guard = threading.Lock()

    def find(self) -> Store | None:
        """Return the store; None if it was not created.

        Raises:
            OptionError: it is the home of another lake.
        """
        try:
            return self._opened(create=False)
        except NotFoundError:
            return None

    def store(self) -> Store:
        """Return the store, which is created if it does not exist.

        Raises:
            OptionError: it is the home of another lake.
        """
        return self._opened(create=True)

    def _opened(self, *, create: bool) -> Store:
        with self._guard:
            if self._store is None:
                if create and registry.scheme_of(self._url) is None:
                    Path(self._url).parent.mkdir(exist_ok=True)
                self._store = registry.open(self._url, create=create)
            store = self._store
        if self._untaken is not None:
            self._take(store, self._untaken, create=create)
        return store

    def _take(self, store: Store, owner: Owner, *, create: bool) -> None:
        """Check that the home is not that of another lake; with ``create`` make it that of this one."""
        mine = f"{self._identity(create=create)} {owner.name}"
        found = _owner(store)
        if found is None and create:
            content = {"lake": mine, "shown": str(owner), "inode": self._inode()}
            row = {**_OWNER_KEY, "content": json.dumps(content)}
            _create(store, OWNER)
            # Another process may take it at the same time.
            with suppress(ClaimLostError):
                _replace(store, OWNER, None, row)
            found = _owner(store)
        if found is None:
            return
        if found["lake"] != mine or not self._is_original(found, owner):
            raise OptionError(
                "this home has the records of another lake, which would be replaced",
                received=f"{owner}; the home is that of {found['shown']}"
                + (", which has the same identity: one is a copy of the other" if found["lake"] == mine else ""),
                valid="a home for each lake",
                remedy=f"set option home to another store; if that lake does not exist any more, drop {OWNER.name} "
                "from the home",
            )
        self._untaken = None

    def _is_original(self, found: Mapping[str, Any], owner: Owner) -> bool:
        """Return whether this is the lake that has taken the home, and not a copy with the same identity."""
        if self._moves_with_lake or found["shown"] == str(owner):
            return True
        inode = self._inode()
        return inode is not None and inode == found.get("inode")

    def _inode(self) -> int | None:
        """Return the inode of the file with the identity; None in a bucket."""
        file = self._directory / _IDENTITY
        return file.stat().st_ino if isinstance(file, Path) else None

    def _identity(self, *, create: bool) -> str | None:
        """Return the identity of the directory, which is created if ``create``; None if there is none.

        Raises:
            StoreDamagedError: the file has something else.
        """
        file = self._directory / _IDENTITY
        if create and not file.exists():
            self._directory.mkdir(exist_ok=True)
            # Another process may create it at the same time.
            with suppress(FileExistsError):
                places.create(file, str(uuid.uuid4()).encode())
        try:
            return str(uuid.UUID(file.read_text("utf-8")))
        except FileNotFoundError:
            return None
        except ValueError:
            raise StoreDamagedError(
                "the identity of a lake cannot be read",
                received=str(file),
                valid="a UUID",
                remedy=f"write the UUID of table {OWNER.name} of the home into the file",
            ) from None

    def diagnose(self) -> list[Finding]:
        """Return what is wrong with the home: it is that of another lake, or cannot be read."""
        try:
            self.find()
        except HeadraceError as error:
            return [Finding("Home", Status.FAIL, str(error))]
        return []

    def table(self, wanted: HomeTable) -> Table:
        """Return a table, which is created if it does not exist."""
        store = self.store()
        if wanted.name not in self._tables:
            _create(store, wanted)
            self._tables.add(wanted.name)
        return store.table(wanted.name)

    def rows(self, wanted: HomeTable, where: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """Return the rows of a table with some values; none if it was not created."""
        store = self.find()
        try:
            found = [] if store is None else store.table(wanted.name).scan(where=where)
        except NotFoundError:
            return []
        return [row for batch in found for row in batch.to_pylist()]

    def replace(self, wanted: HomeTable, before: Mapping[str, str] | None, after: Mapping[str, str]) -> None:
        """Put a row if it is as expected, or if there is none and ``before`` is None.

        Raises:
            ClaimLostError: the row is not as expected, and is unchanged.
        """
        self.table(wanted)
        _replace(self.store(), wanted, before, after)

    def jobs(self) -> Table:
        """Return the table of the jobs, which is created if it does not exist."""
        return self.table(JOBS)

    def record(self, job: str, sink: str) -> JobRecord | None:
        """Return the record of a sink."""
        found = self.rows(JOBS, {"job": job, "sink": sink})
        return JobRecord.of(found[0]) if found else None

    def records(self, job: str | None = None) -> list[JobRecord]:
        """Return all records, or those of a job."""
        return [JobRecord.of(row) for row in self.rows(JOBS, None if job is None else {"job": job})]

    def close(self) -> None:
        """Close the store, if it is open."""
        with self._guard:
            if self._store is not None:
                self._store.close()


def _create(store: Store, wanted: HomeTable) -> None:
    """Create a table if it does not exist."""
    try:
        store.create_table(wanted.name, wanted.columns, wanted.key, exist_ok=True, change_log=False)
    except AlreadyExistsError:
        # Another process has created it at the same time.
        store.table(wanted.name)


def _replace(store: Store, table: HomeTable, before: Mapping[str, str] | None, after: Mapping[str, str]) -> None:
    """Put a row of a table that exists; see `Home.replace`."""
    claim = Claim(table.name, before, after)
    store.publisher(str(uuid.uuid4())).publish(0, [], claim=claim, last=True)


def _owner(store: Store) -> dict[str, Any] | None:
    """Return the lake that has taken a home; None if none has."""
    try:
        found = store.table(OWNER.name).get(_OWNER_KEY)
    except NotFoundError:
        return None
    return found and json.loads(found["content"])
