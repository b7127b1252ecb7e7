"""Several tables that a tunnel follows as one with typed rows, see `headrace.model.tables.several_tables`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from headrace.errors import NotFoundError, SchemaError
from headrace.model.tables.changes import Changes
from headrace.model.tables.schema import TableSchema
from headrace.model.tables.several_tables import rows_together, schema_of, together
from headrace.stores.postgres.tunnels.followed import FollowedTable
from headrace.stores.postgres.tunnels.followed_tables import ManyTables
from headrace.stores.postgres.tunnels.snapshots import Snapshots
from headrace.stores.postgres.tunnels.table_images import TableImages, nulls, truncation_entry
from headrace.wire.pgoutput.messages import Truncation

# Before all messages of a transaction.
_FIRST = -1


class TypedTables(ManyTables):
    """The tables of a tunnel, each with its name when the tunnel was created.

    A table that was dropped or renamed is an error, because it is a column of the rows.
    """

    typed: ClassVar[bool] = True

    @property
    def tables(self) -> Mapping[str, TableSchema]:
        """The tables by their columns."""
        return {name: self._existing(relation).layout.schema for relation, name in self._names.items()}

    @property
    def schema(self) -> TableSchema:
        return schema_of(self.tables)

    def are_current(self) -> bool:
        now = self._read_members()
        if joined := [now[relation].name for relation in now.keys() - self._members.keys()]:
            raise SchemaError(
                "a table has joined the tunnel, and is no column of the rows of this reader",
                received=", ".join(sorted(joined)),
                remedy="start the query again: its rows have the column then",
            )
        return now == self._members

    def check(self) -> None:
        self._check_names()
        super().check()

    def warnings(self) -> list[str]:
        try:
            self._check_names()
        except NotFoundError as error:
            return [f"{error.problem}: {error.received}"]
        return super().warnings()

    def changes(
        self, pieces: Sequence[TableImages], snapshots: Snapshots | None, truncations: Sequence[Truncation] = ()
    ) -> Changes:
        """Return the changes of images; the truncations of a transaction are its first entries, one for each table.

        A table has no changes from before its last TRUNCATE in a transaction: so a batch that begins with a TRUNCATE
        has a whole transaction.
        """
        last = {(each.relation.oid, each.transaction.lsn): each for each in truncations}
        parts, lsns, messages = [], [], []
        for piece in _after_truncations(pieces, last):
            part, ops = piece.with_operations(snapshots)
            if len(ops):
                relation = part.images.relation.oid
                schema = self._existing(relation).layout.schema
                parts.append((self._names[relation], part.as_changes(schema, ops)))
                lsns.append(part.images.lsns)
                messages.append(part.images.messages)
        for (relation, lsn), each in last.items():
            row = nulls(self._existing(relation).layout.schema)
            parts.append((self._names[relation], truncation_entry(each, row)))
            lsns.append(np.array([lsn]))
            messages.append(np.array([_FIRST]))
        # An old row and the new one have the same message, and stay together.
        order = np.lexsort((np.concatenate(messages), np.concatenate(lsns))) if len(parts) > 1 else None
        return together(self.schema, parts, order)

    def base_rows(self, relation: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        table = self._existing(relation)
        whole = table.whole_rows(rows, table.layout.schema)
        return rows_together(self.schema, [(self._names[relation], whole)])

    def _existing(self, relation: int) -> FollowedTable:
        table = self._table(relation)
        if table is None:
            raise self._missing(relation)
        return table

    def _check_names(self) -> None:
        for relation, name in self._names.items():
            if relation not in self._current or self._current[relation].text != name:
                raise self._missing(relation)

    def _missing(self, relation: int) -> NotFoundError:
        name, now = self._names[relation], self._current.get(relation)
        return NotFoundError(
            f"table {name!r} of the tunnel was dropped" if now is None else f"table {name!r} has another name",
            received=f"tunnel of {', '.join(self._names.values())}" if now is None else now.text,
            remedy="drop the tunnel, and create a new one of the tables that exist"
            if now is None
            else "give the table its name again, or drop the tunnel, and create a new one",
        )


def _after_truncations(
    pieces: Sequence[TableImages], truncations: Mapping[tuple[int, int], Truncation]
) -> Iterator[TableImages]:
    """Yield images, without changes from before a TRUNCATE of their table in the same transaction.

    Args:
        truncations: the last TRUNCATE of each table in each transaction, by the table's oid and the transaction's LSN.
    """
    for piece in pieces:
        images, keep = piece.images, np.ones(len(piece.images), np.bool_)
        for (relation, lsn), each in truncations.items():
            if relation == images.relation.oid:
                keep &= (images.lsns != lsn) | (images.messages > each.message)
        if keep.any():
            yield piece if keep.all() else piece.filter(keep)
