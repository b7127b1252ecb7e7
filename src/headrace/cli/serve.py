"""``headrace serve``: embedded stores with the HTTP API of Tablestore or YTsaurus."""

from __future__ import annotations

import os
from pathlib import Path

import click

from headrace.cli.app import App, common_options, pass_app
from headrace.cli.extras import TABLESTORE_ENDPOINT, YTSAURUS_ENDPOINT, check_extras


@click.command(short_help="Run a local Tablestore or YTsaurus endpoint.")
@click.option(
    "--tablestore",
    "tablestore_port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve Tablestore's HTTP API on this port; 0 selects a free one.",
)
@click.option(
    "--ytsaurus",
    "ytsaurus_port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve YTsaurus' HTTP API on this port; 0 selects a free one.",
)
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="For Tablestore, the directory of the instances: each is a sub-directory, created on first use. For YTsaurus, "
    "the directory of the store.",
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
@click.option(
    "--cluster-name", default="primary", show_default=True, help="The name of the cluster, for clients of YTsaurus."
)
@click.option("--log-requests", is_flag=True, help="Log each request as JSON to standard error.")
@common_options
@pass_app
def serve(
    app: App,
    tablestore_port: int | None,
    ytsaurus_port: int | None,
    root: Path,
    host: str,
    file: Path | None,
    cluster_name: str,
    log_requests: bool,
) -> None:
    """Serve the tables in a directory over HTTP, until interrupted.

    Clients of Tablestore connect to the endpoint http://HOST:PORT with an instance name of their choice and a
    configured access key. Clients of YTsaurus connect to the proxy http://HOST:PORT with a configured token.

    Example: headrace serve --tablestore 8484 --root instances
    """
    from headrace.http.listening import in_url
    from headrace.http.logs import log_as_json

    if (tablestore_port is None) == (ytsaurus_port is None):
        raise click.UsageError(
            "Give either --tablestore or --ytsaurus; for both, start two processes with different directories."
        )
    system = "YTsaurus" if tablestore_port is None else "Tablestore"

    def ready(at: str, bound: int) -> None:
        endpoint = f"http://{in_url(at)}:{bound}"
        app.output.event(
            f"Serving {system} at {endpoint}", endpoint=endpoint, host=at, port=bound, root=str(root.absolute())
        )

    check_extras(YTSAURUS_ENDPOINT if tablestore_port is None else TABLESTORE_ENDPOINT)
    if tablestore_port is not None:
        from headrace.endpoints.tablestore.configuration import Configuration as Keys
        from headrace.endpoints.tablestore.server import serve as serve_tablestore

        keys = Keys.load(root, file, environ=os.environ)
        log_as_json(requests=log_requests)
        serve_tablestore(keys, tablestore_port, host=host, ready=ready)
    elif ytsaurus_port is not None:
        from headrace.endpoints.ytsaurus.configuration import Configuration as Tokens
        from headrace.endpoints.ytsaurus.server import serve as serve_ytsaurus

        tokens = Tokens.load(root, file, cluster_name=cluster_name, environ=os.environ)
        log_as_json(requests=log_requests)
        serve_ytsaurus(tokens, ytsaurus_port, host=host, ready=ready)
    app.output.note("Stopped.")
