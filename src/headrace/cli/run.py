"""``headrace run``, and what it shares with the other commands that work in a Spark session."""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TextIO

import click

from headrace.cli.app import App, Command, common_options, parse_pairs, pass_app
from headrace.cli.output import console_table

if TYPE_CHECKING:
    from headrace.streaming_sql.results import Result
    from headrace.streaming_sql.session import StreamingSql
    from headrace.streaming_sql.stream_registry import StreamStatus

MOST_ROWS = 1000
_LOOK_EVERY_SECONDS = 0.5
# What Spark's JVM prints unless the user configures it.
_LOGGING = Path(__file__).with_name("log4j2.properties")


class EndRequested(BaseException):
    """The process was asked to end (SIGTERM)."""


@dataclass(frozen=True)
class SparkOptions:
    """How to start Spark, and the workspace to use."""

    workspace: Path
    master: str | None = None
    conf: tuple[str, ...] = ()


def workspace_option(command: Command) -> Command:
    """Add ``--workspace``."""
    return click.option(
        "-w",
        "--workspace",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(),
        envvar="HEADRACE_WORKSPACE",
        metavar="DIRECTORY",
        help="Where tables and streams are remembered; the current directory if not given.  "
        "[env var: HEADRACE_WORKSPACE]",
    )(command)


def spark_options(command: Command) -> Command:
    """Add ``--workspace``, ``--master`` and ``--conf``."""
    command = click.option(
        "-c", "--conf", multiple=True, metavar="KEY=VALUE", help="A setting for Spark; can be given again."
    )(command)
    command = click.option("--master", metavar="URL", help="Spark's master, such as local[2].")(command)
    return workspace_option(command)


@click.command(short_help="Run a script of streaming SQL.")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--available-now", is_flag=True, help="End when all streams have read what is there now.")
@spark_options
@common_options
@pass_app
def run(
    app: App, file: TextIO, available_now: bool, workspace: Path, master: str | None, conf: tuple[str, ...]
) -> None:
    """Run a script of streaming SQL from FILE (- is standard input), until its streams end.

    An interruption or SIGTERM stops the streams; run again, they go on where they were.
    """
    name = "headrace" if file.name == "<stdin>" else Path(file.name).stem
    execute(app, file.read(), name, SparkOptions(workspace, master, conf), available_now=available_now)


def execute(app: App, text: str, name: str, options: SparkOptions, *, available_now: bool = False) -> None:
    """Run a script, print what its statements give, and follow its streams until they end."""
    from headrace.streaming_sql.language.grammar import parse

    # Faults in the text are found before Spark is started, which takes a while.
    if not parse(text):
        return
    with contextlib.suppress(EndRequested), streaming_session(app, name, options) as streaming:
        show_results(app, streaming.run_each(text, available_now=available_now))
        follow_streams(app, streaming)


@contextlib.contextmanager
def streaming_session(app: App, name: str, options: SparkOptions) -> Iterator[StreamingSql]:
    """Start Spark; stop all streams, and Spark, at the end of the block."""
    import headrace

    conf = parse_pairs(options.conf, "--conf")
    if not app.debug:
        _silence_pyspark()
        if "SPARK_CONF_DIR" not in os.environ:
            conf = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"} | conf
    with app.output.status("Starting Spark"):
        spark = headrace.session(name, master=options.master, conf=conf)
        if not app.debug and "SPARK_REMOTE" not in os.environ:
            spark.sparkContext.setLogLevel("ERROR")
    # Spark's own handler would cancel the running batch, which then looks like a failure of the stream.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _end_requested)
    streaming = headrace.sql(spark, options.workspace)
    try:
        yield streaming
    finally:
        with app.output.status("Stopping"):
            streaming.stop()
            spark.stop()


def _silence_pyspark() -> None:
    """Keep pyspark from printing: each error with its stack trace, and which pandas it would rather have."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")


def _end_requested(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise EndRequested


def show_results(app: App, results: Iterable[Result]) -> None:
    """Print what statements gave: rows, of queries the first `MOST_ROWS`, and messages."""
    for result in results:
        if result.columns:
            rows = result.fetch(MOST_ROWS + 1)
            truncated = len(rows) > MOST_ROWS
            app.output.table(result.columns, rows[:MOST_ROWS], truncated=truncated)
            if truncated:
                app.output.note(f"There are more rows; these are the first {MOST_ROWS}.")
        if result.message is not None:
            app.output.event(result.message, message=result.message)


def follow_streams(app: App, streaming: StreamingSql) -> None:
    """Show how this process's streams get on, until they have ended; an error of one of them is raised."""
    shown: list[StreamStatus] = []
    with app.output.live() as view:
        ended = False
        while not ended:
            try:
                ended = streaming.wait(_LOOK_EVERY_SECONDS)
            finally:
                streams = [status for status in streaming.streams() if status.pid == os.getpid()]
                if streams and _progress(streams) != _progress(shown):
                    shown = streams
                    facts = [
                        {"name": name, "state": state, "batch": batch, "rows_per_second": rate, "lag": lag}
                        for name, state, batch, rate, lag in map(_figures, streams)
                    ]
                    picture = console_table(
                        ("stream", "state", "batch", "rows/s", "lag"), [_figures(status) for status in streams]
                    )
                    view.show("\n".join(map(_line, streams)), picture, streams=facts)


def _progress(streams: list[StreamStatus]) -> list[tuple[str, str, int | None, int | None]]:
    return [(status.name, status.state, status.batch, status.lag) for status in streams]


def _figures(status: StreamStatus) -> tuple[str, str, int | None, float | None, int | None]:
    rate = None if status.rows_per_second is None else round(status.rows_per_second, 1)
    return status.name, status.state, status.batch, rate, status.lag


def _line(status: StreamStatus) -> str:
    name, state, batch, rate, lag = (("-" if figure is None else figure) for figure in _figures(status))
    return f"{name}: {state}, batch {batch}, {rate} rows/s, lag {lag}"
