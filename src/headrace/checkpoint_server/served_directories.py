"""The directories of stores that a server serves, and the paths of requests in them.

Besides single directories, a server can serve all files of a default store, for bare checkpoint locations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.checkpoint_server.locations import store_key
from headrace.errors import OptionError
from headrace.ports import Files, Store
from headrace.ports.files import normal_path

DEFAULT_KEY = "default"
"""The key of the default store in addresses. The keys of other stores are hexadecimal numbers."""


@dataclass
class _ServedStore:
    url: str
    files: Files
    instance: str = ""
    roots: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class ServedPath:
    """A path in a served directory.

    Attributes:
        files: the files of the store.
        path: the path in the store.
        inside: the rest of the path, below the served directory.
    """

    files: Files
    path: str
    inside: str


class ServedDirectories:
    """The directories that a server serves. It serves nothing else of their stores. Thread-safe."""

    def __init__(self) -> None:
        self._served: dict[str, _ServedStore] = {}
        self._default: tuple[str, Callable[[], Store]] | None = None
        self._lock = threading.Lock()

    def add(self, store: Store, path: str) -> None:
        """Serve a directory of a store.

        Raises:
            UnsupportedError: the store has no files.
            OptionError: the store has the id of another one that is already served, such as that of which it is a copy.
                Both would have the same addresses.
        """
        files, instance = store.files(), store.instance()
        with self._lock:
            served = self._served.setdefault(store_key(store.id), _ServedStore(store.url, files, instance))
            if served.instance != instance:
                raise OptionError(
                    "this process serves checkpoints of another store with this id, or of another copy of this store",
                    received=store.url,
                    valid=served.url,
                    remedy="run the queries of the other store in another process",
                )
            served.roots.add(normal_path(path))

    def set_default(self, url: str, open_store: Callable[[], Store]) -> None:
        """Serve all files of a store, opened at the first request. It replaces a default store of another URL."""
        with self._lock:
            if self._default is None or self._default[0] != url:
                self._default = url, open_store
                self._served.pop(DEFAULT_KEY, None)

    def find(self, path: str) -> ServedPath | None:
        """Return the served path of ``/<store>/<path>``; None if no served directory contains it.

        Raises:
            OptionError: the path is invalid.
            HeadraceError: the default store cannot be opened, or has no files.
        """
        key, _, rest = normal_path(path)[1:].partition("/")
        in_store = f"/{rest}"
        with self._lock:
            if key == DEFAULT_KEY and key not in self._served and self._default is not None:
                self._served[key] = _ServedStore(self._default[0], self._default[1]().files(), roots={""})
            served = self._served.get(key)
            above = [] if served is None else [root for root in served.roots if f"{in_store}/".startswith(f"{root}/")]
        if served is None or not above:
            return None
        return ServedPath(served.files, in_store, in_store[len(max(above, key=len)) :])

    def is_above(self, path: str) -> bool:
        """Return whether a path is a parent of a served directory."""
        path = normal_path(path)
        with self._lock:
            roots = [f"/{key}{root}/" for key, served in self._served.items() for root in served.roots]
        return path == "/" or any(root.startswith(f"{path}/") for root in roots)
