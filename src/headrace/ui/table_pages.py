"""The pages of tables: list, columns and partitions, rows, changes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.ports import Store, Table, Tunnel
from headrace.tables.change_columns import ChangeShape
from headrace.tables.conditions import OPERATORS
from headrace.tunnels.values import FINISHED, ChannelKind, ChannelState, Position, Start
from headrace.types import type_name
from headrace.ui.pictures import range_text, shares
from headrace.ui.requests import Page, Request
from headrace.ui.rows import WITHOUT_VALUE, condition, read_page
from headrace.ui.site import Site, part_of
from headrace.ui.tunnel_pages import find_tunnel, tunnel_summary

CHANGE_ROWS = 50
_MAX_PARTITIONS = 64
_MAX_CHANNELS = 256


def table_list(site: Site, request: Request) -> Page:
    """The list of tables. Only the tables of one page are described."""
    part = part_of(site.store.tables(), request)
    return Page("tables.html", {"part": part, "tables": [_summary(site.store, name) for name in part.items]})


def table_page(site: Site, request: Request) -> Page:
    """One table: columns, partitions, retention and tunnels."""
    table = site.store.table(request.query.get("name", ""))
    described = table.describe()
    schema = described.schema
    tunnels = site.store.tunnels(table.name) if site.has_tunnels else []
    # In the order of keys, as the picture shows them.
    live = sorted((each for each in described.partitions if each.open), key=lambda each: each.keys.low or ())
    return Page(
        "table.html",
        {
            "name": table.name,
            "tab": "overview",
            "described": described,
            "log_reported": site.has_tunnels and site.store.capabilities.trims,
            "columns": [
                {"name": c.name, "type": type_name(c.type), "nullable": c.nullable, "key": _place(schema, c.name)}
                for c in schema.columns
            ],
            "partitions": [
                {"partition": each, "keys": range_text(each.keys), "changes": each.next - each.first}
                for each in live[:_MAX_PARTITIONS]
            ],
            "hidden_partitions": max(0, len(live) - _MAX_PARTITIONS),
            "closed_partitions": len(described.partitions) - len(live),
            "shares": shares([each.rows for each in live[:_MAX_PARTITIONS]]),
            "tunnels": [tunnel_summary(each.describe()) for each in tunnels],
        },
    )


def table_rows(site: Site, request: Request) -> Page:
    """A page of the rows of a table, in key order."""
    table = site.store.table(request.query.get("name", ""))
    given = {name: request.query.get(name, "") for name in ("column", "operator", "value", "after")}
    page, problem = None, None
    try:
        where = condition(table.schema, given["column"], given["operator"] or "=", given["value"])
        page = read_page(table, given["after"], where)
    except HeadraceError as error:
        problem = str(error)
    values = {
        "name": table.name,
        "tab": "rows",
        "schema": table.schema,
        "page": page,
        "problem": problem,
        "given": given,
        "operators": OPERATORS,
        "without_value": WITHOUT_VALUE,
        "key": set(table.schema.primary_key),
    }
    return Page("rows.html", values, 200 if problem is None else 400)


def table_changes(site: Site, request: Request) -> Page:
    """The last changes of a table, as a tunnel of it reads them. Nothing is committed."""
    table = site.store.table(request.query.get("name", ""))
    tunnels = site.store.tunnels(table.name) if site.has_tunnels else []
    chosen = request.query.get("tunnel") or (tunnels[0].id if tunnels else "")
    columns, rows, problem = _changes(site, table, chosen) if chosen else ([], [], None)
    return Page(
        "changes.html",
        {
            "name": table.name,
            "tab": "changes",
            "tunnels": [{"id": each.id, "name": each.name} for each in tunnels],
            "chosen": chosen,
            "columns": columns,
            "rows": rows,
            "problem": problem,
            "rewinds": site.store.capabilities.rewinds,
        },
    )


def _changes(site: Site, table: Table, chosen: str) -> tuple[list[str], list[tuple[Any, ...]], str | None]:
    """Return the columns and the last changes of the channels, newest first.

    A store that rewinds shows them also after they were committed.
    """
    tunnel = find_tunnel(site, chosen)
    names: list[str] = []
    found: list[tuple[Any, ...]] = []
    try:
        ends, channels = tunnel.latest_positions(), tunnel.channels()
        starts = {each.id: each.committed for each in channels}
        if site.store.capabilities.rewinds:
            starts.update(tunnel.start_positions(Start.parse("earliest")))
        shape = ChangeShape(tunnel.table.schema)
        names = list(shape.schema.names)
        parents = {parent for each in channels for parent in each.parents}
        readable = [
            each
            for each in channels
            if each.kind is not ChannelKind.BASE_DATA and starts.get(each.id, FINISHED) != FINISHED
        ]
        # Channels without children have the newest changes.
        for channel in sorted(readable, key=lambda each: each.id in parents)[:_MAX_CHANNELS]:
            try:
                changes = _newest(tunnel, channel.id, starts[channel.id], ends.get(channel.id))
            except HeadraceError:
                if channel.state == ChannelState.OPEN:
                    raise
                # A service may refuse to read a channel that waits for its parents.
                continue
            if changes is not None:
                found += zip(*(column.to_pylist() for column in shape.rows(changes).columns), strict=True)
    except HeadraceError as error:
        return names, [], str(error)
    when = names.index("_commit_version")
    found.reverse()
    found.sort(key=lambda row: row[when] or 0, reverse=True)
    order = [names.index(name) for name in ("_change_type", "_commit_timestamp")]
    order += [place for place, name in enumerate(names) if not name.startswith("_c")]
    return [names[place] for place in order], [tuple(row[p] for p in order) for row in found[:CHANGE_ROWS]], None


def _newest(tunnel: Tunnel, channel: str, start: Position, end: Position | None) -> pa.RecordBatch | None:
    """Return the last changes of a channel between two positions; None if there are none."""
    behind = tunnel.backlog(channel, start, end)
    if behind.rows == 0:
        return None
    if behind.known > CHANGE_ROWS:
        start = tunnel.advance(channel, start, behind.known - CHANGE_ROWS)
    return tunnel.read(channel, start, CHANGE_ROWS, end).changes


def _summary(store: Store, name: str) -> dict[str, Any]:
    try:
        described = store.table(name).describe()
    except HeadraceError as error:
        # Another process has dropped it, or the user may not read it.
        return {"name": name, "problem": error.problem}
    return {
        "name": name,
        "problem": None,
        "rows": described.rows,
        "columns": len(described.schema.columns),
        "key": ", ".join(described.schema.primary_key),
        "partitions": sum(each.open for each in described.partitions),
        "log_bytes": sum(each.log_bytes for each in described.partitions) if described.partitions else None,
        "held_by": described.held_by,
    }


def _place(schema: Any, column: str) -> int | None:
    return schema.primary_key.index(column) + 1 if column in schema.primary_key else None
