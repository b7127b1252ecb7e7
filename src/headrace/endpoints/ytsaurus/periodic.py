"""What a cluster does by itself: functions that run when it starts, and again and again in the background."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.cluster import Cluster

Work: TypeAlias = "Callable[[Cluster], None]"


@dataclass(frozen=True)
class Periodic:
    """A function, and the seconds between the end of one run and the beginning of the next."""

    run: Work
    seconds: float

    @property
    def name(self) -> str:
        return getattr(self.run, "__name__", repr(self.run))


PERIODIC: list[Periodic] = []
STARTING: list[Work] = []


def periodic(seconds: float) -> Callable[[Work], Work]:
    """Let a function run again and again, in one thread with all others: it must not wait for long."""

    def register(run: Work) -> Work:
        PERIODIC.append(Periodic(run, seconds))
        return run

    return register


def at_start(run: Work) -> Work:
    """Let a function run when a cluster starts, after its system nodes were made."""
    STARTING.append(run)
    return run
