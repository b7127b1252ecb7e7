"""``headrace run``, and the Spark session that it shares with ``headrace sql`` and ``headrace stream``."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from headrace.cli.app import App, Command, parse_pairs, store_option, with_app
from headrace.cli.metrics import metrics_options, serving
from headrace.cli.stream_progress import progress_facts, progress_line, progress_picture, progress_state
from headrace.support.extras import METRICS, SPARK, TRACES, check_extras

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from headrace.streaming_sql.results import Result
    from headrace.streaming_sql.session import StreamingSql
    from headrace.streaming_sql.stream_registry import StreamStatus

MAX_ROWS = 1000
_REFRESH_SECONDS = 0.5
# The logging of Spark's JVM, unless the user configures it.
_LOGGING = Path(__file__).with_name("log4j2.properties")


class EndRequested(BaseException):
    """The process has received SIGTERM."""


@dataclass(frozen=True)
class SparkOptions:
    """The workspace, and the settings of the Spark session."""

    workspace: Path
    master: str | None = None
    conf: tuple[str, ...] = ()


class _Directory(click.Path):
    """A directory, which is refused if its name cannot be one: click would raise Python's error."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except ValueError:
            self.fail("it has characters that a path cannot have", param, ctx)


def workspace_option(command: Command) -> Command:
    """Add ``--workspace``."""
    return click.option(
        "-w",
        "--workspace",
        type=_Directory(file_okay=False, path_type=Path),
        default=Path(),
        envvar="HEADRACE_WORKSPACE",
        metavar="DIRECTORY",
        help="The directory that keeps definitions of tables and streams; the current directory by default.  "
        "[env var: HEADRACE_WORKSPACE]",
    )(command)


def spark_options(command: Command) -> Command:
    """Add ``--workspace``, ``--master`` and ``--conf``."""
    command = click.option(
        "-c", "--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; can be repeated."
    )(command)
    command = click.option("--master", metavar="URL", help="Spark's master, such as local[2].")(command)
    return workspace_option(command)


