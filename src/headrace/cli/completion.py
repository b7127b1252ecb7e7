"""Completion of names in the shell: tables, queues, consumers and tunnels of the store, streams of the workspace.

The shell waits for it, so a store has a short time to answer. Errors offer no names and print nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType

from headrace.cli.app import App

if TYPE_CHECKING:
    from headrace.ports import Store

_SECONDS = 2.0
_OF_STORE: dict[str, Callable[[Store], Iterable[str]]] = {
    "tables": lambda store: _tables(store),
    "queues": lambda store: store.queues(),
    "consumers": lambda store: store.consumers(),
    "tunnels": lambda store: sorted({tunnel.name for tunnel in store.tunnels()}),
    "tables and queues": lambda store: [*_tables(store), *_queues(store)],
}
# The kinds of names by group, command and parameter; '*' is any of them. A new object has a new name.
_KINDS = {
    ("*", "create", "name"): None,
    ("tunnel", "create", "names"): "tables",
    ("table", "*", "name"): "tables",
    ("table", "diff", "a"): "tables",
    ("table", "diff", "b"): "tables",
    ("queue", "*", "name"): "queues",
    ("consumer", "*", "name"): "consumers",
    ("tunnel", "*", "id_or_name"): "tunnels",
    ("stream", "*", "name"): "streams",
    ("*", "export", "name"): "tables and queues",
    ("*", "*", "table"): "tables",
    ("*", "*", "queue"): "queues",
}


class _Name(StringParamType):
    """A text that is the name of an existing object.

    Args:
        kind: a key of `_OF_STORE`, or ``streams``.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from headrace.support.time_limits import within

        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            names = within(_SECONDS, lambda: _names(ctx, self._kind))
        except Exception:
            names = []
        finally:
            logging.disable(before)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _names(ctx: click.Context, kind: str) -> list[str]:
    if kind == "streams":
        from headrace.streaming_sql.stream_registry import StreamRegistry
        from headrace.streaming_sql.workspace import Workspace

        return StreamRegistry(Workspace(ctx.params.get("workspace") or Path())).names()
    app = ctx.find_object(App)
    if app is None or app.store_url is None:
        return []
    with app.open_store(app.store_url) as store:
        return list(_OF_STORE[kind](store))


def _tables(store: Store) -> list[str]:
    from headrace.model.own_names import of_users

    return of_users(store.tables())


def _queues(store: Store) -> list[str]:
    return store.queues() if store.capabilities.queues else []


def add_completion(group: click.Group) -> None:
    """Let the parameters of all commands of a group complete the names that they take."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            add_completion(command)
            continue
        for parameter in command.params:
            kind = _kind(str(group.name), name, str(parameter.name))
            if kind is not None:
                parameter.type = _Name(kind)


def _kind(group: str, command: str, parameter: str) -> str | None:
    for key in ((group, command), ("*", command), (group, "*"), ("*", "*")):
        if (*key, parameter) in _KINDS:
            return _KINDS[*key, parameter]
    return None
