"""The command ``headrace mcp``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from headrace.cli.app import App, stores_option, with_app
from headrace.cli.run import workspace_option
from headrace.support.extras import TOOLS, check_extras


@click.command(short_help="Offer stores and streams to an AI assistant, as tools of MCP.")
@stores_option
@workspace_option
@click.option("--allow", is_flag=True, help="Also offer the tools that write rows, and start and stop streams.")
@with_app
def mcp(app: App, urls: tuple[str, ...], workspace: Path, allow: bool) -> None:
    """Serve tools of the Model Context Protocol on standard input and output, until the client ends.

    A client starts this command. Without --allow, no tool changes anything. Without --store, the tools show the streams
    of the workspace only.

    \b
    Example:
      headrace mcp -s shop -w jobs
      headrace mcp -s shop -s postgresql://reader@db/shop
    """
    from headrace.stores.registry import extra_of

    urls = urls or ((app.store_url,) if app.store_url is not None else ())
    check_extras("this command", TOOLS, *map(extra_of, urls))

    from headrace.cli.mcp.server import serve
    from headrace.cli.mcp.sources import Sources

    if sys.stdin.isatty():
        app.output.note("This waits for messages of a client, which usually starts it. Ctrl-C ends it.")
    serve(Sources(app, urls, workspace), allow=allow)
