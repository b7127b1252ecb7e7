"""Processes that tests start to act beside them, forked from a server that has loaded headrace already.

A forked process begins in milliseconds; a new interpreter takes a second to load what it needs.
"""

from __future__ import annotations

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
# What the processes run, and pytest, which multiprocessing loads in each when it is this process' main module.
CONTEXT.set_forkserver_preload(
    [
        "pytest",
        "headrace",
        "headrace.stores.embedded.store",
        "headrace.stores.embedded.publication.publisher",
        "headrace.stores.postgres.store",
        "headrace_tablestore.store.store",
        "headrace_ytsaurus.store.store",
        "tests.conformance.workers",
        "tests.conformance.queue_workers",
    ]
)
