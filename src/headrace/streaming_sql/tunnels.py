"""The statements about tunnels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, UnsupportedError
from headrace.inspect.uses import check_unused, uses_of_tunnel
from headrace.model.tunnels.values import TunnelKind
from headrace.options.names import check_names
from headrace.sql_text.script import Name
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.locations import location_of, locations, table_in_store
from headrace.streaming_sql.providers import HEADRACE_PROVIDERS, is_headrace
from headrace.streaming_sql.results import Result
from headrace.streaming_sql.stream_uses import StreamUses

if TYPE_CHECKING:
    from headrace.formats.location import Location
    from headrace.ports import Store, Tunnel

# Options of some stores, see `headrace.ports.Capabilities.tunnel_options`, and their names there.
_TEXTS = {
    **{name: name for name in ("slot", "publication", "columns", "exclude", "where")},
    "maxSlotBytes": "max_slot_bytes",
    "atSlotLimit": "at_slot_limit",
}
_OPTIONS = ("start", "baseChannels", "failover", "mask", *_TEXTS)


class Tunnels:
    """The tunnels in the stores of the catalog's tables."""

    def __init__(self, catalog: Catalog, uses: StreamUses) -> None:
        self._catalog = catalog
        self._uses = uses

    def create(self, statement: st.CreateTunnel) -> Result:
        """Create a tunnel on a table of the catalog, or on several of one store; return its id in the result."""
        name = str(statement.name)
        start, base_channels, others = _tunnel_options(statement.options)
        definitions = [self._catalog.table(str(table)) for table in statement.tables]
        found = [self._location(each) for each in definitions]
        _check_same_store(statement.tables, found)
        location, tables = found[0], list(map(table_in_store, definitions, found))
        with location.open_store() as store:
            try:
                tunnel = store.create_tunnel(
                    tables if len(tables) > 1 else tables[0],
                    name,
                    TunnelKind.parse(statement.kind or "BaseAndStream"),
                    start=start,
                    base_channels=base_channels,
                    **others,
                )
            except AlreadyExistsError:
                if not statement.if_not_exists:
                    raise
                tunnel = store.tunnel(name, location.table) if len(tables) == 1 else _of_several(store, name)
            row = (tunnel.id, tunnel.name, tunnel.table.name, tunnel.kind.value)
        return Result(("id", "name", "table", "kind"), (row,), f"tunnel {name} is {tunnel.id}")

    def show(self, statement: st.ShowTunnels) -> Result:
        rows: list[tuple[object, ...]] = []
        for location in self._locations(statement.table):
            with location.open_store() as store:
                for tunnel in store.tunnels(location.table if statement.table is not None else None):
                    described = tunnel.describe()
                    rows.append((
                        described.id, described.name, described.table, described.kind.value, described.stage,
                        described.backlog_rows,
                    ))  # fmt: skip
        return Result(("id", "name", "table", "kind", "stage", "lag"), tuple(rows))

    def describe(self, statement: st.DescribeTunnel) -> Result:
        """Return one row for each channel of a tunnel."""
        columns = ("tunnel", "channel", "kind", "state", "lag", "lag_seconds")
        store, tunnel = self._find(statement.name, statement.table)
        with store:
            described = tunnel.describe()
        rows = tuple(
            (
                described.id, item.channel.id, item.channel.kind.value, item.channel.state.value, item.backlog.unread,
                item.backlog.seconds,
            )
            for item in described.channels
        )  # fmt: skip
        return Result(columns, rows)

    def drop(self, statement: st.DropTunnel) -> Result:
        """Remove a tunnel with its position.

        Raises:
            InUseError: running streams or clients read it, and the statement has no ``CASCADE``.
        """
        try:
            store, tunnel = self._find(statement.name, statement.table)
        except NotFoundError:
            if not statement.if_exists:
                raise
            return Result(message=f"tunnel {statement.name} does not exist")
        with store:
            if not statement.cascade:
                check_unused(
                    f"tunnel {tunnel.name}",
                    lambda: self._uses.of_tunnel(store, tunnel.id),
                    lambda: uses_of_tunnel(store, tunnel.id),
                    by="CASCADE",
                )
            store.drop_tunnel(tunnel.id)
        remains = "".join(f"; {each} remains" for each in tunnel.borrowed)
        return Result(message=f"tunnel {tunnel.name} ({tunnel.id}) dropped{remains}")

    def _find(self, name: Name, table: Name | None) -> tuple[Store, Tunnel]:
        """Return a tunnel by id or name, and its store. Without a table, search the stores of all tables."""
        for location in self._locations(table):
            store = location.open_store()
            try:
                return store, store.tunnel(str(name), location.table if table is not None else None)
            except NotFoundError:
                store.close()
        raise NotFoundError("no such tunnel", received=str(name), remedy="SHOW TUNNELS lists them")

    def _locations(self, table: Name | None) -> list[Location]:
        """Return the location of one table, or one location for each store of the catalog's tables."""
        if table is not None:
            return [self._location(self._catalog.table(str(table)))]
        return locations(self._catalog, HEADRACE_PROVIDERS)

    def _location(self, table: TableDefinition) -> Location:
        if not is_headrace(table.provider):
            raise UnsupportedError(
                f"table {table.name} cannot have tunnels",
                received=f"USING {table.provider}",
                valid=[f"USING {provider}" for provider in HEADRACE_PROVIDERS],
            )
        location = location_of(table)
        if location.queue is not None:
            raise UnsupportedError(f"{table.name} is a queue, and queues have consumers", remedy="CREATE CONSUMER")
        return location


def _of_several(store: Store, name: str) -> Tunnel:
    return next(tunnel for tunnel in store.tunnels() if tunnel.name == name and tunnel.whole_transactions)


def _check_same_store(tables: Sequence[Name], found: Sequence[Location]) -> None:
    """Raise `UnsupportedError` unless all tables are in one store."""
    stores = [each.absolute().store.url for each in found]
    if len(set(stores)) > 1:
        raise UnsupportedError(
            "a tunnel follows tables of one store",
            received="; ".join(f"{table} in {store}" for table, store in zip(tables, stores, strict=True)),
            remedy="create a tunnel for each store",
        )


def _tunnel_options(options: Mapping[str, str]) -> tuple[str, int | None, dict[str, Any]]:
    names = check_names("a tunnel", options, _OPTIONS, any_case=True)
    given = {names[name]: value for name, value in options.items()}
    channels = given.get("baseChannels")
    if channels is not None and not (channels.isascii() and channels.isdigit() and 0 < len(channels) < 9):
        raise OptionError(
            "invalid value of option baseChannels", received=repr(channels), valid="a positive whole number"
        )
    others: dict[str, Any] = {_TEXTS[name]: given[name] for name in _TEXTS if name in given}
    failover = given.get("failover")
    if failover is not None:
        if failover.lower() not in ("true", "false"):
            raise OptionError("invalid value of option failover", received=repr(failover), valid="true or false")
        others["failover"] = failover.lower() == "true"
    if "mask" in given:
        try:
            others["mask"] = json.loads(given["mask"], object_pairs_hook=_each_once)
        except ValueError:
            raise OptionError(
                "invalid value of option mask",
                received=repr(given["mask"]),
                valid='JSON with each column once: {"email": "hash"}',
            ) from None
    return given.get("start", "latest"), None if channels is None else int(channels), others


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found
