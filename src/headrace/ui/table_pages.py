"""The pages of tables: list, columns and partitions, rows, changes."""

from __future__ import annotations

from typing import Any

from headrace.errors import HeadraceError
from headrace.model.tables.conditions import OPERATORS
from headrace.model.types import type_name
from headrace.ports import Store
from headrace.ui.pictures import range_text, shares
from headrace.ui.recent_changes import Changes, recent_changes
from headrace.ui.requests import Page, Request
from headrace.ui.rows import condition, read_page
from headrace.ui.site import Site, part_of
from headrace.ui.tunnel_pages import find_tunnel, tunnel_summary

_MAX_PARTITIONS = 64


def table_list(site: Site, request: Request) -> Page:
    """The list of tables. Only the tables of one page are described."""
    part = part_of(site.tables(request.query.get("q", "")), request)
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
        "key": set(table.schema.primary_key),
    }
    return Page("rows.html", values, 200 if problem is None else 400)


def table_changes(site: Site, request: Request) -> Page:
    """The last changes of a table, as a tunnel of it reads them. Nothing is committed."""
    table = site.store.table(request.query.get("name", ""))
    tunnels = site.store.tunnels(table.name) if site.has_tunnels else []
    chosen = request.query.get("tunnel") or (tunnels[0].id if tunnels else "")
    rewinds = site.store.capabilities.rewinds
    changes, problem = Changes([], []), None
    if chosen:
        tunnel = find_tunnel(site, chosen)
        try:
            changes = recent_changes(tunnel, rewinds=rewinds)
        except HeadraceError as error:
            problem = str(error)
    return Page(
        "changes.html",
        {
            "name": table.name,
            "tab": "changes",
            "tunnels": [{"id": each.id, "name": each.name} for each in tunnels],
            "chosen": chosen,
            "changes": changes,
            "problem": problem,
            "rewinds": rewinds,
        },
    )


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
