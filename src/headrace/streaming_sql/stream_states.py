"""The state that the streams of a workspace keep in stores: each table of it, with its size.

The sizes are counters and statistics of the store, see `headrace.ports.Table.size`: no table is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.batches.sinks.jobs import TargetJobs
from headrace.errors import HeadraceError
from headrace.ports import TableSize
from headrace.streaming_sql.catalog import Catalog
from headrace.streaming_sql.locations import location_of
from headrace.streaming_sql.providers import is_headrace
from headrace.streaming_sql.stream_registry import StreamStatus

if TYPE_CHECKING:
    from headrace.formats.location import Location
    from headrace.ports import Store

_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class StateSize:
    """A table of state.

    Attributes:
        content: what it has, such as the kept rows of a table by a key.
        table: its name in the store of the target.
        size: its rows and bytes.
    """

    content: str
    table: str
    size: TableSize

    def facts(self) -> dict[str, Any]:
        """Return it as a record."""
        size = self.size
        return {
            "state": self.content,
            "rows": size.rows,
            "rows_exact": size.rows_exact,
            "bytes": size.bytes,
            "bytes_exact": size.bytes_exact,
            "table": self.table,
        }


def states_of(streams: Iterable[StreamStatus], catalog: Catalog) -> dict[str, list[StateSize]]:
    """Return the tables of state of streams by the streams' names; of a stream whose store does not answer none."""
    found: dict[str, list[StateSize]] = {}
    with ExitStack() as stack:
        stores: dict[str, Store] = {}
        for status in streams:
            if status.query_id is None:
                continue
            try:
                location = _target(status, catalog)
                if location is None or not location.table:
                    continue
                store = stores.get(location.store.url)
                if store is None:
                    store = stores[location.store.url] = stack.enter_context(location.open_store())
                found[status.name] = _states(store, location.table, status.query_id)
            except HeadraceError as error:
                # A page asks every few seconds, and shows no state.
                _log.debug("the state of stream %s is unknown: %s", status.name, error)
    return found


def _target(status: StreamStatus, catalog: Catalog) -> Location | None:
    """Return the location of a stream's target; None for a table of Spark."""
    table = catalog.find_table(status.target)
    return None if table is None or not is_headrace(table.provider) else location_of(table)


def _states(store: Store, target: str, query_id: str) -> list[StateSize]:
    job = TargetJobs(store).find(target)
    if job is None or job.job != query_id:
        return []
    return [StateSize(job.contents.get(name, name), name, store.table(name).size()) for name in job.state_tables]
