"""The pages of streams: all with their graphs, one with its charts, and the actions start, stop and drop."""

from __future__ import annotations

import math
import time
from pathlib import Path

from headrace.errors import NotFoundError
from headrace.streaming_sql.stream_history import PARTS
from headrace.streaming_sql.stream_process import log_file, start_process
from headrace.streaming_sql.stream_registry import STATES, StreamStatus
from headrace.streaming_sql.stream_states import KeptBeside, kept_beside
from headrace.ui.requests import Page, Request, one_of
from headrace.ui.site import Site, part_of
from headrace.ui.stream_charts import charts_of
from headrace.ui.stream_graph import StreamGraph, graph_of, guarantee_of
from headrace.ui.tunnel_pages import slots_in_need

_ORDER = ("failed", "lost", "starting", "running", "stopped", "finished")
_STEP_SECONDS = 10
PERIODS = {"hour": 3600.0, "day": 86400.0}
_LIST_LENGTH = 20


def stream_list(site: Site, request: Request) -> Page:
    """All streams: source, statement and sink, with rates and lag."""
    site.collect_ended()
    # What needs a person is first.
    every = sorted(site.registry.all(), key=lambda each: _ORDER.index(each.state))
    states: dict[str, int] = {}
    for status in every:
        states[status.state] = states.get(status.state, 0) + 1
    state = one_of(request, "state", STATES, "")
    streams = {status.name: status for status in every if state in ("", status.state)}
    part = part_of(list(streams), request, _LIST_LENGTH)
    shown = [{"status": streams[name], "graph": _graph(site, streams[name])} for name in part.items]
    values = {"part": part, "streams": shown, "states": states, "state": state, "counts": _counts(site)}
    return Page("streams.html", {**values, "slots": slots_in_need(site)})


def stream_page(site: Site, request: Request) -> Page:
    """One stream."""
    site.collect_ended()
    status = site.registry.get(request.query.get("name", ""))
    period = one_of(request, "period", PERIODS, "hour")
    # The period moves in steps: the page is sent to browsers whenever it changes.
    until = -(-time.time() // _STEP_SECONDS) * _STEP_SECONDS
    since = until - PERIODS[period]
    batches = site.history.batches(status.name, since=since)
    last = site.history.last_batch(status.name)
    log = _log_file(site)
    kept = _kept_beside(site, status)
    return Page(
        "stream.html",
        {
            "status": status,
            "graph_values": _graph(site, status),
            "guarantee": _guarantee(site, status),
            "period": period,
            "periods": list(PERIODS),
            "charts": charts_of(batches, since, until),
            "log": str(log) if log.exists() else None,
            "batches": len(batches),
            "last": last,
            "parts": {} if last is None else {part: last.durations.get(part) for part in PARTS},
            "states": kept.states,
            "bad_rows": kept.bad_rows,
            "error": site.history.last_error(status.name),
        },
    )


def start_stream(site: Site, request: Request) -> str:
    """Start a stream in a process of its own, which outlives the page. Return the address of the next page."""
    status = _named(site, request)
    site.started.append(start_process(status, site.workspace, _log_file(site)))
    return status.name


def stop_stream(site: Site, request: Request) -> str:
    """Ask the process of a stream to stop it."""
    status = _named(site, request)
    if status.is_live:
        site.registry.ask_to_stop(status.name)
    return status.name


def drop_stream(site: Site, request: Request) -> str:
    """Stop a stream, wait for its end, and forget it. Its checkpoint stays."""
    status = _named(site, request)
    if request.form.get("typed", "").strip() != status.name:
        raise NotFoundError("the stream was not dropped: its name was not typed", valid=[status.name])
    if status.is_live:
        site.registry.ask_to_stop(status.name)
        site.registry.wait_until_ended(status.name)
    site.registry.forget(status.name)
    return ""


def _log_file(site: Site) -> Path:
    """Return the file with the output of the streams that the page has started."""
    return log_file(site.workspace, "ui-start.log")


def _graph(site: Site, status: StreamStatus) -> StreamGraph:
    return graph_of(status, site.catalog, site.store_name if site.has_store else None)


def _named(site: Site, request: Request) -> StreamStatus:
    return site.registry.get(request.form.get("name", ""))


def _guarantee(site: Site, status: StreamStatus) -> str | None:
    """Return the guarantee of a stream, which is asked for once: the answer opens its stores."""
    key = (status.name, status.fingerprint)
    if key not in site.guarantees:
        site.guarantees[key] = guarantee_of(status, site.catalog)
    return site.guarantees[key]


def _kept_beside(site: Site, status: StreamStatus) -> KeptBeside:
    """Return what a stream keeps beside its target, as of the last seconds: it opens the target's store."""
    asked, kept = site.kept_beside.get(status.name, (-math.inf, KeptBeside([], None)))
    if time.monotonic() >= asked + _STEP_SECONDS / 2:
        kept = kept_beside([status], site.catalog)[status.name]
        site.kept_beside[status.name] = time.monotonic(), kept
    return kept


def _counts(site: Site) -> dict[str, int]:
    if not site.has_store:
        return {}
    counts = {"tables": len(site.store.tables())}
    if site.has_queues:
        counts["queues"] = len(site.store.queues())
    return counts
