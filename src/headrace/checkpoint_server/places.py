"""Which directories of which stores are served, and where a path of a request leads."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from headrace.checkpoint_server.locations import store_key
from headrace.ports import Files, Store
from headrace.ports.files import normal_path


@dataclass
class _Served:
    files: Files
    roots: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Place:
    """A path inside a directory that is served: that in its store, and what follows behind the directory's."""

    files: Files
    path: str
    inside: str


class Places:
    """The directories that are served: those that were asked for, and nothing else of their stores."""

    def __init__(self) -> None:
        self._served: dict[str, _Served] = {}
        self._lock = threading.Lock()

    def add(self, store: Store, path: str) -> None:
        """Serve a directory of a store.

        Raises:
            UnsupportedError: the store has no files.
        """
        files = store.files()
        with self._lock:
            self._served.setdefault(store_key(store.id), _Served(files)).roots.add(normal_path(path))

    def find(self, path: str) -> Place | None:
        """Return where a path ``/<store>/<path>`` leads; None if that is not served.

        Raises:
            OptionError: it is not a path.
        """
        key, _, rest = normal_path(path)[1:].partition("/")
        in_store = f"/{rest}"
        with self._lock:
            served = self._served.get(key)
            above = [] if served is None else [root for root in served.roots if f"{in_store}/".startswith(f"{root}/")]
        if served is None or not above:
            return None
        return Place(served.files, in_store, in_store[len(max(above, key=len)) :])

    def is_above(self, path: str) -> bool:
        """Tell whether something that is served lies below a path."""
        path = normal_path(path)
        with self._lock:
            roots = [f"/{key}{root}/" for key, served in self._served.items() for root in served.roots]
        return path == "/" or any(root.startswith(f"{path}/") for root in roots)
