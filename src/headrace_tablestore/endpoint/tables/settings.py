"""Settings of tables that only Tablestore has, kept as JSON in a table of the instance."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace_tablestore.wire.limits import DEFAULT_VERSION_DEVIATION

SETTINGS_TABLE = ":tables"
"""The name is invalid for a table of Tablestore."""
FOR_EVER = -1


@dataclass(frozen=True)
class Stream:
    """A table's stream, while it is enabled.

    Attributes:
        id: a new id each time the stream is enabled.
        enabled: when the stream was enabled, in µs since 1970.
        hours: for how long changes are kept.
        columns: the columns whose previous values records have.
    """

    id: str
    enabled: int
    hours: int
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableSettings:
    """The settings of a table. The defaults are those of a table that headrace has created.

    Attributes:
        defined_columns: (name, code of the type) of each predefined column.
        auto_increment: the key column that the server numbers, if any.
        max_versions: how many versions of a cell are kept.
        time_to_live: seconds after which a cell expires, or `FOR_EVER`.
        deviation: the limit of the difference between a cell's timestamp and the server's clock, in seconds.
        allow_update: whether rows can be updated.
        update_full_row: the client's value at creation. The endpoint does not use it.
        read_units, write_units: the reserved throughput. The endpoint does not use it.
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
        """Return the timestamp (ms) below which cells have expired."""
        if self.time_to_live == FOR_EVER:
            return 0
        return (time.time_ns() // 1_000_000 if now is None else now) - self.time_to_live * 1000


def parse_settings(
    defined_columns: Iterable[tuple[str, int]] = (), stream: dict[str, Any] | None = None, **values: Any
) -> TableSettings:
    """Return settings from their JSON; without arguments the settings of a table that headrace has created."""
    return TableSettings(
        defined_columns=tuple((name, kind) for name, kind in defined_columns),
        stream=None if stream is None else Stream(**{**stream, "columns": tuple(stream["columns"])}),
        **values,
    )
