"""The pages of queues, consumers and producers."""

from __future__ import annotations

from typing import Any

from headrace.errors import HeadraceError
from headrace.model.tunnels.lag import Lag
from headrace.model.types import type_name
from headrace.ports import Consumer
from headrace.rows.shown_values import shown_values
from headrace.ui.pictures import offset_place, shares
from headrace.ui.requests import Page, Request, one_of, whole_number
from headrace.ui.rows import PAGE_ROWS
from headrace.ui.site import Site, part_of

_MAX_PARTITIONS = 64
_MAX_SESSIONS = 200


def queue_list(site: Site, request: Request) -> Page:
    """The list of queues. Only the queues of one page are described."""
    part = part_of(site.store.queues(), request)
    return Page("queues.html", {"part": part, "queues": [_summary(site, name) for name in part.items]})


def queue_page(site: Site, request: Request) -> Page:
    """One queue: columns, partitions, trimming and consumers."""
    described = site.store.queue(request.query.get("name", "")).describe()
    shown = described.partitions[:_MAX_PARTITIONS]
    return Page(
        "queue.html",
        {
            "name": described.name,
            "tab": "overview",
            "described": described,
            "columns": [
                {"name": c.name, "type": type_name(c.type), "nullable": c.nullable} for c in described.schema.columns
            ],
            "partitions": shown,
            "hidden_partitions": len(described.partitions) - len(shown),
            "shares": shares([each.bounds.rows for each in shown]),
            "consumers": [
                _progress(site.store.consumer(each.consumer), described.name, vital=each.vital)
                for each in described.registrations
            ],
        },
    )


def queue_rows(site: Site, request: Request) -> Page:
    """Rows of one partition of a queue: from a row index, or the newest."""
    queue = site.store.queue(request.query.get("name", ""))
    bounds = queue.bounds()
    partition = int(one_of(request, "partition", map(str, bounds), str(next(iter(bounds), 0))))
    limits = bounds[partition]
    newest = max(limits.lower, limits.upper - PAGE_ROWS)
    first = whole_number(request.query.get("from", ""), newest, low=limits.lower, high=max(limits.lower, limits.upper))
    rows: list[tuple[Any, ...]] = []
    problem = None
    try:
        page = queue.read(partition, first, PAGE_ROWS)
        columns = list(page.rows.schema.names)
        rows = list(zip(*map(shown_values, page.rows.columns), strict=True))
    except HeadraceError as error:
        columns, problem = [], str(error)
    return Page(
        "queue_rows.html",
        {
            "name": queue.name,
            "tab": "rows",
            "partitions": list(bounds),
            "partition": partition,
            "bounds": limits,
            "first": first,
            "newest": newest,
            "page_rows": PAGE_ROWS,
            "columns": columns,
            "rows": rows,
            "problem": problem,
        },
    )


def consumer_list(site: Site, request: Request) -> Page:
    """The consumers, each with its progress in every queue that it is registered for."""
    part = part_of(site.store.consumers(), request)
    consumers = []
    for name in part.items:
        try:
            consumer = site.store.consumer(name)
            queues = [_progress(consumer, each.queue, vital=each.vital) for each in consumer.registrations()]
            consumers.append({"name": name, "queues": queues, "problem": None})
        except HeadraceError as error:
            consumers.append({"name": name, "queues": [], "problem": error.problem})
    return Page("consumers.html", {"part": part, "consumers": consumers})


def producer_list(site: Site, request: Request) -> Page:
    """The producers and their sessions."""
    part = part_of(site.store.producers(), request)
    producers = []
    for name in part.items:
        try:
            sessions = site.store.producer(name).sessions()
            producers.append({"name": name, "sessions": sessions[:_MAX_SESSIONS], "problem": None})
        except HeadraceError as error:
            producers.append({"name": name, "sessions": [], "problem": error.problem})
    return Page("producers.html", {"part": part, "producers": producers})


def _summary(site: Site, name: str) -> dict[str, Any]:
    try:
        described = site.store.queue(name).describe()
    except HeadraceError as error:
        return {"name": name, "problem": error.problem}
    return {
        "name": name,
        "problem": None,
        "rows": sum(each.bounds.rows for each in described.partitions),
        "bytes": sum(each.bounds.bytes for each in described.partitions),
        "partitions": len(described.partitions),
        "consumers": len(described.registrations),
        "last_commit": max((each.last_commit or 0.0 for each in described.partitions), default=0.0) or None,
    }


def _progress(consumer: Consumer, queue: str, *, vital: bool) -> dict[str, Any]:
    status = consumer.status(queue)
    lag = Lag.of_consumer(status)
    return {
        "consumer": consumer.name,
        "queue": queue,
        "vital": vital,
        "unread": lag.rows,
        "lag_seconds": lag.seconds,
        "partitions": [
            {"status": each, "place": offset_place(each.bounds.lower, each.bounds.upper, each.offset)}
            for each in status[:_MAX_PARTITIONS]
        ],
        "hidden_partitions": max(0, len(status) - _MAX_PARTITIONS),
    }
