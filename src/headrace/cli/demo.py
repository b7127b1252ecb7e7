"""``headrace demo``: a job that survives the kill of its driver."""

from __future__ import annotations

import contextlib
import shutil
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from headrace.cli.app import App, with_app
from headrace.support.extras import PAGE, SPARK, check_extras

if TYPE_CHECKING:
    from headrace.demo.proof import Difference
    from headrace.demo.story import Outcome


@click.command(short_help="Run a job, kill its driver, and check the result.")
@click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIRECTORY",
              help="Work in this empty directory and keep it; by default, a temporary one.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(min=0), default=10.0, show_default=True,
              help="How long the driver runs before it is killed, and again after.")  # fmt: skip
@click.option("--store", metavar="URL",
              help="An existing store for the tables (postgresql://…); by default, a new embedded one.")  # fmt: skip
@click.option("--ui", "with_page", is_flag=True,
              help="Serve the web page (headrace ui) meanwhile. In a terminal it stays until Ctrl-C.")  # fmt: skip
@with_app
@click.pass_context
def demo(
    context: click.Context, app: App, directory: Path | None, seconds: float, store: str | None, with_page: bool
) -> None:
    """Keep statistics of changing orders, exactly once, in about a minute.

    Writers insert, update and delete orders. A streaming SQL script counts these events in windows of 30 seconds, and
    keeps totals of the orders that exist, by user. The driver is killed and started again. At the end the statistics
    are computed again from the change log, and the totals from the orders. The exit code is 1 if the job's differ.

    With --store, the tables OrderSource, OrderStreamSink and OrderTotals are created there. Without --dir, they are
    dropped at the end, with their tunnels.

    Example: headrace demo --dir demo --seconds 5
    """
    import tempfile

    from headrace.stores.registry import extra_of

    check_extras("the demo", SPARK, *([PAGE] if with_page else []), *([] if store is None else [extra_of(store)]))
    from headrace.demo.story import Story
    from headrace.spark.connect import check_start

    check_start()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    temporary = directory is None
    place = directory or Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    try:
        story = Story(place, app.output, seconds=seconds, store=store, keep=not temporary, with_page=with_page)
        outcome = story.run(lambda found: _report(app, found))
    except Exception:
        if temporary:
            app.output.note(f"Its files are in {place}")
        raise
    except BaseException:
        if temporary:
            shutil.rmtree(place, ignore_errors=True)
        raise
    if not outcome.proven:
        app.output.note(f"Its files are in {place}")
        context.exit(1)
    if temporary:
        with contextlib.suppress(OSError):
            shutil.rmtree(place)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    # An exception lets the `finally` blocks end the child processes.
    raise SystemExit(128 + number)


def _report(app: App, outcome: Outcome) -> None:
    if app.json:
        return
    killed = "between two batches" if outcome.killed_in_batch is None else f"in batch {outcome.killed_in_batch}"
    app.output.record(
        {
            "windows compared": outcome.windows,
            "totals compared": f"{outcome.users} users with {outcome.orders} orders",
            "changes": f"{outcome.events + outcome.deletions} ({outcome.events} inserts and updates counted, "
            f"{outcome.deletions} deletions)",
            "differences": len(outcome.differences) + len(outcome.totals_differences),
            "batches": f"{outcome.batches_before_kill} before the kill, {outcome.batches_after_kill} after",
            "killed": killed,
            "marker in the store": f"batch {outcome.published_batch}",
            "orphaned stages": "not counted" if outcome.orphaned_stages is None else outcome.orphaned_stages,
            "driver stopped cleanly": outcome.clean_stop,
        },
        title="Proof",
    )
    shown: list[Difference[Any, Any]] = [*outcome.differences[:20], *outcome.totals_differences[:20]]
    for difference in shown:
        app.output.done(f"{difference.key}: sink {difference.in_sink}, recomputed {difference.recomputed}")
