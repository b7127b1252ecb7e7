"""``headrace sql``: a prompt for streaming SQL."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from headrace.cli.app import App, common_options, pass_app
from headrace.cli.run import EndRequested, SparkOptions, execute, show_results, spark_options, streaming_session
from headrace.errors import SqlError

PROMPT = "headrace> "
MORE_PROMPT = "       -> "
_HISTORY_LINES = 10_000


@click.command(short_help="Open a prompt for streaming SQL.")
@click.option("-e", "--execute", "text", metavar="TEXT", help="Run these statements without a prompt.")
@spark_options
@common_options
@pass_app
def sql(app: App, text: str | None, workspace: Path, master: str | None, conf: tuple[str, ...]) -> None:
    """Open a prompt for statements, which end with a semicolon.

    Streams that are started at the prompt stop when it ends. Without a terminal, statements are read from standard
    input.

    Example: headrace sql -e "SHOW STREAMS"
    """
    options = SparkOptions(workspace, master, conf)
    if text is None and not sys.stdin.isatty():
        text = sys.stdin.read()
    if text is not None:
        execute(app, text, "headrace sql", options)
    else:
        _prompt(app, options)


def is_complete(text: str) -> bool:
    """Return whether a text can be run: it ends with a semicolon, or has only comments."""
    from headrace.streaming_sql.language.lexer import tokenize

    try:
        tokens = tokenize(text).tokens
    except SqlError:
        # A string or comment continues in the next line.
        return False
    return not tokens or tokens[-1].is_symbol(";")


def _prompt(app: App, options: SparkOptions) -> None:
    history = _history()
    try:
        with streaming_session(app, "headrace sql", options) as streaming:
            app.output.note("End statements with ; and the session with Ctrl-D.")
            text = ""
            while True:
                try:
                    text += input(MORE_PROMPT if text else PROMPT) + "\n"
                    if is_complete(text):
                        statement, text = text, ""
                        show_results(app, streaming.run_each(statement))
                except EOFError:
                    app.output.note("")
                    return
                except KeyboardInterrupt:
                    app.output.note("")
                    text = ""
                except Exception as error:
                    if app.debug:
                        raise
                    app.output.error(error)
    except EndRequested:
        pass
    finally:
        _save_history(history)


def _history() -> Path | None:
    """Load the lines of earlier sessions. Return the history file; None without readline or a writable directory."""
    try:
        import readline
    except ImportError:
        return None
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file = state / "headrace" / "sql_history"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        readline.read_history_file(file)
        readline.set_history_length(_HISTORY_LINES)
    except OSError:
        return None
    return file


def _save_history(file: Path | None) -> None:
    if file is not None:
        import readline

        readline.write_history_file(file)
