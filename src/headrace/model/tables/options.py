"""The options of a table, the same for every store."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from headrace.errors import UnsupportedError
from headrace.options.names import check_names

PARTITION_BY = "partition_by"
"""The option of a new table of a lake with its partition columns."""


@dataclass(frozen=True)
class TableOptions:
    """The options of a table's change log.

    Attributes:
        pre_images: log the row before each replacement and update, and the whole row of each delete.
        retention_seconds: remove changes that are older than this; None keeps all changes.
        retention_bytes: the approximate maximum size of the log of a partition; None is no limit.
        retention_ignores_tunnels: remove also changes that a live tunnel has not read. By default these changes are
            kept, and `Table.describe` returns the tunnel that holds them.
        change_log: log changes. A table without a log can have no tunnels; it is chosen when the table is created.
    """

    pre_images: bool = False
    retention_seconds: float | None = 7 * 86400.0
    retention_bytes: int | None = None
    retention_ignores_tunnels: bool = False
    change_log: bool = True


def check_option_names(given: Collection[str], more: Collection[str] = ()) -> None:
    """Check the names of a table's options.

    Args:
        more: the options that tables of this store have besides those of `TableOptions`.

    Raises:
        OptionError: a name is unknown.
        UnsupportedError: the store does not divide its tables by columns.
    """
    if PARTITION_BY in given and PARTITION_BY not in more:
        raise UnsupportedError(
            "tables of this store have no partition columns",
            received=PARTITION_BY,
            valid="partition columns of tables of Delta Lake, DuckLake and Iceberg",
            remedy="leave out PARTITIONED BY, or --partition-by, or create the table in a lake",
        )
    check_names("a table", given, sorted([*vars(TableOptions()), *more]))
