"""``headrace serve``: embedded stores with the HTTP API of Tablestore, YTsaurus or another system."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, Command, with_app
from headrace.cli.metrics import metrics_options, serving
from headrace.http.endpoint import Endpoint
from headrace.support import entry_points
from headrace.support.extras import METRICS, check_extras

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_ENDPOINTS: dict[str, Endpoint] = {
    each.name: each for each in entry_points.parts(entry_points.ENDPOINTS, Endpoint).values()
}
_OPTIONS = [f"--{name}" for name in _ENDPOINTS]


def _ports(command: Command) -> Command:
    """Add an option for the port of each endpoint."""
    for endpoint in reversed(list(_ENDPOINTS.values())):
        text = f"Serve the HTTP API of {endpoint.system} on this port; 0 selects a free one."
        command = click.option(f"--{endpoint.name}", type=click.IntRange(0, 65535), metavar="PORT", help=text)(command)
    return command


def _settings(command: Command) -> Command:
    """Add the options that single endpoints have."""
    for endpoint in reversed(list(_ENDPOINTS.values())):
        for name, (default, text) in reversed(list(endpoint.settings.items())):
            command = click.option(f"--{name.replace('_', '-')}", default=default, show_default=True, help=text)(
                command
            )
    return command


@click.command(short_help=f"Run a local {' or '.join(each.system for each in _ENDPOINTS.values())} endpoint.")
@_ports
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help=" ".join(each.root for each in _ENDPOINTS.values()),
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A TOML file with access keys or tokens. By default there is one key, from the environment's "
    "HEADRACE_ACCESS_KEY_ID and HEADRACE_ACCESS_KEY_SECRET, or one token, from HEADRACE_YT_TOKEN.",
)
@_settings
@metrics_options
@click.option("--log-requests", is_flag=True, help="Log each request as JSON to standard error.")
@with_app
def serve(
    app: App,
    /,
    root: Path,
    host: str,
    file: Path | None,
    metrics_port: int | None,
    metrics_host: str,
    log_requests: bool,
    **given: Any,
) -> None:
    from headrace.http.listening import in_url
    from headrace.http.logs import log_as_json

    ports = {name: given[name] for name in _ENDPOINTS if given[name] is not None}
    if len(ports) != 1:
        raise click.UsageError(
            f"Give either {' or '.join(_OPTIONS)}; for both, start two processes with different directories."
        )
    ((name, port),) = ports.items()
    endpoint = _ENDPOINTS[name]

    def ready(at: str, bound: int) -> None:
        url = f"http://{in_url(at)}:{bound}"
        app.output.event(
            f"Serving {endpoint.system} at {url}", endpoint=url, host=at, port=bound, root=str(root.absolute())
        )

    metrics = [METRICS] if metrics_port is not None else []
    check_extras("this command", (endpoint.extra, *endpoint.packages), *metrics)
    settings = {name: given[name] for name in endpoint.settings}
    configuration = endpoint.configure(root, file, environ=os.environ, **settings)
    log_as_json(requests=log_requests)
    with serving(app, _own_metrics, metrics_port, metrics_host):
        endpoint.serve(configuration, port, host=host, ready=ready)
    app.output.note("Stopped.")


def _own_metrics() -> CollectorRegistry:
    from headrace.monitoring.exposition import make_registry

    return make_registry()


serve.help = "\n\n".join(
    (
        "Serve the tables in a directory over HTTP, until interrupted.",
        " ".join(each.clients for each in _ENDPOINTS.values()),
        "Example: headrace serve --tablestore 8484 --root instances",
    )
)
