"""Processes that tests start to act beside them, forked from a server that has loaded headrace already.

A forked process begins in milliseconds; a new interpreter takes a second to load what it needs.
"""

from __future__ import annotations

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
# What the processes run, and pytest, which multiprocessing loads in each when it is this process' main module.
PRELOADED = ("pytest", "headrace", "headrace.testing.workers", "headrace.testing.queue_workers")
CONTEXT.set_forkserver_preload([*PRELOADED])
