"""The program ``headrace``: its commands and its exit codes."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from headrace.cli.app import App, CommandGroup, common_options, store_option
from headrace.cli.completion import add_completion
from headrace.cli.output import ConsoleOutput, JsonOutput
from headrace.errors import HeadraceError
from headrace.support import entry_points
from headrace.support.start_up import skip_last_collection

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class _ClosedPipe(Exception):
    """The reader has closed the output. Not an `OSError`: for that, click would exit with code 1."""


@contextmanager
def _closed_pipes() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _ClosedPipe from error


class _Program(CommandGroup):
    """The group of all commands. `main` gets their errors of closed pipes."""

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        with _closed_pipes():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with _closed_pipes():
            return super().invoke(ctx)


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="headrace")
@store_option
@common_options
def headrace() -> None:
    """Stream the changes of tables through Spark and back into tables, exactly once.

    \b
    Example:
      headrace table create OrderSource -c id=string -c price=double -k id -s shop
      headrace tunnel create OrderSource stats -s shop
      headrace run job.sql --available-now
    """


for _name, _command in entry_points.parts(entry_points.COMMANDS, click.Command).items():
    headrace.add_command(_command, _name)
add_completion(headrace)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code.

    0 is success, 1 an error, 2 an invalid command line, 130 an interruption, 141 a closed pipe. ``table diff`` has the
    codes of the program ``diff``: 1 for differences, 2 for an error.
    """
    owns_process = arguments is None
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    app = App(
        store_url=os.environ.get("HEADRACE_STORE") or None, debug="--debug" in arguments, owns_process=owns_process
    )
    if owns_process:
        atexit.register(skip_last_collection)
    if app.debug:
        logging.basicConfig(level=logging.INFO)
        logging.getLogger("headrace").setLevel(logging.DEBUG)
    try:
        code = headrace.main(arguments, prog_name="headrace", standalone_mode=False, obj=app)
        sys.stdout.flush()
    except (_ClosedPipe, BrokenPipeError):
        # Python flushes standard output at its exit, and would report the closed pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except click.UsageError as error:
        return _end_usage(error, as_json=app.json or "--json" in arguments)
    except Exception as error:
        if app.debug:
            raise
        _end(app, error)
        return app.error_code
    finally:
        app.end()
    return code if isinstance(code, int) else 0


def _end(app: App, error: Exception) -> None:
    expected = isinstance(error, HeadraceError | click.ClickException)
    hint = None if expected else "run it again with --debug to see where it happened"
    app.output.error(error, hint=hint, secrets=app.secrets())


def _end_usage(error: click.UsageError, *, as_json: bool) -> int:
    if as_json:
        JsonOutput().error(error)
    else:
        where = None if error.ctx is None else f"see `{error.ctx.command_path} --help`"
        ConsoleOutput().error(error, hint=where)
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
