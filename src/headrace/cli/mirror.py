"""``headrace mirror``: a copy of a table in another store, without Spark."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import click

from headrace.cli.app import App, parse_pairs, store_option, with_app
from headrace.cli.metrics import metrics_options, serving
from headrace.support.extras import METRICS, check_extras

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_SHOWN_SECONDS = 2.0


@click.command(short_help="Keep a copy of a table in another store, without Spark.")
@click.argument("table")
@click.argument("copy", required=False)
@click.option("--to", metavar="STORE", help="The store of the copy; by default that of the table.")
@click.option(
    "--to-option", multiple=True, metavar="NAME=VALUE", help="An option of the store of the copy. Repeatable."
)
@click.option("--create", is_flag=True, help="Create the store of the copy, if it is an embedded store.")
@click.option("--history", is_flag=True, help="Keep all versions of each row.")
@click.option(
    "--schema-change",
    type=click.Choice(["evolve", "lenient", "fail"]),
    default="evolve",
    show_default=True,
    help="After changes of the table's columns: make the same changes, keep dropped columns, or end.",
)
@click.option(
    "--bad-rows",
    type=click.Choice(["fail", "table"]),
    default="fail",
    show_default=True,
    help="Rows that COPY refuses: end, or keep them in table COPY_bad_rows.",
)
@click.option("--available-now", is_flag=True, help="Copy the existing rows and changes, and end.")
@click.option("--tunnel", metavar="NAME", help="An existing, unread tunnel; by default the mirror creates one.")
@click.option("--name", metavar="NAME", help="The tunnel of the mirror is mirror-NAME; by default the name of COPY.")
@click.option("--client", metavar="NAME", default="", help="The name of this worker in `headrace tunnel describe`.")
@click.option(
    "--batch-rows",
    type=click.IntRange(min=1),
    default=50_000,
    show_default=True,
    metavar="ROWS",
    help="The maximum number of rows in a batch, which is one transaction.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="After this time without a heartbeat, other workers go on with the work of this one.",
)
@metrics_options
@store_option
@with_app
def mirror(
    app: App,
    table: str,
    copy: str | None,
    to: str | None,
    to_option: tuple[str, ...],
    create: bool,
    history: bool,
    schema_change: str,
    bad_rows: str,
    available_now: bool,
    tunnel: str | None,
    name: str | None,
    client: str,
    batch_rows: int,
    timeout: float,
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Keep COPY equal to TABLE, exactly once: its rows, then each change. By default COPY has the same name.

    Several processes with the same command share the work. If one ends or is killed, the others go on, and the next
    start continues at the last change in COPY. Ctrl-C or SIGTERM ends after the current batch.

    \b
    Example:
      headrace mirror orders -s postgresql://shop@db/shop --to postgresql://copy@lake/copy
      headrace mirror orders orders_past --history --available-now -s shop
    """
    import headrace

    if metrics_port is not None:
        check_extras("this command", METRICS, *app.store_extras())
    if to is None and (create or to_option):
        raise click.UsageError("--create and --to-option are about the store of the copy: give --to.")
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(app.store())
        target = source
        if to is not None:
            app.other_options = to_option
            options = parse_pairs(to_option, "--to-option")
            target = stack.enter_context(headrace.open(to, create=create, **options))
        worker = headrace.mirror_worker(
            source,
            table,
            target,
            copy,
            history=history,
            schema_change=schema_change,
            bad_rows=bad_rows,
            tunnel=tunnel,
            name=name,
            client=client,
            batch_rows=batch_rows,
            timeout=timeout,
            idle="stop" if available_now else "wait",
        )

        def registry() -> CollectorRegistry:
            from headrace.monitoring.exposition import make_registry

            return make_registry(None, source)

        stack.enter_context(serving(app, registry, metrics_port, metrics_host))
        shown = _Progress(app, table, copy or table)
        with _stopping(worker.stop):
            worker.run(shown.add)
    shown.end()


@contextlib.contextmanager
def _stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Call a function at the first SIGINT or SIGTERM during the block. A second one ends the process at once."""
    former = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, former[signal.Signals(number)])
        stop()

    for each in former:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)


class _Progress:
    """Prints how many changes were copied, every few seconds while there are some."""

    def __init__(self, app: App, table: str, copy: str) -> None:
        self._output = app.output
        self._tables = table, copy
        self._changes = self._shown = 0
        self._since = time.monotonic()

    def add(self, changes: int) -> None:
        self._changes += changes
        seconds = time.monotonic() - self._since
        if seconds >= _SHOWN_SECONDS:
            rate = (self._changes - self._shown) / seconds
            self._output.event(
                f"{self._changes} changes copied, {rate:.0f} a second",
                changes=self._changes,
                changes_per_second=round(rate, 1),
            )
            self._shown, self._since = self._changes, time.monotonic()

    def end(self) -> None:
        table, copy = self._tables
        text = f"Changes of {table} copied into {copy}: {self._changes}."
        self._output.done(text, table=table, copy=copy, changes=self._changes)
