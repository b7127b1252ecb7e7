"""``headrace ui``: a web page of a store and its streams."""

from __future__ import annotations

import os
from pathlib import Path

import click

from headrace.cli.app import App, store_option, with_app
from headrace.cli.run import workspace_option
from headrace.errors import OptionError
from headrace.support.extras import PAGE, check_extras

PASSWORD_VARIABLE = "HEADRACE_UI_PASSWORD"


@click.command(short_help="Show tables, queues and streams in a browser.")
@store_option
@workspace_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8686, show_default=True, help="The port; 0 selects a free one."
)
@click.option(
    "--password-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"A file with the password; by default the environment's {PASSWORD_VARIABLE}. An address that other machines "
    "reach needs one.",
)
@click.option(
    "--allow-host", "names", multiple=True, metavar="NAME", help="Another name of this server, such as a proxy's."
)
@with_app
def ui(app: App, workspace: Path, host: str, port: int, password_file: Path | None, names: tuple[str, ...]) -> None:
    """Serve a web page of a store and of the streams of a workspace, until interrupted.

    Without --store, the page shows the streams only. Programs can send the password as bearer token.

    Example: headrace ui -s shop -w jobs
    """
    import contextlib

    from headrace.http.listening import in_url
    from headrace.ui.server import serve

    def ready(at: str, bound: int) -> None:
        address = f"http://{in_url(at)}:{bound}"
        app.output.event(f"The page is at {address}", address=address, host=at, port=bound)

    check_extras("this command", PAGE, *app.store_extras())
    password = _password(password_file)
    with contextlib.ExitStack() as stack:
        store = None if app.store_url is None else stack.enter_context(app.store())
        serve(store, workspace, port, host=host, password=password, names=names, ready=ready)


def _password(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(PASSWORD_VARIABLE) or None
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError("the password's file cannot be read", received=str(error)) from None
