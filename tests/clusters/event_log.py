"""Spark's event log: executors that come and go, and tasks that start."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.clusters.hosts import Host

_DIRECTORY = "events"


@dataclass(frozen=True)
class Task:
    """The start of a task.

    Attributes:
        work: its stage, the attempt of the stage, and its number there, which are also those of its copies.
        launched: milliseconds since the epoch.
        speculative: whether it is a copy of a slow task.
    """

    work: tuple[int, int, int]
    executor: str
    host: str
    launched: int
    speculative: bool


class EventLog:
    """The log of the drivers of a host. Spark writes the end of each job and each change of the executors at once.

    Args:
        host: a host of drivers.
    """

    def __init__(self, host: Host) -> None:
        self.directory = host.own / _DIRECTORY
        self.directory.mkdir(exist_ok=True)
        self.settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"{host.home.as_uri()}/{_DIRECTORY}",
            # Spark 4 compresses logs by default, and no text is found in them then.
            "spark.eventLog.compress": "false",
        }
        """Settings of the drivers."""

    def executors(self) -> dict[str, str]:
        """Return the host of each executor that the driver has."""
        found: dict[str, str] = {}
        for event in self._events("ExecutorAdded", "ExecutorRemoved"):
            if event["Event"].endswith("Added"):
                found[event["Executor ID"]] = event["Executor Info"]["Host"]
            else:
                # Spark may report a removal twice.
                found.pop(event["Executor ID"], None)
        return found

    def removed(self, reason: str) -> set[str]:
        """Return the executors that were removed for a reason."""
        return {each["Executor ID"] for each in self._events("ExecutorRemoved") if each["Removed Reason"] == reason}

    def tasks(self) -> list[Task]:
        """Return the tasks that have started."""
        return [
            Task(
                (event["Stage ID"], event["Stage Attempt ID"], event["Task Info"]["Index"]),
                event["Task Info"]["Executor ID"],
                event["Task Info"]["Host"],
                event["Task Info"]["Launch Time"],
                event["Task Info"]["Speculative"],
            )
            for event in self._events("TaskStart")
        ]

    def _events(self, *kinds: str) -> list[dict[str, Any]]:
        beginnings = tuple(f'{{"Event":"SparkListener{kind}",' for kind in kinds)
        lines = [line for path in self.directory.glob("*/events_*") for line in path.read_text().splitlines(True)]
        # Spark may be writing the last line.
        return [json.loads(line) for line in lines if line.startswith(beginnings) and line.endswith("\n")]
