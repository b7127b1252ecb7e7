"""The scans and streams of a workspace that need a table, queue or tunnel."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.errors import HeadraceError
from headrace.formats.location import Location
from headrace.formats.registry import format_named
from headrace.ports import Store
from headrace.sql_text.query_text import QueryText
from headrace.streaming_sql.catalog import Catalog, ScanDefinition
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.grammar import parse
from headrace.streaming_sql.locations import location_of
from headrace.streaming_sql.providers import is_headrace
from headrace.streaming_sql.stream_registry import StreamRegistry, StreamStatus


class StreamUses:
    """Finds what the streams of a workspace read and write, by the scripts that start them again."""

    def __init__(self, catalog: Catalog, registry: StreamRegistry) -> None:
        self._catalog = catalog
        self._registry = registry

    def of_definition(self, name: str, *, only_running: bool = False) -> list[str]:
        """Return the scans of this session and the streams that use a name of the catalog, as texts.

        Args:
            only_running: leave out scans, and streams that do not run now.
        """
        wanted = name.lower()
        scans = [] if only_running else self._catalog.scans()
        found = [f"scan {scan.name}" for scan in scans if scan.table.lower() == wanted]
        statuses = self._running() if only_running else self._registry.all()
        return found + [f"stream {each.name}" for each in statuses if wanted in _names(each)]

    def of_stored(self, store: Store, name: str) -> list[str]:
        """Return the running streams that read or write a table or queue of a store, as texts."""
        return [
            f"stream {status.name}"
            for status in self._running()
            if any(self._is(definition, store, name) for definition in sorted(_names(status)))
        ]

    def of_tunnel(self, store: Store, tunnel_id: str) -> list[str]:
        """Return the running streams that read a tunnel of a store, as texts."""

        def reads(status: StreamStatus) -> bool:
            return any(self._reads(scan, store, tunnel_id) for scan in scans_of(status))

        return [f"stream {status.name}" for status in self._running() if reads(status)]

    def tunnel_of(self, scan: ScanDefinition) -> tuple[str, str] | None:
        """Return the table and the tunnel that a scan reads as a stream; None if it reads none."""
        table = self._catalog.find_table(scan.table)
        if not scan.streaming or table is None or not is_headrace(table.provider):
            return None
        option = format_named(table.provider).tunnel_option
        options = {name.lower(): value for name, value in table.resolved_options(scan.options).items()}
        tunnel = options.get(option.lower()) if option else None
        return None if tunnel is None else (scan.table.lower(), tunnel)

    def running_reader(self, tunnels: set[tuple[str, str]], besides: str) -> tuple[str, tuple[str, str]] | None:
        """Return the name of a running stream that reads one of these tunnels, and the tunnel; None if none does.

        Args:
            tunnels: pairs as from `tunnel_of`.
            besides: the name of a stream that is not looked at.
        """
        for status in self._running():
            if status.name.lower() != besides.lower():
                for scan in scans_of(status):
                    tunnel = self.tunnel_of(scan)
                    if tunnel is not None and tunnel in tunnels:
                        return status.name, tunnel
        return None

    def _running(self) -> list[StreamStatus]:
        return [status for status in self._registry.all() if status.is_live]

    def _reads(self, scan: ScanDefinition, store: Store, tunnel_id: str) -> bool:
        try:
            found = self.tunnel_of(scan)
            if found is None or (location := self._location_in(found[0], store)) is None:
                return False
            return store.tunnel(found[1], location.table).id == tunnel_id
        except HeadraceError:
            # A tunnel or a secret that is missing now: not this tunnel.
            return False

    def _is(self, definition: str, store: Store, name: str) -> bool:
        location = self._location_in(definition, store)
        return location is not None and name in (location.table, location.queue)

    def _location_in(self, definition: str, store: Store) -> Location | None:
        """Return the location of a definition if it is in a store; None otherwise."""
        table = self._catalog.find_table(definition)
        if table is None or not is_headrace(table.provider):
            return None
        try:
            location = location_of(table)
            with location.open_store() as other:
                return location if other.id == store.id else None
        except HeadraceError:
            return None


def scans_of(status: StreamStatus) -> Iterator[ScanDefinition]:
    """Yield the scans that the script of a stream creates."""
    for statement in parse(status.script):
        if isinstance(statement, st.CreateScan):
            yield ScanDefinition.from_statement(statement)


def _names(status: StreamStatus) -> set[str]:
    """Return the names of tables that a stream and its scans read and write, in lower case."""
    names: set[str] = set()
    for statement in parse(status.script):
        if isinstance(statement, st.CreateScan):
            names.add(str(statement.table).lower())
        elif isinstance(statement, st.CreateStream):
            names.add(str(statement.body.target).lower())
            names |= {name.lower() for name in QueryText(statement.body.reads.text).references()}
    return names
