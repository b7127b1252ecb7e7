"""The progress of streams over time, as this process has seen it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass

from headrace.streaming_sql.stream_registry import StreamRegistry, StreamStatus

_SECONDS_BETWEEN = 2.0
_KEPT_SECONDS = 86400.0
_MAX_SAMPLES = int(_KEPT_SECONDS / _SECONDS_BETWEEN)
_MAX_STREAMS = 200
_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class Sample:
    """The progress of a stream at a time, in seconds since 1970; None is unknown."""

    time: float
    rows_per_second: float | None
    lag: int | None
    batch: int | None


class StreamSamples:
    """Reads the registry every two seconds, and keeps the samples of a day in memory."""

    def __init__(self, registry: StreamRegistry) -> None:
        self._registry = registry
        self._samples: dict[str, deque[Sample]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headrace-ui-samples", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._thread.join()

    def since(self, stream: str, seconds: float) -> list[Sample]:
        """Return the samples of a stream from the last ``seconds``, oldest first."""
        first = time.time() - seconds
        return [each for each in list(self._samples.get(stream.lower(), ())) if each.time >= first]

    def _watch(self) -> None:
        while True:
            try:
                for status in self._registry.all()[:_MAX_STREAMS]:
                    self._add(status)
            except Exception:
                # The workspace is busy; the next round tries again.
                _log.debug("cannot read the progress of the streams", exc_info=True)
            if self._stopping.wait(_SECONDS_BETWEEN):
                return

    def _add(self, status: StreamStatus) -> None:
        kept = self._samples.setdefault(status.name.lower(), deque(maxlen=_MAX_SAMPLES))
        rate = (status.rows_per_second or 0.0) if status.is_live else 0.0
        kept.append(Sample(time.time(), rate, status.lag, status.batch))
