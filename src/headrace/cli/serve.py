"""``headrace serve``: an embedded store behind the protocol of another system."""

from __future__ import annotations

import os
from pathlib import Path

import click

from headrace.cli.app import App, common_options, pass_app


@click.command(short_help="Serve tables as Tablestore does.")
@click.option(
    "--tablestore",
    "port",
    type=click.IntRange(0, 65535),
    required=True,
    metavar="PORT",
    help="Speak Tablestore's HTTP API on this port; 0 takes one that is free.",
)
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where the instances are: each is a sub-directory, made when it is first used.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A TOML file with access keys; without it, HEADRACE_ACCESS_KEY_ID and HEADRACE_ACCESS_KEY_SECRET of the "
    "environment are the one key.",
)
@click.option("--log-requests", is_flag=True, help="Log each request too, as JSON, to standard error.")
@common_options
@pass_app
def serve(app: App, port: int, root: Path, host: str, file: Path | None, log_requests: bool) -> None:
    """Serve the tables under a directory over HTTP, until interrupted.

    Clients of Tablestore use them with the endpoint http://HOST:PORT, an instance name of their choice, and the
    access key that was configured.
    """
    from headrace.endpoints.tablestore.configuration import Configuration
    from headrace.endpoints.tablestore.server import log_as_json
    from headrace.endpoints.tablestore.server import serve as run

    configuration = Configuration.load(root, file, environ=os.environ)
    log_as_json(requests=log_requests)

    def ready(at: str, bound: int) -> None:
        endpoint = f"http://{f'[{at}]' if ':' in at else at}:{bound}"
        app.output.event(
            f"Serving Tablestore at {endpoint}", endpoint=endpoint, host=at, port=bound, root=str(root.absolute())
        )

    run(configuration, port, host=host, ready=ready)
    app.output.note("Stopped.")
