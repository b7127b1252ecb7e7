"""Named points at which a test kills the process: each step of a batch is shown to survive a kill exactly there.

Nothing happens unless the environment's HEADRACE_FAILPOINT names a point. ``plan-saved:3`` kills the process when it
comes by for the third time. ``plan-saved@1234`` kills the process group 1234 too: so a process of Spark kills
the driver that it works for.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "HEADRACE_FAILPOINT"
POINTS = {
    "uncommitted": "a transaction or request that writes, before it is sent or committed",
    "committed": "the same, when it is on disk or answered",
    "plan-unsaved": "the feed has planned a batch, and the store does not know of it",
    "plan-saved": "the store has the plan, and Spark does not know of the batch",
    "rows-read": "a task has read its rows, and has recorded no end",
    "end-recorded": "the store has the end of a channel, and nothing is staged",
    "rows-staged": "a task has staged its rows, and the driver has no receipt",
    "rows-written": "publication has written rows, and no marker",
    "marker-written": "publication has written the marker; in a transaction, it is not committed",
    "intent-written": "a batch that no transaction can hold has an intent, and none of its rows is visible",
    "parts-written": "all parts of such a batch are written, and its marker says that it has only begun",
    "published": "the batch is published, and Spark does not know it",
    "progress-unsaved": "Spark has committed the batch, and the tunnel or consumer is behind",
    "progress-saved": "the tunnel or consumer has moved, and what the batch needed is still kept",
}
"""The points, in the order in which a batch passes them, and what is done there and what is not."""

_wanted: str | None = None
_times = 0
_group: int | None = None


def arm(value: str | None) -> None:
    """Choose the point at which this process is killed, in the form of the environment variable; None is nowhere."""
    global _wanted, _times, _group
    text, _, group = (value or "").partition("@")
    name, _, times = text.partition(":")
    if name and name not in POINTS:
        raise ValueError(f"{VARIABLE} is {value!r}; valid: {', '.join(POINTS)}")
    _wanted, _times, _group = name or None, int(times or 1), int(group) if group else None


def reach(point: str) -> None:
    """Kill this process if the point is the chosen one."""
    if point == _wanted:
        _come_by()


def _come_by() -> None:
    global _times
    _times -= 1
    if _times == 0:
        if _group is not None:
            os.killpg(_group, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get(VARIABLE))
