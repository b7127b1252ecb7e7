"""`Followed`: what a tunnel follows, one table or several, as its change log and its base data need it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import pyarrow as pa

from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import TableSchema
from headrace.stores.postgres.tunnels.base_data import ChunkRows
from headrace.stores.postgres.tunnels.pages import Visibility, Window
from headrace.stores.postgres.tunnels.publications import PublishedTable
from headrace.wire.pgoutput.messages import Images


class Followed(Protocol):
    """The tables of a tunnel, and the rows that the tunnel makes of their changes.

    The definitions of the tables are those at the time of the last `refresh`.
    """

    @property
    def schema(self) -> TableSchema:
        """The columns of the tunnel's rows."""

    @property
    def relations(self) -> Collection[int]:
        """The oids of the tables in the messages of the slot."""

    @property
    def binary(self) -> bool:
        """Whether the decoder reads all columns in binary format."""

    def pieces(self, images: Images) -> Sequence[Images]:
        """Return images in pieces, between whose changes the tunnel has not looked at the definition of the table."""

    def problem(self, images: Images) -> str | None:
        """Return why images of one piece are no rows of their table now; None if they are."""

    @property
    def published(self) -> Sequence[PublishedTable]:
        """The tables as a publication should have them."""

    def refresh(self) -> bool:
        """Read the definitions of the tables, if they have changed; return whether they have."""

    def check(self) -> None:
        """Check that the tables can be followed, and that the log has all changes of their rows.

        Raises:
            UnsupportedError: a table cannot be followed any more.
            DataLossError: rows have changed without changes in the log.
        """

    def accept(self) -> bool:
        """Accept what is not in the log; return whether there is anything."""

    def check_new_columns(self, names: Sequence[str]) -> None:
        """See `headrace.ports.Tunnel.check_new_columns`."""

    def warnings(self) -> list[str]:
        """Return what `check` fails for, and what is not followed and may be expected to be, in sentences."""

    def name_of(self, relation: int) -> str:
        """Return the name of a table, for errors."""

    def window(self, images: Sequence[Images], start: int, end: int, in_base: Visibility | None) -> Window:
        """Return the changes of images of these tables; see `headrace.stores.postgres.tunnels.pages.window`."""

    def snapshot(self, relation: int, keys: KeyRange) -> ChunkRows:
        """Return the rows of a key range of a table with their snapshot, from one short transaction."""

    def base_rows(self, relation: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of `snapshot`, which may be older than the last change of the table, as rows of the tunnel."""
