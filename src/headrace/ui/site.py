"""What the pages show: a store, a workspace with its streams, and the history of the streams."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from headrace.errors import NotFoundError
from headrace.inspect.querying.process import QueryProcesses
from headrace.model.own_names import PREFIX, of_users
from headrace.ports import Store
from headrace.streaming_sql.catalog import Catalog
from headrace.streaming_sql.stream_history import StreamHistory
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.stream_states import KeptBeside
from headrace.streaming_sql.workspace import Workspace
from headrace.ui.requests import Request, whole_number

LIST_LENGTH = 50
"""The number of entries of a list on one page."""
# A part of it may be an escaped or an empty password.
_PASSWORD = re.compile(r"(//[^/@]*:)[^/@]*@")
_Item = TypeVar("_Item")


class Site:
    """The store and the workspace of the page.

    Args:
        store: the store; None shows the streams only.
        directory: the directory of the workspace.
    """

    def __init__(self, store: Store | None, directory: Path) -> None:
        self._store = store
        self.directory = directory
        self.workspace = Workspace(directory)
        self.registry = StreamRegistry(self.workspace)
        self.catalog = Catalog(self.workspace)
        self.history = StreamHistory(self.workspace)
        self.guarantees: dict[tuple[str, str], str | None] = {}
        self.kept_beside: dict[str, tuple[float, KeptBeside]] = {}
        self.slots_in_need: tuple[float, list[dict[str, Any]]] = (-math.inf, [])
        self.queries = QueryProcesses()
        self.started: list[subprocess.Popen[bytes]] = []

    @property
    def has_store(self) -> bool:
        return self._store is not None

    @property
    def store(self) -> Store:
        """The store, or `NotFoundError`."""
        if self._store is None:
            raise NotFoundError("the page was started without a store", remedy="headrace ui --store STORE")
        return self._store

    def tables(self, search: str = "") -> list[str]:
        """Return the tables of the users; with a search for them, also those that headrace keeps for itself."""
        names = self.store.tables()
        return names if PREFIX in search else of_users(names)

    @property
    def store_name(self) -> str:
        """The address of the store without passwords."""
        return _PASSWORD.sub(r"\1***@", self.store.url)

    @property
    def has_queues(self) -> bool:
        return self._store is not None and self._store.capabilities.queues

    @property
    def has_tunnels(self) -> bool:
        return self._store is not None and self._store.capabilities.tunnels

    def collect_ended(self) -> None:
        """Collect the exit codes of the processes that were started here and have ended."""
        self.started = [process for process in self.started if process.poll() is None]

    def close(self) -> None:
        """Close the workspace, and end the processes of queries. The owner of the store closes it."""
        self.queries.close()
        self.workspace.close()


@dataclass(frozen=True)
class Part(Generic[_Item]):
    """One page of a list, see `part_of`.

    Attributes:
        total: the number of entries that match the search.
        number: the number of this page, from 1.
        last: the number of the last page.
        search: the text of the search.
    """

    items: Sequence[_Item]
    total: int
    number: int
    last: int
    search: str


def part_of(names: Sequence[str], request: Request, length: int = LIST_LENGTH) -> Part[str]:
    """Return the page of a list that a request asks for: parameter ``q`` is a part of the names, ``page`` a number."""
    search = request.query.get("q", "").strip()
    found = [name for name in names if search.lower() in name.lower()] if search else names
    last = max(1, -(-len(found) // length))
    number = whole_number(request.query.get("page", ""), 1, low=1, high=last)
    return Part(found[(number - 1) * length : number * length], len(found), number, last, search)
