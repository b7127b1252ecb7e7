"""The options ``--metrics-port`` and ``--metrics-host``: the metrics of a command's own process, over HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from headrace.cli.app import App, Command

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def metrics_options(command: Command) -> Command:
    """Add ``--metrics-port`` and ``--metrics-host``."""
    host = click.option(
        "--metrics-host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address of the metrics."
    )
    return click.option(
        "--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics at this port; 0: a free one."
    )(host(command))


@contextlib.contextmanager
def serving(app: App, registry: Callable[[], CollectorRegistry], port: int | None, host: str) -> Iterator[None]:
    """Serve metrics during the block, and print their URL.

    Args:
        registry: returns the metrics. It is not called without a port.
    """
    if port is None:
        yield
        return
    from headrace.monitoring.exposition import serving_metrics

    with serving_metrics(registry(), port, host) as url:
        app.output.event(f"Metrics: {url}", metrics=url)
        yield
