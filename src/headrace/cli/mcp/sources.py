"""The stores and the workspace of a server of tools."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace.cli.app import App
from headrace.errors import NotFoundError, OptionError
from headrace.inspect.querying.process import QueryProcesses
from headrace.options.secrets import hide, secrets_inside
from headrace.ports import Store
from headrace.streaming_sql.catalog import Catalog
from headrace.streaming_sql.stream_history import StreamHistory
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace


class Sources:
    """Stores by their addresses without passwords, each opened at its first use, and the streams of a workspace.

    A store that is missing, or a server that is down, is an error of the tools that need it, and can be there later.

    Args:
        app: has the options of the store.
        urls: the addresses of the stores.
        directory: the directory of the workspace.

    Raises:
        OptionError: a store is named twice, or several stores have options.
    """

    def __init__(self, app: App, urls: Sequence[str], directory: Path) -> None:
        self._apps = {_shown(url): replace(app, json=True, store_url=url) for url in urls}
        if len(self._apps) < len(urls):
            raise OptionError("a store is named twice", received=", ".join(map(_shown, urls)))
        if app.store_options and len(urls) > 1:
            raise OptionError(
                "--store-option is for one store",
                received=f"{len(urls)} stores",
                remedy="start a server for each store with options",
            )
        self._open: dict[str, Store] = {}
        self._left: list[Store] = []
        self._opening = threading.Lock()
        self.directory = directory
        self.workspace = Workspace(directory)
        self.registry = StreamRegistry(self.workspace)
        self.catalog = Catalog(self.workspace)
        self.history = StreamHistory(self.workspace)
        self.queries = QueryProcesses()

    @property
    def names(self) -> list[str]:
        """The addresses of the stores, without passwords."""
        return list(self._apps)

    def app(self, name: str | None) -> App:
        """Return the options of a command for a store; of the only one for None."""
        if not self._apps:
            raise NotFoundError("this server was started without a store", remedy="headrace mcp --store STORE")
        if name is None and len(self._apps) > 1:
            raise OptionError("no store is named, and there are several", valid=self.names, remedy="set `store`")
        found = self._apps.get(self.names[0] if name is None else name)
        if found is None:
            raise NotFoundError("this server has no such store", received=name, valid=self.names)
        return found

    def store(self, name: str | None) -> Store:
        """Return a store, which stays open; the only one for None."""
        app = self.app(name)
        assert app.store_url is not None
        with self._opening:
            if app.store_url not in self._open:
                self._open[app.store_url] = app.store()
            return self._open[app.store_url]

    def open_again(self) -> None:
        """Let the next calls open the stores again. Calls that run keep those that they have."""
        with self._opening:
            self._left += self._open.values()
            self._open.clear()

    def close(self) -> None:
        """Close the stores and the workspace, and end the processes of queries."""
        self.queries.close()
        self.workspace.close()
        for store in [*self._left, *self._open.values()]:
            store.close()


def _shown(url: str) -> str:
    return hide(url, [url[begin:end] for begin, end in secrets_inside(url)])
