"""Files of a query's state, which a batch that runs again writes again: replaced in one step, never absent.

Where Spark overwrites such a file, Hadoop's client does it in two: it deletes the old one (not recursively, which Spark
itself never asks for) and renames the new one, on the condition that nothing is there. A crash between the two would
lose a file that the batch before has left. So such a deletion is only noted, and the rename that follows replaces.

With Spark's other manager of checkpoint files the client renames at once and without a condition; HDFS would refuse,
Spark would take that for success, and keep the file of the attempt that failed.
"""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict

from headrace.checkpoint_server.places import Place

# In a query's checkpoint, or in a directory of several: state/<operator>/<partition>/…, but for what describes it.
_STATE_FILE = re.compile(r"(?:/[^/]+)?/state/\d+/\d+/(?!_)(?:[^/]+/)*[^/]+")
# The rename follows within milliseconds, or never.
_NOTED_SECONDS = 60.0


def is_state_file(place: Place) -> bool:
    """Tell whether a path is that of a file of a state store, by where it is in the checkpoint."""
    return _STATE_FILE.fullmatch(place.inside) is not None


class Replacements:
    """The files that are about to be replaced."""

    def __init__(self) -> None:
        self._noted: dict[Place, list[float]] = defaultdict(list)
        self._lock = threading.Lock()

    def note(self, place: Place) -> None:
        """Note that a file is to be replaced by the rename that comes next."""
        with self._lock:
            old = time.monotonic() - _NOTED_SECONDS
            for known in [known for known, times in self._noted.items() if times[-1] < old]:
                del self._noted[known]
            self._noted[place].append(time.monotonic())

    def take(self, place: Place) -> bool:
        """Tell whether a file was to be replaced, once for each note."""
        with self._lock:
            times = self._noted.pop(place, [])
            if not times or times[-1] < time.monotonic() - _NOTED_SECONDS:
                return False
            if times[1:]:
                self._noted[place] = times[1:]
            return True
