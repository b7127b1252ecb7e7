"""``headrace sql``: a prompt for streaming SQL."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.app import App, with_app
from headrace.cli.interruptible import run_interruptibly
from headrace.cli.run import SparkOptions, execute, show_results, spark_options, streaming_session, until_end_requested
from headrace.errors import SqlError

if TYPE_CHECKING:
    from headrace.streaming_sql.session import StreamingSql

_LONGEST_SHOWN_STATEMENT = 60


@click.command(short_help="Open a prompt for streaming SQL.")
@click.option("-e", "--execute", "text", metavar="TEXT", help="Run these statements without a prompt.")
@spark_options
@with_app
def sql(app: App, text: str | None, workspace: Path, master: str | None, conf: tuple[str, ...]) -> None:
    """Open a prompt for statements, which end with a semicolon.

    `help` lists the commands of the prompt, such as \\d and \\watch. Tab completes words, tables and columns if
    headrace[prompt] is installed. Streams that are started at the prompt stop when it ends. Without a terminal,
    statements are read from standard input.

    Example: headrace sql -e "SHOW STREAMS"
    """
    options = SparkOptions(workspace, master, conf)
    if text is None and not sys.stdin.isatty():
        text = sys.stdin.read()
    if text is not None:
        execute(app, text, "headrace sql", options)
        return
    with until_end_requested(app), streaming_session(app, "headrace sql", options) as streaming:
        _Prompt(app, streaming).run()


class _Prompt:
    """Reads statements and commands, and runs them until the end of the input."""

    def __init__(self, app: App, streaming: StreamingSql) -> None:
        self._app = app
        self._streaming = streaming
        self._last: str | None = None

    def run(self) -> None:
        from headrace.cli.prompt_lines import open_lines

        lines = open_lines(self._streaming.names)
        self._app.output.note("End statements with ; and the session with Ctrl-D. `help` lists the commands.")
        try:
            going = True
            while going:
                try:
                    going = self._handle(lines.read())
                except EOFError:
                    self._app.output.note("")
                    going = False
                except KeyboardInterrupt:
                    self._app.output.note("")
                except Exception as error:
                    if self._app.debug:
                        raise
                    self._app.output.error(error)
        finally:
            lines.close()

    def _handle(self, text: str) -> bool:
        """Run a text; return whether the prompt goes on."""
        from headrace.cli import prompt_commands as commands

        command = commands.parse_command(text)
        match command:
            case None:
                self._last = text
                self._execute(text)
            case commands.Help():
                self._app.output.event(commands.HELP.strip("\n"), help=commands.HELP)
            case commands.Describe(name):
                self._describe(name)
            case commands.Watch(seconds):
                self._watch(seconds)
            case commands.Exit():
                return False
        return True

    def _execute(self, text: str) -> bool:
        """Run statements; return False if Ctrl-C cancelled them."""
        from headrace.sql_text.lexer import hide_secrets

        shown = " ".join(hide_secrets(text).split())
        if len(shown) > _LONGEST_SHOWN_STATEMENT:
            shown = shown[: _LONGEST_SHOWN_STATEMENT - 1] + "…"
        self._app.output.start_waiting(f"Running {shown}")
        try:
            ended = run_interruptibly(
                self._streaming.spark, lambda: show_results(self._app, self._streaming.run_each(text))
            )
        finally:
            self._app.output.stop_waiting()
        if not ended:
            self._app.output.note("Cancelled.")
        return ended

    def _watch(self, seconds: float) -> None:
        if self._last is None:
            raise SqlError("there is no statement to run again", remedy="run one before \\watch")
        self._app.output.note(f"Every {seconds:g} s; Ctrl-C ends it.")
        pause = threading.Event()
        while self._execute(self._last):
            pause.wait(seconds)

    def _describe(self, name: str | None) -> None:
        names = self._streaming.names
        if name is None:
            records = [{"name": found, "kind": kind, "details": details} for found, kind, details in names.all()]
            self._app.output.records(
                records, columns=("name", "kind", "details"), nothing="The workspace has no tables, scans or streams."
            )
        elif names.has_columns(name):
            columns = [vars(column) for column in names.columns(name)]
            self._app.output.records(columns, columns=("name", "type", "key"), nothing="It has no columns.")
        elif name.lower() in map(str.lower, names.streams()):
            self._run_for(f"DESCRIBE STREAM {_quoted(name)};")
        else:
            self._run_for(f"DESCRIBE TABLE {_quoted(name)};")

    def _run_for(self, text: str) -> None:
        run_interruptibly(self._streaming.spark, lambda: show_results(self._app, self._streaming.run_each(text)))


def _quoted(name: str) -> str:
    from headrace.sql_text.lexer import quote_name

    return ".".join(map(quote_name, name.split(".")))
