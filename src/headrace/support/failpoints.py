"""Failpoints: named steps of a batch at which a test kills the process.

The environment variable HEADRACE_FAILPOINT activates one failpoint. ``plan-saved:3`` kills the process when it reaches
``plan-saved`` for the third time. ``plan-saved@1234`` also kills the process group 1234, so that a process of Spark can
kill its driver.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "HEADRACE_FAILPOINT"
POINTS = {
    "uncommitted": "before a writing transaction is committed, or a writing request is sent",
    "committed": "after the commit, or after the response",
    "plan-unsaved": "the feed has planned a batch, and the plan is not saved",
    "plan-saved": "the plan is saved, and Spark does not have the batch id",
    "rows-read": "a task has read its rows, and no end is recorded",
    "end-recorded": "the end of a channel is recorded, and no rows are staged",
    "rows-staged": "a task has staged its rows, and the driver has no receipts",
    "rows-written": "publication has written the rows, and no marker",
    "marker-written": "publication has written the marker; a transaction is not committed",
    "intent-written": "a batch that is too large for a transaction has an intent, and no row is visible",
    "parts-written": "all parts of such a batch are written, and its marker is incomplete",
    "published": "the batch is published, and Spark has not committed it",
    "text-fenced": "a query with its old text publishes nothing more, and the result of the new text is not computed",
    "table-read": "a table is read for the new text of a query, and its changes since the last batch are not",
    "text-staged": "the result of a new text is staged, and not published",
    "text-published": "the result of a new text is published, and Spark has not started the query",
    "progress-unsaved": "Spark has committed the batch, and the tunnel or consumer has not",
    "progress-saved": "the tunnel or consumer has committed the batch, and its records are not deleted",
}
"""The failpoints in the order of a batch, with the completed and the next step."""

_wanted: str | None = None
_times = 0
_group: int | None = None


def arm(value: str | None) -> None:
    """Activate a failpoint, in the form of the environment variable; None deactivates it."""
    global _wanted, _times, _group
    text, _, group = (value or "").partition("@")
    name, _, times = text.partition(":")
    if name and name not in POINTS:
        raise ValueError(f"{VARIABLE} is {value!r}; valid: {', '.join(POINTS)}")
    _wanted, _times, _group = name or None, int(times or 1), int(group) if group else None


def reach(point: str) -> None:
    """Kill this process if the failpoint is active."""
    if point == _wanted:
        _count()


def _count() -> None:
    global _times
    _times -= 1
    if _times == 0:
        if _group is not None:
            os.killpg(_group, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get(VARIABLE))
