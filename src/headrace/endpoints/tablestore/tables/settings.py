"""What Tablestore knows of a table and the embedded store does not: kept as JSON in a table of the instance itself."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import NotFoundError
from headrace.wire.tablestore.limits import DEFAULT_VERSION_DEVIATION

if TYPE_CHECKING:
    from headrace.ports import Store, Table

SETTINGS_TABLE = ":tables"
"""No table of Tablestore can have this name."""
FOR_EVER = -1


@dataclass(frozen=True)
class Stream:
    """A table's stream, while it is enabled.

    Attributes:
        id: changes whenever the stream is enabled.
        enabled: when that was, in µs since 1970.
        hours: for how long changes are kept.
        columns: whose previous values records are to hold.
    """

    id: str
    enabled: int
    hours: int
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableSettings:
    """The settings of one table; the defaults are those of a table that headrace itself has made.

    Attributes:
        defined_columns: (name, code of the type) of each predefined column.
        auto_increment: the key column that the server numbers, if there is one.
        max_versions: how many versions of a cell are kept.
        time_to_live: seconds after which a cell is no longer given, or `FOR_EVER`.
        deviation: seconds by which a given cell timestamp may be off.
        allow_update: whether cells of rows that are there may be set.
        update_full_row: what a client said when it made the table; nothing follows from it here.
        read_units, write_units: the throughput that was asked for; nothing follows from it here.
        created: µs since 1970, 0 if unknown.
        throughput_changed: seconds since 1970.
    """

    defined_columns: tuple[tuple[str, int], ...] = ()
    auto_increment: str | None = None
    max_versions: int = 1
    time_to_live: int = FOR_EVER
    deviation: int = DEFAULT_VERSION_DEVIATION
    allow_update: bool = True
    update_full_row: bool = False
    read_units: int = 0
    write_units: int = 0
    created: int = 0
    throughput_changed: int = 0
    stream: Stream | None = None

    def expired_before(self, now: int | None = None) -> int:
        """Return the timestamp (ms) below which cells are too old to be given."""
        if self.time_to_live == FOR_EVER:
            return 0
        return (time.time_ns() // 1_000_000 if now is None else now) - self.time_to_live * 1000


class SettingsTable:
    """The settings of all tables of one instance."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._table: Table | None = None

    def get(self, table: str) -> TableSettings:
        """Return the settings of a table; the defaults if nothing was saved."""
        try:
            row = self._opened().get({"name": table})
        except NotFoundError:
            return TableSettings()
        return TableSettings() if row is None else _parsed(row["settings"])

    def save(self, table: str, settings: TableSettings) -> None:
        """Save the settings of a table."""
        created = self._store.create_table(
            SETTINGS_TABLE, {"name": "string", "settings": "string"}, "name", exist_ok=True
        )
        created.put({"name": table, "settings": json.dumps(dataclasses.asdict(settings))})

    def delete(self, table: str) -> None:
        """Forget the settings of a table."""
        with contextlib.suppress(NotFoundError):
            self._opened().delete({"name": table})

    def _opened(self) -> Table:
        if self._table is None:
            self._table = self._store.table(SETTINGS_TABLE)
        return self._table


def _parsed(text: str) -> TableSettings:
    values = json.loads(text)
    stream = values.pop("stream")
    if stream is not None:
        stream = Stream(**{**stream, "columns": tuple(stream["columns"])})
    defined = tuple((name, kind) for name, kind in values.pop("defined_columns"))
    return TableSettings(**values, defined_columns=defined, stream=stream)
