"""``headrace backup`` and ``headrace restore``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from headrace.cli.app import App, with_app

if TYPE_CHECKING:
    from headrace.ports.backups import Progress

_STEP = 10
_MIB = 1 << 20


@click.command(short_help="Copy a whole store while it is in use.")
@click.argument("store")
@click.argument("directory")
@with_app
def backup(app: App, store: str, directory: str) -> None:
    """Write one committed state of STORE into the new DIRECTORY: rows, logs, queues, checkpoints, markers.

    Writers and streams go on. DIRECTORY appears when the backup is complete and has a checksum. A backup that was
    killed leaves DIRECTORY.incomplete, which the next one deletes.

    Example: headrace backup shop backups/monday
    """
    app.store_url = store
    with app.store() as opened, _progress(app, "Copied") as progress:
        made = opened.back_up(directory, progress=progress)
    app.output.done(
        f"Backed up {store} in {directory}: {made.size / _MIB:.1f} MiB, up to commit version {made.commit_version}.",
        store=store,
        directory=directory,
        **asdict(made),
    )


@click.command(short_help="Make a store of a backup.")
@click.argument("directory")
@click.argument("store")
@with_app
def restore(app: App, directory: str, store: str) -> None:
    """Verify the backup in DIRECTORY and make the new STORE of it. An existing store is never changed.

    A stream whose checkpoint is in the store continues from it exactly once.

    Example: headrace restore backups/monday shop2
    """
    import headrace

    with _progress(app, "Restored") as progress:
        made = headrace.restore(directory, store, progress=progress)
    app.output.done(
        f"Restored {store} from {directory}: {made.size / _MIB:.1f} MiB, up to commit version {made.commit_version}.",
        store=store,
        directory=directory,
        **asdict(made),
    )


@contextmanager
def _progress(app: App, what: str) -> Iterator[Progress]:
    """Yield a function that notes each tenth of a long copy."""
    shown = 0

    def show(done: int, size: int) -> None:
        nonlocal shown
        percent = 100 * done // size if size else 100
        if percent >= shown + _STEP and percent < 100:
            shown = percent
            app.output.note(f"{what} {percent} % of {size / _MIB:.1f} MiB")

    with app.output.status(what):
        yield show
