"""The location of a test's store."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import headrace
from headrace.ports import Store
from headrace.testing.capabilities import Traits
from headrace.testing.effort import thorough


@dataclass(frozen=True)
class Place:
    """The location of a test's store, which is empty when the test begins.

    It can be pickled, so that another process can open the store. Equal places, in any process, are one store; stores
    of different directories share nothing.

    Attributes:
        url: the URL of the store. It contains ``{directory}`` or ``{name}``, a name of 16 characters made of it.
        directory: a directory of the test.
        options: the options of `headrace.open`.
        traits: differences between stores that no capability has.
        id: a part of the name. Before version 9.2, pytest gives the path of a deleted directory to a later test.
    """

    url: str
    directory: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    traits: Traits = field(default_factory=Traits)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def name(self) -> str:
        """A name of the store, other than that of any other directory, also an earlier one of the same path."""
        return "t" + hashlib.sha256(f"{self.id} {self.directory}".encode()).hexdigest()[:15]

    def open(self) -> Store:
        """Return a handle on the store, which is created if it does not exist."""
        url = self.url.format(directory=self.directory, name=self.name)
        return headrace.open(url, create=True, **self.options)

    def commits(self, count: int) -> int:
        """Return the number of commits of a test with many of them."""
        return thorough(count)

    @property
    def has_partitions(self) -> bool:
        """Whether the log of a table is divided into partitions."""
        return self.traits.split_partitions

    def split(self, table: str) -> None:
        """Split the largest partition of a table, as services do automatically. Some stores have no partitions."""
        if self.traits.split_partitions:
            with self.open() as store:
                store.table(table).split()
