"""The numbers of rows of the last published batches of this process, which Spark does not know for ``foreachBatch``."""

from __future__ import annotations

import threading
from collections import OrderedDict

_KEPT = 10_000
_guard = threading.Lock()
_rows: OrderedDict[tuple[str, int], int] = OrderedDict()


def note(job: str, batch: int, rows: int) -> None:
    """Keep the number of rows that a batch has published into all its targets."""
    with _guard:
        _rows[job, batch] = rows
        if len(_rows) > _KEPT:
            _rows.popitem(last=False)


def rows_of(job: str, batch: int) -> int | None:
    """Return the number of published rows of a batch; None if this process has not published it."""
    with _guard:
        return _rows.get((job, batch))
