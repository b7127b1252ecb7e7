"""The options of a table, the same for every store."""

from __future__ import annotations

from dataclasses import dataclass


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
