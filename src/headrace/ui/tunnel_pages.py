"""The pages of tunnels: the list, and one tunnel with its channels as a tree."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.errors import HeadraceError, NotFoundError
from headrace.ports import ChannelDescription, Tunnel, TunnelDescription
from headrace.ui.requests import Page, Request, whole_number
from headrace.ui.site import LIST_LENGTH, Site, part_of
from headrace.ui.slots import slot_of

CHANNELS_LENGTH = 100
_MAX_DEPTH = 12
_TOKEN_LENGTH = 40
_LOOK_SECONDS = 5.0


def tunnel_list(site: Site, request: Request) -> Page:
    """The list of tunnels. Only the tunnels of one page are described."""
    tunnels = {f"{each.table.name}\0{each.name}\0{each.id}": each for each in site.store.tunnels()}
    part = part_of(sorted(tunnels), request, LIST_LENGTH)
    return Page("tunnels.html", {"part": part, "tunnels": list(_summaries(tunnels, part.items))})


def tunnel_page(site: Site, request: Request) -> Page:
    """One tunnel, with a page of its channels, parents before their children."""
    tunnel = find_tunnel(site, request.query.get("id", ""))
    described = tunnel.describe()
    ordered = in_tree_order(described.channels)
    last = max(1, -(-len(ordered) // CHANNELS_LENGTH))
    number = whole_number(request.query.get("page", ""), 1, low=1, high=last)
    states: dict[str, int] = {}
    for each in described.channels:
        states[str(each.channel.state)] = states.get(str(each.channel.state), 0) + 1
    return Page(
        "tunnel.html",
        {
            "tunnel": tunnel_summary(described),
            "details": {name: value for name, value in described.details.items() if value is not None},
            "states": states,
            "channels": [
                {
                    "id": each.channel.id,
                    "kind": str(each.channel.kind),
                    "state": str(each.channel.state),
                    "parents": each.channel.parents,
                    "depth": depth,
                    "position": _short(tunnel.shown_position(each.channel.committed)),
                    "client": each.client_tag or each.client,
                    "backlog": each.backlog,
                }
                for each, depth in ordered[(number - 1) * CHANNELS_LENGTH : number * CHANNELS_LENGTH]
            ],
            "number": number,
            "last": last,
        },
    )


def find_tunnel(site: Site, tunnel_id: str) -> Tunnel:
    """Return a tunnel by its id.

    Raises:
        NotFoundError: the store has no such tunnel.
    """
    if not tunnel_id:
        raise NotFoundError("the address of the page has no tunnel")
    return site.store.tunnel(tunnel_id)


def tunnel_summary(described: TunnelDescription) -> dict[str, Any]:
    """Return the values of a tunnel in a list."""
    return {
        "id": described.id,
        "name": described.name,
        "table": described.table,
        "kind": str(described.kind),
        "stage": described.stage,
        "created": described.created,
        "channels": len(described.channels),
        "lag_rows": described.backlog_rows,
        "lag_at_least": sum(each.backlog.known for each in described.channels),
        "lag_seconds": described.oldest_unread,
        "waits": described.waits,
        # The number that fills the disk of a server; of stores whose logs are not kept for tunnels, it is unknown.
        "retained_bytes": described.details.get("retained_bytes"),
        "slot": slot_of(described.details),
        "warnings": described.warnings,
    }


def slots_in_need(site: Site) -> list[dict[str, Any]]:
    """Return the tunnels whose slots need a person, as of the last seconds: reads of their state cost the server work.

    A stream that has failed or was stopped is such a tunnel's reader in most cases.
    """
    if not site.has_tunnels or "slot" not in site.store.capabilities.tunnel_options:
        return []
    looked, found = site.slots_in_need
    if time.monotonic() >= looked + _LOOK_SECONDS:
        tunnels = {tunnel.id: tunnel for tunnel in site.store.tunnels()[:LIST_LENGTH]}
        found = [each for each in _summaries(tunnels, tunnels) if each["slot"] and (each["warnings"] or each["waits"])]
        site.slots_in_need = time.monotonic(), found
    return found


def in_tree_order(channels: Iterable[ChannelDescription]) -> list[tuple[ChannelDescription, int]]:
    """Return channels, each after its first parent and with its depth in the tree. Other channels are roots."""
    by_id = {each.channel.id: each for each in channels}
    children: dict[str, list[str]] = {}
    roots: list[str] = []
    for name, each in by_id.items():
        parent = next((parent for parent in each.channel.parents if parent in by_id), None)
        if parent is None:
            roots.append(name)
        else:
            children.setdefault(parent, []).append(name)
    found: list[tuple[ChannelDescription, int]] = []
    pending = [(name, 0) for name in reversed(roots)]
    while pending:
        name, depth = pending.pop()
        found.append((by_id[name], min(depth, _MAX_DEPTH)))
        pending += [(child, depth + 1) for child in reversed(children.get(name, ()))]
    return found


def _summaries(tunnels: Mapping[str, Tunnel], names: Iterable[str]) -> Iterable[dict[str, Any]]:
    for name in names:
        try:
            yield {**tunnel_summary(tunnels[name].describe()), "problem": None}
        except HeadraceError as error:
            tunnel = tunnels[name]
            summary = {"id": tunnel.id, "name": tunnel.name, "table": tunnel.table.name, "slot": None}
            yield {**summary, "problem": error.problem}


def _short(token: str) -> str:
    return token if len(token) <= _TOKEN_LENGTH else token[:_TOKEN_LENGTH] + "…"
