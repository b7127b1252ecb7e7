"""Processes that tests start to act beside them, forked from a server that has loaded headrace already.

A forked process begins in milliseconds; a new interpreter takes a second to load what it needs.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier

DEADLINE = 120.0
_barrier: list[Barrier] = []
CONTEXT = multiprocessing.get_context("forkserver")
# What the processes run, and pytest, which multiprocessing loads in each when it is this process' main module.
PRELOADED = ("pytest", "headrace", "headrace.testing.workers", "headrace.testing.queue_workers")
CONTEXT.set_forkserver_preload([*PRELOADED])


def racing(count: int) -> ProcessPoolExecutor:
    """Return a pool of processes for as many functions, which all go on at the same moment after `begin`."""
    return ProcessPoolExecutor(count, CONTEXT, _get_ready, (CONTEXT.Barrier(count),))


def _get_ready(barrier: Barrier) -> None:
    _barrier.append(barrier)


def begin() -> None:
    """Wait, in a process of `racing`, until the others have begun, too."""
    _barrier[0].wait(DEADLINE)
