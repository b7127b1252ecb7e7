"""``headrace serve``: an embedded store behind the protocol of another system."""

from __future__ import annotations

import os
from pathlib import Path

import click

from headrace.cli.app import App, common_options, pass_app


@click.command(short_help="Serve tables as Tablestore or YTsaurus does.")
@click.option(
    "--tablestore",
    "tablestore_port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Speak Tablestore's HTTP API on this port; 0 takes one that is free.",
)
@click.option(
    "--ytsaurus",
    "ytsaurus_port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Speak YTsaurus' HTTP API on this port; 0 takes one that is free.",
)
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="For Tablestore, where the instances are: each is a sub-directory, made when it is first used. For YTsaurus, "
    "the store itself.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A TOML file with access keys, or tokens; without it, HEADRACE_ACCESS_KEY_ID and HEADRACE_ACCESS_KEY_SECRET "
    "of the environment are the one key, or HEADRACE_YT_TOKEN the one token.",
)
@click.option(
    "--cluster-name", default="primary", show_default=True, help="The name of the cluster, for clients of YTsaurus."
)
@click.option("--log-requests", is_flag=True, help="Log each request too, as JSON, to standard error.")
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
    """Serve the tables under a directory over HTTP, until interrupted.

    Clients of Tablestore use them with the endpoint http://HOST:PORT, an instance name of their choice, and the
    access key that was configured. Clients of YTsaurus use them with the proxy http://HOST:PORT and the token.
    """
    from headrace.http.listening import in_url
    from headrace.http.logs import log_as_json

    if (tablestore_port is None) == (ytsaurus_port is None):
        raise click.UsageError(
            "Give one of --tablestore and --ytsaurus; for both, start two processes with a directory each."
        )
    system = "YTsaurus" if tablestore_port is None else "Tablestore"

    def ready(at: str, bound: int) -> None:
        endpoint = f"http://{in_url(at)}:{bound}"
        app.output.event(
            f"Serving {system} at {endpoint}", endpoint=endpoint, host=at, port=bound, root=str(root.absolute())
        )

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