@click.command(short_help="Run a script of streaming SQL.")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--available-now", is_flag=True, help="Process the existing data, and end.")
@click.option("--fail-fast", is_flag=True, help="Stop all streams when one fails; by default the others go on.")
@metrics_options
@click.option("--traces", is_flag=True, help="Export OpenTelemetry spans of batches, as OTEL_… variables say.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: one line of JSON for each record, on standard error.",
)
@store_option
@spark_options
@with_app
def run(
    app: App,
    file: TextIO,
    available_now: bool,
    fail_fast: bool,
    metrics_port: int | None,
    metrics_host: str,
    traces: bool,
    log_format: str,
    workspace: Path,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Run a script of streaming SQL from FILE (- is standard input), until its streams end.

    If a stream fails, the others go on, and the command fails when they have ended.

    Ctrl-C or SIGTERM stops the streams. The next run continues from their checkpoints.

    Example: headrace run job.sql --available-now
    """
    metrics = [METRICS, *app.store_extras()] if metrics_port is not None else []
    check_extras("this command", SPARK, *metrics, *([TRACES] if traces else []))
    name = "headrace" if file.name == "<stdin>" else Path(file.name).stem
    if log_format == "json":
        from headrace.http.logs import log_as_json

        log_as_json()
    with _serving_metrics(app, workspace, metrics_port, metrics_host), _exporting_traces(traces):
        options = SparkOptions(workspace, master, conf)
        execute(app, file.read(), name, options, available_now=available_now, fail_fast=fail_fast)


def _exporting_traces(wanted: bool) -> contextlib.AbstractContextManager[None]:
    if not wanted:
        return contextlib.nullcontext()
    from headrace.monitoring.traces import exporting_traces

    return exporting_traces()


@contextlib.contextmanager
def _serving_metrics(app: App, workspace: Path, port: int | None, host: str) -> Iterator[None]:
    """Serve the metrics of this process and its streams; with ``--store``, also of the store's readers."""
    with contextlib.ExitStack() as stack:

        def registry() -> CollectorRegistry:
            from headrace.monitoring.exposition import make_registry
            from headrace.streaming_sql.workspace import Workspace

            store = None if app.store_url is None else stack.enter_context(app.store())
            return make_registry(Workspace(workspace), store, own_streams=True)

        with serving(app, registry, port, host):
            yield


def execute(
    app: App, text: str, name: str, options: SparkOptions, *, available_now: bool = False, fail_fast: bool = False
) -> None:
    """Run a script, print the results of its statements, and show the progress of its streams until they end."""
    from headrace.streaming_sql.catalog import Catalog
    from headrace.streaming_sql.language.grammar import parse
    from headrace.streaming_sql.script_checks import check_script
    from headrace.streaming_sql.stream_registry import StreamRegistry
    from headrace.streaming_sql.workspace import Workspace

    # These errors are reported before Spark starts, which takes seconds.
    statements = parse(text)
    if not statements:
        return
    workspace = Workspace(options.workspace)
    check_script(statements, Catalog(workspace), StreamRegistry(workspace))
    workspace.close()
    with until_end_requested(app), streaming_session(app, name, options) as streaming:
        show_results(app, streaming.run_each(text, available_now=available_now))
        follow_streams(app, streaming, fail_fast=fail_fast)


@contextlib.contextmanager
def until_end_requested(app: App) -> Iterator[None]:
    """Leave the block at SIGTERM. Errors after it are warnings: a service manager ends Spark's processes, too."""
    try:
        yield
    except EndRequested:
        pass
    except Exception as error:
        if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
            raise
        reason = str(error).partition("\n")[0]
        app.output.warning(f"Spark ended before its streams were stopped; they continue at the next start: {reason}")


@contextlib.contextmanager
def streaming_session(app: App, name: str, options: SparkOptions) -> Iterator[StreamingSql]:
    """Start Spark. At the end of the block, stop all streams and Spark."""
    import headrace
    from headrace.cli.spark_errors import filtered
    from headrace.spark.connect import check_start, is_connect, names_server

    conf = parse_pairs(options.conf, "--conf")
    check_start(conf)
    remote = names_server(conf)
    if not app.debug:
        _silence_pyspark()
    if not remote:
        # Spark creates the directory even if no table is in it.
        conf = {"spark.sql.warehouse.dir": str(options.workspace.absolute() / ".headrace" / "spark-warehouse")} | conf
        if not app.debug and "SPARK_CONF_DIR" not in os.environ:
            conf = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"} | conf
    quiet = contextlib.nullcontext() if app.debug or remote else filtered()
    with app.output.status("Starting Spark"), quiet:
        spark = headrace.session(name, master=options.master, conf=conf)
        if not app.debug and not is_connect(spark):
            spark.sparkContext.setLogLevel("ERROR")
    # Spark's own handler would cancel the running batch, and the stream would count as failed.
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
    """Disable pyspark's log of errors with stack traces, and its warnings about the version of pandas."""
    from pyspark.logger import PySparkLogger

    from headrace.spark.sql_errors import QUERY_LOGGERS

    for name in QUERY_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")


def _end_requested(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # py4j logs a traceback for each call of a Spark that ends at the same time.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    raise EndRequested


def show_results(app: App, results: Iterable[Result]) -> None:
    """Print the results of statements: messages, and at most `MAX_ROWS` rows of each."""
    for result in results:
        if result.columns:
            rows = result.fetch(MAX_ROWS + 1)
            truncated = len(rows) > MAX_ROWS
            app.output.table(result.columns, rows[:MAX_ROWS], truncated=truncated)
            if truncated:
                app.output.note(f"There are more rows; these are the first {MAX_ROWS}.")
        if result.message is not None:
            app.output.event(result.message, message=result.message)


def follow_streams(app: App, streaming: StreamingSql, *, fail_fast: bool) -> None:
    """Show the progress of this process's streams until they have ended. Raises the error of a failed stream.

    Args:
        fail_fast: do not wait for the others when one has failed.
    """
    shown: list[StreamStatus] = []
    with app.output.live() as view:
        ended = False
        while not ended:
            try:
                ended = streaming.wait(_REFRESH_SECONDS, fail_fast=fail_fast)
            finally:
                streams = [status for status in streaming.streams() if status.pid == os.getpid()]
                if streams and progress_state(streams) != progress_state(shown):
                    shown = streams
                    view.show(
                        "\n".join(map(progress_line, streams)),
                        progress_picture(streams),
                        streams=[progress_facts(status) for status in streams],
                    )
