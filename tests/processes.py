"""The server of `headrace.testing.processes` also loads the stores that tests run on."""

from __future__ import annotations

from headrace.testing.processes import CONTEXT, PRELOADED

CONTEXT.set_forkserver_preload(
    [
        *PRELOADED,
        "headrace.stores.embedded.store",
        "headrace.stores.embedded.publication.publisher",
        "headrace.stores.postgres.store",
        "headrace_lake.delta.store",
        "headrace_tablestore.store.store",
        "headrace_ytsaurus.store.store",
    ]
)
