"""Reading, deciding and writing rows of a table in one transaction of the store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import TableSchema
from headrace.ports import Rows
from headrace.stores.embedded.for_servers import EmbeddedTable, stamp


@dataclass(frozen=True)
class FoundRows:
    """The rows of some keys, in the order of the keys.

    Attributes:
        schema: the schema of the table.
        rows: all columns; a row that does not exist has its key and nulls.
        present: which rows exist.
        version: the version of the running write transaction, or else of the last commit.
    """

    schema: TableSchema
    rows: pa.RecordBatch
    present: npt.NDArray[np.bool_]
    version: int


class DecidedChange(NamedTuple):
    """A change of rows that was decided in a write transaction."""

    change: RowChange
    rows: Rows
    keep_nulls: bool = False


class _NothingDecided(Exception):
    """Rolls a write transaction back that has nothing to write."""


def transact(table: EmbeddedTable, keys: Rows, decide: Callable[[FoundRows], Sequence[DecidedChange]]) -> None:
    """Read rows, decide their changes and apply them, in one write transaction.

    Args:
        keys: the keys of the rows to read.
        decide: is called once with the rows, and returns the changes in the order in which they are applied. All get
            the same commit version. If it returns none or raises, nothing is changed.
    """
    with contextlib.suppress(_NothingDecided), table.database.write() as connection:
        version, ts = stamp(connection)
        decided = decide(FoundRows(*table.fetch(connection, keys), version))
        if not decided:
            raise _NothingDecided
        for change, rows, keep_nulls in decided:
            prepared = table.prepare(change, rows, keep_nulls=keep_nulls)
            table.apply(connection, change, prepared, version, ts)


def find(table: EmbeddedTable, keys: Rows) -> FoundRows:
    """Return the rows of some keys; a key may occur several times."""
    with table.database.read() as connection:
        ((version,),) = connection.execute("SELECT version FROM clock")
        return FoundRows(*table.fetch(connection, keys), version)
