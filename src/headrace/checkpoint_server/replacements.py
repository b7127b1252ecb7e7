"""Atomic replacement of files of a query's state, which a repeated batch writes again.

To overwrite such a file, Hadoop's client sends two requests: a deletion of the old file (not recursive; Spark itself
never deletes so), and a rename of the new file, which fails if the name exists. A crash between the two would lose a
file of the previous batch. So the server only notes such a deletion, and the following rename replaces the file.

Spark's other manager of checkpoint files sends only the rename. HDFS refuses it if the name exists. Spark would take
that for success and keep the file of a failed attempt. So the server replaces the file.
"""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict

from headrace.checkpoint_server.served_directories import ServedPath

# In a query's checkpoint, at any depth: state/<operator>/<partition>/…, except metadata (`_…`). A checkpoint can itself
# be at such a path. Its logs are no state: a rename never replaces one of their files.
_STATE_FILE = re.compile(r"(?:/[^/]+)*/state/\d+/\d+/(?:(?!_|(?:offsets|commits|sources)/)[^/]+/)*(?!_|metadata$)[^/]+")
# The rename follows within milliseconds, or not at all.
_NOTED_SECONDS = 60.0


def is_state_file(path: ServedPath) -> bool:
    """Return whether a path in a checkpoint is a file of a state store."""
    return _STATE_FILE.fullmatch(path.inside) is not None


class Replacements:
    """The files that the next rename replaces. Thread-safe."""

    def __init__(self) -> None:
        self._noted: dict[ServedPath, list[float]] = defaultdict(list)
        self._lock = threading.Lock()

    def note(self, path: ServedPath) -> None:
        """Note that the next rename to this path replaces the file."""
        with self._lock:
            old = time.monotonic() - _NOTED_SECONDS
            for known in [known for known, times in self._noted.items() if times[-1] < old]:
                del self._noted[known]
            self._noted[path].append(time.monotonic())

    def take(self, path: ServedPath) -> bool:
        """Remove a note for a file. Return whether there was one."""
        with self._lock:
            times = self._noted.pop(path, [])
            if not times or times[-1] < time.monotonic() - _NOTED_SECONDS:
                return False
            if times[1:]:
                self._noted[path] = times[1:]
            return True
