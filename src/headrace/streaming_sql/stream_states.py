"""What the streams of a workspace keep beside their targets: tables of state with their sizes, and bad rows.

The sizes are counters and statistics of the store, see `headrace.ports.Table.size`: no table of state is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.compute as pc

from headrace.batches.sinks.jobs import TargetJobs
from headrace.errors import HeadraceError, NotFoundError, UnsupportedError
from headrace.model.tables.bad_rows import table_name
from headrace.ports import RetriedRows, TableSize
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


class KeptBeside(NamedTuple):
    """What a stream keeps beside its target.

    Attributes:
        states: the tables of its state.
        bad_rows: the number of its bad rows; None if the target has no table of them, or its store does not answer.
    """

    states: list[StateSize]
    bad_rows: int | None


def kept_beside(streams: Iterable[StreamStatus], catalog: Catalog) -> dict[str, KeptBeside]:
    """Return what streams keep beside their targets, by the streams' names. Each store is opened once."""
    found: dict[str, KeptBeside] = {}
    with ExitStack() as stack:
        stores: dict[str, Store] = {}
        for status in streams:
            found[status.name] = KeptBeside([], None)
            try:
                location = _target(status, catalog)
                if status.query_id is None or location is None or not location.table:
                    continue
                store = stores.get(location.store.url)
                if store is None:
                    store = stores[location.store.url] = stack.enter_context(location.open_store())
                states = _states(store, location.table, status)
                found[status.name] = KeptBeside(states, _bad_rows(store, location.table, status))
            except HeadraceError as error:
                # A page asks every few seconds, and shows nothing.
                _log.debug("what stream %s keeps beside its target is unknown: %s", status.name, error)
    return found


def retry_bad_rows(status: StreamStatus, catalog: Catalog) -> RetriedRows:
    """Write the bad rows of a stream's target again; see `headrace.ports.Store.retry_bad_rows`.

    Raises:
        NotFoundError: the target has no table of bad rows.
        UnsupportedError: its store keeps none.
    """
    location = _target(status, catalog)
    if location is None or not location.table:
        raise UnsupportedError(
            f"stream {status.name} writes no table of a store, so it keeps no bad rows",
            received=status.target,
            valid="a stream into a table of an embedded store or PostgreSQL, with badRows = 'table'",
        )
    with location.open_store() as store:
        return store.retry_bad_rows(location.table)


def _bad_rows(store: Store, target: str, status: StreamStatus) -> int | None:
    if not store.capabilities.bad_rows:
        return None
    try:
        rows = store.table(table_name(target)).scan(["stream"]).read_all()
    except NotFoundError:
        return None
    return int(pc.sum(pc.equal(rows.column("stream"), status.name)).as_py() or 0)


def _target(status: StreamStatus, catalog: Catalog) -> Location | None:
    """Return the location of a stream's target; None for a table of Spark."""
    table = catalog.find_table(status.target)
    return None if table is None or not is_headrace(table.provider) else location_of(table)


def _states(store: Store, target: str, status: StreamStatus) -> list[StateSize]:
    job = TargetJobs(store).find(target)
    if job is None or job.job != status.query_id:
        return []
    return [StateSize(job.contents.get(name, name), name, store.table(name).size()) for name in job.state_tables]
