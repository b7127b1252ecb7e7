"""The home of a store of lake tables: another store, for what changes in a transaction.

It has headrace's own tables, whose names begin with ``__headrace_``, and some of the lake: the jobs that publish into
the lake tables, and the tunnels of these tables (`headrace_lake.delta.tunnels.records`). A row of a job names the
tables of a sink, and the *intent* of its last publication that has more than one part.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import AlreadyExistsError, NotFoundError
from headrace.model.own_names import PREFIX
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import Column
from headrace.model.types import parse_type, type_name
from headrace.ports import Claim, Staged, Store, Table, Write
from headrace.stores import registry
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


class Home:
    """The home, which is opened when it is needed.

    Args:
        directory: the directory of the lake tables.
        url: the URL of the home; None is an embedded store in the directory.
        store: the home, if it is open.
    """

    def __init__(self, directory: Place, url: str | None, store: Store | None = None) -> None:
        self._url = url or str(directory / OWN_DIRECTORY / "home")
        self._store = store
        self._tables: set[str] = set()
        self._guard = threading.Lock()

    def find(self) -> Store | None:
        """Return the store; None if it was not created."""
        try:
            return self._opened(create=False)
        except NotFoundError:
            return None

    def store(self) -> Store:
        """Return the store, which is created if it does not exist."""
        return self._opened(create=True)

    def _opened(self, *, create: bool) -> Store:
        with self._guard:
            if self._store is None:
                if create and registry.scheme_of(self._url) is None:
                    Path(self._url).parent.mkdir(exist_ok=True)
                self._store = registry.open(self._url, create=create)
            return self._store

    def table(self, wanted: HomeTable) -> Table:
        """Return a table, which is created if it does not exist."""
        store = self.store()
        if wanted.name not in self._tables:
            try:
                store.create_table(wanted.name, wanted.columns, wanted.key, exist_ok=True, change_log=False)
            except AlreadyExistsError:
                # Another process has created it at the same time.
                store.table(wanted.name)
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
        claim = Claim(wanted.name, before, after)
        self.store().publisher(str(uuid.uuid4())).publish(0, [], claim=claim, last=True)

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
