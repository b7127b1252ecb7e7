"""``headrace stream``: the streams of a workspace, in all its processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from headrace.cli.app import App, CommandGroup, with_app
from headrace.cli.run import (
    SparkOptions,
    execute,
    spark_options,
    streaming_session,
    until_end_requested,
    workspace_option,
)
from headrace.cli.stream_progress import LIST_COLUMNS, NOTHING, status_facts, watch_streams

if TYPE_CHECKING:
    from headrace.streaming_sql.stream_registry import StreamRegistry, StreamStatus

_DIFF_COLUMNS = ("stream", "property", "value")


@click.group(cls=CommandGroup, no_args_is_help=False)
def stream() -> None:
    """Show, stop and start the streams of a workspace.

    \b
    Example:
      headrace stream list -w jobs
      headrace stream stop totals_per_user -w jobs
      headrace stream start totals_per_user -w jobs
      headrace stream diff job.sql -w jobs
    """


def _command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    def decorate(function: Callable[..., None]) -> click.Command:
        return stream.command(name)(workspace_option(with_app(function)))

    return decorate


@_command("list")
@click.option("--watch", is_flag=True, help="Refresh until interrupted.")
def list_streams(app: App, workspace: Path, watch: bool) -> None:
    """List the streams of the workspace.

    Example: headrace stream list --watch -w jobs
    """
    if watch:
        watch_streams(app.output, _registry(workspace).all)
    app.output.records(
        [_facts(app, status) for status in _registry(workspace).all()],
        columns=LIST_COLUMNS,
        nothing=NOTHING,
    )


@_command("describe")
@click.argument("name")
def describe_stream(app: App, workspace: Path, name: str) -> None:
    """Show the state of a stream, the parts of its last batch, what it keeps beside its target, and its statements.

    Example: headrace stream describe totals_per_user -w jobs
    """
    from headrace.streaming_sql.catalog import Catalog
    from headrace.streaming_sql.stream_history import PARTS, StreamHistory
    from headrace.streaming_sql.stream_states import kept_beside
    from headrace.streaming_sql.workspace import Workspace

    opened = Workspace(workspace)
    status = _registry(workspace).get(name)
    last = StreamHistory(opened).last_batch(status.name)
    facts = _facts(app, status)
    facts |= {f"{part}_seconds": None if last is None else last.durations.get(part) for part in PARTS}
    kept = kept_beside([status], Catalog(opened))[status.name]
    facts["bad_rows"] = kept.bad_rows
    app.output.record({**facts, "script": status.script, "state_tables": [each.facts() for each in kept.states]})


@_command("stop")
@click.argument("name")
def stop_stream(app: App, workspace: Path, name: str) -> None:
    """Stop a stream, in any process, and wait until it has stopped.

    Example: headrace stream stop totals_per_user -w jobs
    """
    status = _stop(app, _registry(workspace), name)
    app.output.done(f"Stream {status.name} is {status.state}.", stream=status.name, state=status.state)


@_command("retry-rows")
@click.argument("name")
def retry_rows(app: App, workspace: Path, name: str) -> None:
    """Write the rows again that the target of a stream has refused (option badRows = 'table').

    Rows that the target takes now leave the table of bad rows, in the same transaction. The others stay there with
    their error. The stream can run meanwhile.

    Example: headrace stream retry-rows totals_per_user -w jobs
    """
    from headrace.streaming_sql.catalog import Catalog
    from headrace.streaming_sql.stream_states import retry_bad_rows
    from headrace.streaming_sql.workspace import Workspace

    status = _registry(workspace).get(name)
    done = retry_bad_rows(status, Catalog(Workspace(workspace)))
    app.output.done(f"Stream {status.name}: {done}.", stream=status.name, **vars(done))


@_command("drop")
@click.argument("name")
@click.option("--if-exists", is_flag=True, help="Do nothing if there is no such stream.")
def drop_stream(app: App, workspace: Path, name: str, if_exists: bool) -> None:
    """Stop a stream and remove it from the workspace. Its checkpoint stays.

    Example: headrace stream drop totals_per_user -w jobs
    """
    registry = _registry(workspace)
    if if_exists and registry.find(name) is None:
        app.output.dropped("stream", name, found=False)
        return
    status = _stop(app, registry, name)
    registry.forget(name)
    app.output.done(
        f"Dropped stream {status.name}; its checkpoint stays in {status.checkpoint}.", stream=status.name, dropped=True
    )


@stream.command("start")
@click.argument("name")
@click.option("--available-now", is_flag=True, help="Process the existing data, and end.")
@spark_options
@with_app
def start_stream(
    app: App, name: str, available_now: bool, workspace: Path, master: str | None, conf: tuple[str, ...]
) -> None:
    """Start a stream again, in this process, until it ends or is stopped.

    Example: headrace stream start totals_per_user --available-now -w jobs
    """
    _execute(app, "START STREAM", name, SparkOptions(workspace, master, conf), available_now=available_now)


@stream.command("explain")
@click.argument("name")
@spark_options
@with_app
def explain_stream(app: App, name: str, workspace: Path, master: str | None, conf: tuple[str, ...]) -> None:
    """Show the sources, the sink, the options, the guarantee and the plan of a stream.

    Example: headrace stream explain totals_per_user -w jobs
    """
    _execute(app, "EXPLAIN STREAM", name, SparkOptions(workspace, master, conf))


@stream.command("diff")
@click.argument("script", type=click.File(encoding="utf-8"))
@spark_options
@with_app
def diff_streams(app: App, script: TextIO, workspace: Path, master: str | None, conf: tuple[str, ...]) -> None:
    """Show what CREATE OR REPLACE STREAM with the texts of a script would keep, compute again and read.

    Nothing is written. It compares the streams and materialized views of the script with those of the workspace.

    Example: headrace stream diff job.sql -w jobs
    """
    from headrace.streaming_sql.language.grammar import parse

    text = script.read()
    # Its errors are reported before Spark starts, which takes seconds.
    parse(text)
    options = SparkOptions(workspace, master, conf)
    with until_end_requested(app), streaming_session(app, script.name, options) as streaming:
        found = [dict(zip(_DIFF_COLUMNS, each, strict=True)) for each in streaming.diff(text)]
        app.output.records(found, columns=_DIFF_COLUMNS, nothing="The script has no stream.")


def _execute(app: App, verb: str, name: str, options: SparkOptions, *, available_now: bool = False) -> None:
    from headrace.sql_text.lexer import quote_name

    # An unknown name is reported before Spark starts, which takes seconds.
    known = _registry(options.workspace).get(name)
    execute(app, f"{verb} {quote_name(known.name)}", known.name, options, available_now=available_now)


def _stop(app: App, registry: StreamRegistry, name: str) -> StreamStatus:
    status = registry.get(name)
    if not status.is_live:
        return status
    with app.output.status(f"Stopping {status.name}"):
        registry.ask_to_stop(name)
        registry.wait_until_ended(name)
    return registry.get(name)


def _facts(app: App, status: StreamStatus) -> dict[str, Any]:
    """Return a stream as a record. People see the lag with its age."""
    facts = status_facts(status)
    return facts if app.json else facts | {"lag": status.lag_text}


def _registry(workspace: Path) -> StreamRegistry:
    from headrace.streaming_sql.stream_registry import StreamRegistry
    from headrace.streaming_sql.workspace import Workspace

    return StreamRegistry(Workspace(workspace))
