"""Metrics over HTTP, in Prometheus' text format: as text for any server, and as a server of a driver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.http.application import Application, Receive, Scope, Send
from headrace.http.limits import Limits
from headrace.http.listening import LOOPBACK, in_url, listen
from headrace.http.serving import ServingThread
from headrace.http.threads import Threads
from headrace.support.extras import METRICS, check_extras

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from headrace.ports import Store
    from headrace.streaming_sql.workspace import Workspace

PATH = "/metrics"


def make_registry(
    workspace: Workspace | None = None, store: Store | None = None, *, own_streams: bool = False
) -> CollectorRegistry:
    """Return a registry with the metrics of this process, of a workspace's streams and of a store's readers.

    Args:
        workspace: the workspace of the streams.
        store: an open store, for the lag of its tunnels and consumers. The caller closes it after the last use.
        own_streams: only the streams of this process.

    Raises:
        MissingDependencyError: prometheus_client is not installed.
    """
    check_extras("metrics", METRICS)
    from prometheus_client import CollectorRegistry, ProcessCollector

    from headrace.monitoring.process_metrics import OperationCollector, StoreCollector
    from headrace.monitoring.stream_metrics import StreamCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(OperationCollector())
    if workspace is not None:
        pid = os.getpid()
        registry.register(StreamCollector(workspace, lambda status: not own_streams or status.pid == pid))
    if store is not None:
        registry.register(StoreCollector(store))
    return registry


def exposition(registry: CollectorRegistry) -> tuple[bytes, str]:
    """Return the metrics of a registry in Prometheus' text format, and its content type. It reads the store."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return generate_latest(registry), CONTENT_TYPE_LATEST


class MetricsApp(Application):
    """Serves the metrics of a registry at `PATH`."""

    server = "monitoring"
    limits = Limits(connections=64)

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        # One thread: the collectors keep totals.
        self._threads = Threads(1, "headrace-metrics")

    def close(self, seconds: float | None = None) -> None:
        self._threads.close(seconds)

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, body, kind = 404, f"the metrics are at {PATH}\n".encode(), "text/plain; charset=utf-8"
        if scope["method"] not in ("GET", "HEAD"):
            status, body = 405, b"valid: GET\n"
        elif scope["path"] == PATH:
            status = 200
            body, kind = await self._threads.run(lambda: exposition(self._registry))
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


@contextmanager
def serving_metrics(registry: CollectorRegistry, port: int, host: str = LOOPBACK) -> Iterator[str]:
    """Serve metrics during the block; yield their URL.

    Args:
        port: 0 takes a free port.

    Raises:
        OptionError: cannot listen at the address.
    """
    listener = listen(host, port, "cannot serve metrics at this address")
    bound = listener.getsockname()[1]
    thread = ServingThread(MetricsApp(registry), listener, "headrace-metrics-server")
    try:
        yield f"http://{in_url(host)}:{bound}{PATH}"
    finally:
        thread.stop()
