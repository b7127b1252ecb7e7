"""What the commands ``drop`` have in common: ``--force``, and the check that nothing is in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.run import workspace_option
from headrace.inspect.uses import check_unused

if TYPE_CHECKING:
    from headrace.ports import Store
    from headrace.streaming_sql.stream_uses import StreamUses

force_option = click.option("--force", is_flag=True, help="Drop it even if it is in use.")


def drop_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--force``, and ``--workspace`` for the streams that are asked."""
    return workspace_option(force_option(command))


def check_stored(kind: str, name: str, workspace: Path, store: Store, uses: Callable[[Store, str], list[str]]) -> None:
    """Raise an error if a table or queue is in use, also by a running stream of a workspace."""
    finders = (lambda: _uses(workspace).of_stored(store, name), lambda: uses(store, name))
    check_unused(f"{kind} {name}", *finders, by="--force")


def streams_of_tunnel(workspace: Path, store: Store, tunnel: str, table: str | None) -> list[str]:
    """Return the running streams of a workspace that read a tunnel, as texts."""
    return _uses(workspace).of_tunnel(store, store.tunnel(tunnel, table).id)


def _uses(workspace: Path) -> StreamUses:
    from headrace.streaming_sql.catalog import Catalog
    from headrace.streaming_sql.stream_registry import StreamRegistry
    from headrace.streaming_sql.stream_uses import StreamUses
    from headrace.streaming_sql.workspace import Workspace

    database = Workspace(workspace)
    return StreamUses(Catalog(database), StreamRegistry(database))
